"""Frames by row number, read from a complete cache.

Frames are read with `pread` and not through a memory map: the resident memory of the process does not grow with the
cache, and a file that is cut short is an error and not the end of the process (SIGBUS). The page cache of the operating
system keeps what was read. Rows that it lacks are requested from the disk all at once before the first is waited for,
which reads a batch of random windows from a disk twice as fast as one window after another (`python -m benchmarks
frames`).
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.files import reading
from dp_prior.data.frames.layout import OFFSETS, CacheIndex, read_index
from dp_prior.data.frames.picture_frames import decode_picture

_JPEG_THREADS = 4
_HASHED_AT_ONCE = 1 << 22  # bytes


class FrameRows:
    """N frames of (h, w, channels), uint8 or, of depth, float32.

    Attributes:
        shape: (h, w, channels).
        index: what the cache holds.
    """

    def __init__(self, directory: Path):
        """
        Raises:
            DataError: the cache is not complete, or its files do not have their sizes.
            UnreadableError: the system refused to read it.
        """
        self.index: CacheIndex = read_index(directory)
        self.shape = (*self.index.fit.size, self.index.encoding.channels)
        self._path = directory / self.index.encoding.files[0]
        self.dtype = self.index.encoding.dtype
        self._row_bytes = math.prod(self.shape) * self.dtype.itemsize
        self._length = self.index.ends[-1]
        with reading(self._path):
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 (lives as long as the object)
            self._status = self._changing()
            self._offsets: np.ndarray | None = None
            if self.index.encoding.type == "jpeg":
                self._offsets = np.fromfile(directory / OFFSETS, "<u8").astype(np.int64).reshape(-1, 2)
                self._pool = ThreadPoolExecutor(_JPEG_THREADS, thread_name_prefix="frames")

    def __len__(self) -> int:
        """N."""
        return self._length

    def rows(self, ids: Tensor) -> Tensor:
        """(n, h, w, channels) frames at ids, (n,) int64 on the CPU, any order, repeats allowed.

        Neighbouring rows are read together, so windows cost one read each.

        Raises:
            DataError: the cache was changed after it was opened, or a frame is damaged.
            UnreadableError: the system refused to read it.
            IndexError: a row lies beyond the frames.
        """
        ids = ids.numpy()
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._length:
            raise IndexError(f"rows {ids.min()} to {ids.max()} of {self._length} frames")
        if self._changing() != self._status:
            raise DataError(str(self._path), ["was changed while it was in use; start again, and it is checked"])
        frames = torch.empty(len(ids), *self.shape, dtype=self.dtype)
        found = frames.numpy()
        if self._offsets is None:
            self._read_raw(found, ids)
        else:
            self._read_jpeg(found, ids)
        return frames

    def damage(self) -> str | None:
        """Compare every episode with its SHA-256: which of them have changed, or None."""
        ends, damaged = [0, *self.index.ends], []
        for episode, expected in enumerate(self.index.digests):
            try:
                is_sound = self._sha256(ends[episode], ends[episode + 1]) == expected
            except DataError:  # offsets that lead beyond the file
                is_sound = False
            if not is_sound:
                damaged.append(episode)
        if not damaged:
            return None
        return f"{self._path.name} has changed in {len(damaged)} of {len(ends) - 1} episodes: {first_few(damaged)}"

    def _changing(self) -> tuple[int, int]:
        """Size and time of the last write. Deleting the file changes neither, and its pixels stay valid."""
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _read_raw(self, found: np.ndarray, ids: np.ndarray) -> None:
        """Read each run of neighbouring rows at once, those in the page cache first."""
        file, pixels = self._file.fileno(), memoryview(found.reshape(-1).view(np.uint8))
        begins = np.flatnonzero(np.diff(ids, prepend=-2) != 1)
        bounds = (np.append(begins, len(ids)) * self._row_bytes).tolist()
        on_disk = []
        for begin, end, offset in zip(bounds, bounds[1:], (ids[begins] * self._row_bytes).tolist(), strict=False):
            into = pixels[begin:end]
            if not _read_cached(file, into, offset):
                on_disk.append((into, offset))
        for into, offset in on_disk:
            _request(file, offset, len(into))
        for into, offset in on_disk:
            self._read(into, offset)

    def _read_jpeg(self, found: np.ndarray, ids: np.ndarray) -> None:
        for start, stop in self._offsets[ids].tolist():
            if 0 <= start <= stop <= self._status[0]:
                _request(self._file.fileno(), start, stop - start)

        def decode(number: int, row: int) -> None:
            found[number] = decode_picture(self._encoded(row), f"{self._path}, row {row}", self.shape[:2])

        for _ in self._pool.map(decode, range(len(ids)), ids.tolist()):
            pass

    def _encoded(self, row: int) -> bytes:
        start, stop = self._offsets[row].tolist()
        if not 0 <= start <= stop <= self._status[0]:
            raise DataError(str(self._path), [f"row {row} lies at bytes {start} to {stop}, beyond the file"])
        data = bytearray(stop - start)
        self._read(memoryview(data), start)
        return bytes(data)

    def _read(self, into: memoryview, offset: int) -> None:
        with reading(self._path):
            while len(into):
                count = os.preadv(self._file.fileno(), [into], offset)
                if count == 0:
                    raise DataError(str(self._path), ["was cut short while it was in use"])
                into, offset = into[count:], offset + count

    def _sha256(self, first: int, stop: int) -> str:
        """Of the stored bytes of rows first to stop - 1."""
        digest = hashlib.sha256()
        if self._offsets is not None:
            for row in range(first, stop):
                digest.update(self._encoded(row))
            return digest.hexdigest()
        begin, end = first * self._row_bytes, stop * self._row_bytes
        piece = memoryview(bytearray(_HASHED_AT_ONCE))
        for offset in range(begin, end, _HASHED_AT_ONCE):
            here = piece[: min(_HASHED_AT_ONCE, end - offset)]
            self._read(here, offset)
            digest.update(here)
        return digest.hexdigest()


if sys.platform == "linux":

    def _read_cached(file: int, into: memoryview, offset: int) -> bool:
        """Read from the page cache. Returns whether all of it was there; asks no disk."""
        try:
            return os.preadv(file, [into], offset, os.RWF_NOWAIT) == len(into)
        except OSError:  # not there, or a file system without this flag
            return False

    def _request(file: int, offset: int, length: int) -> None:
        """Have the disk read into the page cache; returns at once."""
        os.posix_fadvise(file, offset, length, os.POSIX_FADV_WILLNEED)

else:

    def _read_cached(file: int, into: memoryview, offset: int) -> bool:
        """Nothing: other systems cannot tell."""
        return False

    def _request(file: int, offset: int, length: int) -> None:
        """Nothing."""
