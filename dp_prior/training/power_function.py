"""An average of the weights whose width is a constant fraction of the run, for post-hoc reconstructions."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from dp_prior.training.ema import Decay


class PowerFunctionDecay(Decay):
    """An average that grows with the run: after step t its weight on step i is proportional to i ** exponent.

    Its width is a constant fraction of the steps taken so far. From snapshots of one or two of them the average of any
    other width can be reconstructed after training, see `dp_prior_lab.posthoc`. Source: Karras et al. 2024
    (arXiv:2312.02696), section 3.1.
    """

    type: Literal["power_function"] = "power_function"

    relative_width: float = Field(default=0.05, gt=0, le=0.28)
    """Standard deviation of the average's profile over the steps, as a fraction of the steps taken so far. From 0.05
    and 0.1 together other widths can be reconstructed. At the limit, 0.2887, all steps have equal weight."""

    @property
    def exponent(self) -> float:
        """The gamma > 0 whose profile has this width: width^2 (gamma + 2)^2 (gamma + 3) = gamma + 1.

        In x = gamma + 2 that is x^3 + x^2 - s x + s = 0 with s = 1 / width^2, whose largest root has a closed form.
        """
        s = self.relative_width**-2
        radius = math.sqrt(3.0 * s + 1.0) / 3.0
        angle = math.acos(-(2.0 * s / 3.0 + 1.0 / 27.0) / radius**3)
        return 2.0 * radius * math.cos(angle / 3.0) - 7.0 / 3.0

    def at(self, step: int) -> float:
        """Decay of the update after optimizer step number `step`, counted from 1; the first one keeps nothing."""
        return (1.0 - 1.0 / step) ** (self.exponent + 1.0)
