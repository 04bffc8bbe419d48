"""Depth as a network reads it: 0 at the nearest distance, 1 at the farthest, and -1 where nothing was measured."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config

UNMEASURED = 0.0
"""Metres of a pixel at which the sensor measured nothing, in data and from a robot."""


class DepthRange(Config):
    """The distances that a policy tells apart, of one observation of kind depth."""

    near: float = Field(ge=0)
    """In metres; what is nearer reads as this."""

    far: float = Field(gt=0)
    """In metres; what is farther reads as this."""

    camera: str | None = None
    """The camera whose pixels are those of the depth; both are cropped alike in training."""

    def faults(self) -> Iterator[str]:
        if self.near >= self.far:
            yield f"near is {self.near:g} and far {self.far:g} metres; expected near below far"

    def scaled(self, metres: Tensor) -> Tensor:
        """Metres of any shape -> [0, 1], and -1 where nothing was measured."""
        share = ((metres - self.near) / (self.far - self.near)).clamp(0, 1)
        return torch.where(metres > UNMEASURED, share, -1.0)

    def metres(self, scaled: Tensor) -> Tensor:
        """The inverse of `scaled` within near and far."""
        return torch.where(scaled < 0, UNMEASURED, self.near + scaled * (self.far - self.near))
