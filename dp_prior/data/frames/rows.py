"""Frames by row number, read from a complete cache.

Frames are read with `pread` and not through a memory map: the resident memory of the process does not grow with the
cache, and a file that is cut short is an error and not the end of the process (SIGBUS). The page cache of the operating
system keeps what was read. From there, one thread reads half as many windows per second as a gather from a memory map
whose pages are all resident, and nine tenths of what it reads where they are released from time to time (65,000 windows
of two frames of 96 x 96 per second of CPU time, 56,000 with a crop; 2026-11-22).
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.errors import DataError
from dp_prior.data.frames.layout import OFFSETS, CacheIndex, read_index
from dp_prior.data.frames.pictures import decode_picture

_JPEG_THREADS = 4
_HASHED_AT_ONCE = 1 << 22  # bytes


class Crop(NamedTuple):
    """The part of each frame to return."""

    top: Tensor
    """(n,) int64 first row of pixels."""

    left: Tensor
    """(n,) int64 first column of pixels."""

    height: int
    width: int


class FrameRows:
    """N frames of (h, w, 3) uint8.

    Attributes:
        shape: (h, w, 3).
        index: what the cache holds.
    """

    dtype = torch.uint8
    device = torch.device("cpu")
    n_bytes = 0
    """Memory that the frames take; they stay on disk."""

    def __init__(self, directory: Path, jpeg_threads: int = _JPEG_THREADS):
        """
        Raises:
            DataError: the cache is not complete, or its files do not have their sizes.
        """
        self.index: CacheIndex = read_index(directory)
        self.shape = (*self.index.fit.size, 3)
        self._path = directory / self.index.encoding.files[0]
        self._row_bytes = self.shape[0] * self.shape[1] * 3
        self._length = self.index.ends[-1]
        try:
            self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115 (lives as long as the object)
            self._status = self._changing()
            self._offsets: np.ndarray | None = None
            if self.index.encoding.type == "jpeg":
                self._offsets = np.fromfile(directory / OFFSETS, "<u8").astype(np.int64).reshape(-1, 2)
                self._pool = ThreadPoolExecutor(jpeg_threads, thread_name_prefix="frames")
        except OSError as error:
            raise DataError(str(directory), [f"{error.filename} cannot be read: {error.strerror}"]) from None

    def __len__(self) -> int:
        """N."""
        return self._length

    def rows(self, ids: Tensor, crop: Crop | None = None) -> Tensor:
        """The frames at ids, (n,) int64 on the CPU, any order, repeats allowed: (n, h, w, 3) uint8, or those parts.

        Neighbouring rows are read together, so windows cost one read each.

        Raises:
            DataError: the cache was changed after it was opened, or a frame of it is damaged.
            IndexError: a row or a crop reaches beyond the frames.
        """
        ids = ids.numpy()
        height, width = self.shape[:2] if crop is None else (crop.height, crop.width)
        if len(ids) and not 0 <= ids.min() <= ids.max() < self._length:
            raise IndexError(f"rows {ids.min()} to {ids.max()} of {self._length} frames")
        tops, lefts = (np.zeros_like(ids),) * 2 if crop is None else (crop.top.numpy(), crop.left.numpy())
        if len(ids) and (min(tops.min(), lefts.min()) < 0 or self._reaches_beyond(tops, lefts, height, width)):
            raise IndexError(f"a crop of {height} x {width} reaches beyond frames of {self.shape[0]} x {self.shape[1]}")
        if self._changing() != self._status:
            raise DataError(str(self._path), ["was changed while it was in use; start again, and it is checked"])
        found = np.empty((len(ids), height, width, 3), np.uint8)
        if self._offsets is not None:
            self._read_jpeg(found, ids, tops, lefts)
        elif crop is None:
            self._read_whole(found, ids)
        else:
            self._read_parts(found, ids, tops, lefts)
        return torch.from_numpy(found)

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
        listed = ", ".join(map(str, damaged[:5])) + (", ..." if len(damaged) > 5 else "")
        return f"{self._path.name} has changed in {len(damaged)} of {len(ends) - 1} episodes: {listed}"

    def _reaches_beyond(self, tops: np.ndarray, lefts: np.ndarray, height: int, width: int) -> bool:
        return bool(tops.max() + height > self.shape[0] or lefts.max() + width > self.shape[1])

    def _changing(self) -> tuple[int, int]:
        """What changes when the file is written to; it stays when the file is deleted, whose pixels are still right."""
        status = os.fstat(self._file.fileno())
        return status.st_size, status.st_mtime_ns

    def _read_whole(self, found: np.ndarray, ids: np.ndarray) -> None:
        flat = memoryview(found.reshape(-1))
        first, stop = _runs(ids[1:] != ids[:-1] + 1, len(ids))
        for begin, end, row in zip(first.tolist(), stop.tolist(), ids[first].tolist(), strict=True):
            self._read(flat[begin * self._row_bytes : end * self._row_bytes], row * self._row_bytes)

    def _read_parts(self, found: np.ndarray, ids: np.ndarray, tops: np.ndarray, lefts: np.ndarray) -> None:
        n, height, width, _ = found.shape
        found = found.reshape(n, height, width * 3)
        ends = (ids[1:] != ids[:-1] + 1) | (tops[1:] != tops[:-1]) | (lefts[1:] != lefts[:-1])
        first, stop = _runs(ends, n)
        scratch = np.empty(int((stop - first).max(initial=0)) * self._row_bytes, np.uint8)
        frames, flat = scratch.reshape(-1, self.shape[0], self.shape[1] * 3), memoryview(scratch)
        lists = (array.tolist() for array in (first, stop, ids[first], tops[first], 3 * lefts[first]))
        for begin, end, row, top, left in zip(*lists, strict=True):
            self._read(flat[: (end - begin) * self._row_bytes], row * self._row_bytes)
            found[begin:end] = frames[: end - begin, top : top + height, left : left + 3 * width]

    def _read_jpeg(self, found: np.ndarray, ids: np.ndarray, tops: np.ndarray, lefts: np.ndarray) -> None:
        height, width = found.shape[1:3]

        def decode(number: int, row: int, top: int, left: int) -> None:
            frame = decode_picture(self._encoded(row), f"{self._path}, row {row}", self.shape[:2])
            found[number] = frame[top : top + height, left : left + width]

        lists = (array.tolist() for array in (ids, tops, lefts))
        for _ in self._pool.map(decode, range(len(ids)), *lists):
            pass

    def _encoded(self, row: int) -> bytes:
        start, stop = self._offsets[row].tolist()
        if not 0 <= start <= stop <= self._status[0]:
            raise DataError(str(self._path), [f"row {row} lies at bytes {start} to {stop}, beyond the file"])
        data = bytearray(stop - start)
        self._read(memoryview(data), start)
        return bytes(data)

    def _read(self, into: memoryview, offset: int) -> None:
        try:
            while len(into):
                count = os.preadv(self._file.fileno(), [into], offset)
                if count == 0:
                    raise DataError(str(self._path), ["was cut short while it was in use"])
                into, offset = into[count:], offset + count
        except OSError as error:
            raise DataError(str(self._path), [f"cannot be read: {error.strerror}"]) from None

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


def _runs(is_end: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """First and stop of the runs among n elements, where (n - 1,) says after which of them one ends."""
    if n == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    ends = np.flatnonzero(is_end) + 1
    return np.concatenate([[0], ends]), np.concatenate([ends, [n]])
