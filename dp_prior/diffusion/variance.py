"""The variance of a reverse step (Nichol and Dhariwal 2021).

A reverse step draws x_s from a normal distribution around the posterior's mean. Its std lies between two bounds of
`NoiseTable.log_stds`: `least`, the std of the posterior given x_0, and `largest`, the std for standard normal data. A
learned variance is read from the second half of the network's output.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from dp_prior.config import Config

Level = float | Tensor


class _Variance(Config):
    """The std of a reverse step, as its logarithm."""

    @abstractmethod
    def log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        """Logarithm of the std, from those of the bounds.

        Args:
            raw: (B, ...) second half of the network's output; None if the variance is not learned.
        """

    def last_log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        """Logarithm of the std of the step to the clean sample, for likelihoods; samplers add no noise there."""
        return self.log_std(raw, least, largest)


class FixedSmall(_Variance):
    """The variance of the posterior given x_0; right where the data are a single point."""

    type: Literal["fixed_small"] = "fixed_small"

    def log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        return least


class FixedLarge(_Variance):
    """The variance that is right where the data are standard normal; that of the forward step, beta, on schedules with
    alpha^2 + sigma^2 = 1."""

    type: Literal["fixed_large"] = "fixed_large"

    def log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        return largest

    least_in_last_step: bool = False
    """Likelihoods take the variance of the posterior for the step to the clean sample, as in IDDPM. With an
    exact denoiser of Gaussian data that is 0.16 bits per dimension worse."""

    def last_log_std(self, raw: Tensor | None, least: Level, largest: Level) -> Level:
        return least if self.least_in_last_step else largest


class _Learned(_Variance):
    """A variance that the network predicts."""

    vlb_weight: float = Field(default=0.001, gt=0)
    """lambda in simple loss + lambda * bound, the bound summed over T timesteps, in bits per dimension; 0.001 in the
    paper, 1 / T for the unscaled form of its code. The bound does not move the mean."""


class Learned(_Learned):
    """The network's output is the log variance."""

    type: Literal["learned"] = "learned"

    def log_std(self, raw: Tensor, least: Level, largest: Level) -> Level:
        return raw / 2


class LearnedRange(_Learned):
    """The network's output, -1 to 1, interpolates the log variance between the bounds (equation 15)."""

    type: Literal["learned_range"] = "learned_range"

    def log_std(self, raw: Tensor, least: Level, largest: Level) -> Level:
        return least + (raw + 1) / 2 * (largest - least)


VarianceConfig = Annotated[FixedSmall | FixedLarge | Learned | LearnedRange, Field(discriminator="type")]
