"""Frames in the mirror, as a column: each is turned over when it is read."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from dp_prior.data.columns.disk import DiskColumn

Flip = Literal["left_right", "up_down", "diagonal", "antidiagonal"]
"""See `FrameMirrorConfig`."""


def flipped(frames: Tensor, flip: Flip) -> Tensor:
    """(N, h, w, c) frames in the mirror; twice, they are the frames again."""
    if flip == "left_right":
        return frames.flip(2)
    if flip == "up_down":
        return frames.flip(1)
    turned = frames.transpose(1, 2)
    return turned.contiguous() if flip == "diagonal" else turned.flip(1, 2).contiguous()


class MirroredColumn(DiskColumn):
    """See `Column`. Row i is row i of a column of frames, in the mirror."""

    def __init__(self, column: DiskColumn, flip: Flip):
        self._column, self._flip = column, flip
        self.dtype, self.shape, self.may_move = column.dtype, column.shape, column.may_move

    def __len__(self) -> int:
        return len(self._column)

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`."""
        return flipped(self._column.rows(ids), self._flip)
