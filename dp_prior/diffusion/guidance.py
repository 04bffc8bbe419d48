"""What is done to the estimate of x_0 between the network and the sampler."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from dp_prior.config import Config


class FixedClip(Config):
    """Keeps x_0 within one fixed range, in normalised units."""

    type: Literal["fixed"] = "fixed"

    bound: float = Field(default=1.0, gt=0)
    """Largest magnitude of x_0; 1 for data normalised by their limits, a few for unit variance."""

    def apply(self, x_0: Tensor) -> Tensor:
        """(B, ...) clipped."""
        return x_0.clamp(-self.bound, self.bound)


ClipConfig = FixedClip
