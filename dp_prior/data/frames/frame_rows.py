"""Frames by row number, read from a complete cache; see `PixelFile` for how."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import Tensor

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.frames.layout import CacheIndex, read_index
from dp_prior.data.frames.pixel_file import PixelFile


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
        self.dtype = self.index.encoding.dtype
        self._length = self.index.ends[-1]
        self._file = PixelFile(directory / self.index.encoding.files[0])
        self._reader = self.index.encoding.reader(self._file, self.index.fit.size)

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
        self._file.refuse_changes()
        frames = torch.empty(len(ids), *self.shape, dtype=self.dtype)
        self._reader.read(frames.numpy(), ids)
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
        return f"{self._file.path.name} has changed in {len(damaged)} of {len(ends) - 1} episodes: {first_few(damaged)}"

    def _sha256(self, first: int, stop: int) -> str:
        """SHA-256 of the stored bytes of rows first to stop - 1."""
        digest = hashlib.sha256()
        for piece in self._reader.stored(first, stop):
            digest.update(piece)
        return digest.hexdigest()
