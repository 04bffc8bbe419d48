"""The part of a stored picture that a model sees: a window, and the reduced image of that window."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dp_prior.tensors.batch import LOW_RES, Batch
from dp_prior.tensors.crop import Crop
from dp_prior.tensors.randomness import Randomness


@dataclass(frozen=True)
class PictureCut:
    """Whole pictures -> their windows, with the image of lower resolution.

    Attributes:
        low_res: (height, width) of the reduced image; None for none.
    """

    crop: Crop
    low_res: tuple[int, int] | None

    def __call__(self, batch: Batch, random: Randomness | None = None) -> Batch:
        """See `Cut`; without `random` the window is the centre."""
        x, cond = self.crop(batch.x[:, None], random)[:, 0], batch.cond
        if self.low_res is not None:
            cond = {**cond, LOW_RES: reduced(x, self.low_res)}
        return replace(batch, x=x, cond=cond)

    def seeing(self, keys: Collection[str]) -> PictureCut:
        """See `Cut`."""
        return PictureCut(self.crop, self.low_res if LOW_RES in keys else None)


def reduced(x: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H, W, C) uint8 -> (B, *size, C) uint8: means over blocks of pixels, rounded; a size divides (H, W)."""
    means = F.adaptive_avg_pool2d(x.movedim(-1, 1).float(), size)
    return means.round_().to(torch.uint8).movedim(1, -1)
