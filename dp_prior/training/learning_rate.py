"""Learning rates: closed forms of the optimizer step, so that there is no scheduler state to save."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from dp_prior.config import Config, family


class LearningRate(Config):
    """Linear warm-up to `peak`, then a shape given by the subclass."""

    peak: float = Field(default=1e-4, gt=0)
    """Highest learning rate, reached at the end of the warm-up."""

    warmup_steps: int = Field(default=500, ge=0)
    """Optimizer steps over which the rate rises linearly from peak / warmup_steps; 0 for none. diffusers, which
    Diffusion Policy uses, begins at 0 and is one step behind until the peak."""

    def at(self, step: int, total_steps: int, spent_steps: int | None = None) -> float:
        """The learning rate of optimizer step `step`, counted from 0.

        Args:
            total_steps: budget of the run in steps of the current global batch.
            spent_steps: part of it that is spent; None is `step`. They differ once a run has changed its global batch.
        """
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        spent = step if spent_steps is None else spent_steps
        warmup = self.warmup_steps * spent / max(1, step)  # in steps of the current global batch, as `spent`
        fraction = max(0.0, spent - warmup) / max(1, total_steps - warmup)
        return self.peak * self.shape(min(1.0, fraction), step - self.warmup_steps)

    def shape(self, fraction: float, steps: int) -> float:
        """The rate as a fraction of the peak.

        Args:
            fraction: of the run after the warm-up that is over, 0 to 1.
            steps: optimizer steps since the warm-up.
        """
        raise NotImplementedError


class ConstantLearningRate(LearningRate):
    """Stays at the peak after the warm-up."""

    type: Literal["constant"] = "constant"

    def shape(self, fraction: float, steps: int) -> float:
        return 1.0


class LinearLearningRate(LearningRate):
    """Falls linearly after the warm-up."""

    type: Literal["linear"] = "linear"

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the run as a fraction of the peak."""

    def shape(self, fraction: float, steps: int) -> float:
        return 1.0 + (self.final_fraction - 1.0) * fraction


class CosineLearningRate(LearningRate):
    """Falls along half a cosine after the warm-up (Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts)."""

    type: Literal["cosine"] = "cosine"

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the run as a fraction of the peak."""

    def shape(self, fraction: float, steps: int) -> float:
        return self.final_fraction + (1.0 - self.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * fraction))


class PolynomialLearningRate(LearningRate):
    """Falls as a power of the rest of the run after the warm-up."""

    type: Literal["polynomial"] = "polynomial"

    power: float = Field(default=2.0, gt=0)
    """Exponent; 1 is `linear`."""

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the run as a fraction of the peak."""

    def shape(self, fraction: float, steps: int) -> float:
        return self.final_fraction + (1.0 - self.final_fraction) * (1.0 - fraction) ** self.power


class CosineRestartsLearningRate(LearningRate):
    """Falls along half a cosine several times after the warm-up, each time from the peak (SGDR: Loshchilov and Hutter
    2017, arXiv:1608.03983, with cycles of equal length)."""

    type: Literal["cosine_restarts"] = "cosine_restarts"

    cycles: int = Field(default=3, ge=1)
    """Number of descents; 1 is `cosine`."""

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of a descent as a fraction of the peak."""

    def shape(self, fraction: float, steps: int) -> float:
        inside = 1.0 if fraction == 1.0 else fraction * self.cycles % 1.0
        return self.final_fraction + (1.0 - self.final_fraction) * 0.5 * (1.0 + math.cos(math.pi * inside))


class WarmupStableDecayLearningRate(LearningRate):
    """Stays at the peak after the warm-up and falls at the end (Hu et al. 2024, arXiv:2404.06395)."""

    type: Literal["warmup_stable_decay"] = "warmup_stable_decay"

    decay_fraction: float = Field(default=0.2, gt=0, le=1)
    """Part of the run after the warm-up in which the rate falls."""

    decay: Literal["sqrt", "linear", "cosine"] = "sqrt"
    """How it falls from x = 0 to 1: 1 - sqrt(x), the best of Haegele et al. 2024 (arXiv:2405.18392), 1 - x, or half a
    cosine."""

    final_fraction: float = Field(default=0.0, ge=0, le=1)
    """Rate at the end of the run as a fraction of the peak."""

    def shape(self, fraction: float, steps: int) -> float:
        x = max(0.0, 1.0 - (1.0 - fraction) / self.decay_fraction)
        fall = {"sqrt": math.sqrt(x), "linear": x, "cosine": 0.5 * (1.0 - math.cos(math.pi * x))}[self.decay]
        return 1.0 + (self.final_fraction - 1.0) * fall


class InverseSqrtLearningRate(LearningRate):
    """Falls as one over the root of the steps after the warm-up, whatever the budget: a longer run only goes on
    (Vaswani et al. 2017, arXiv:1706.03762; Zhai et al. 2022, arXiv:2106.04560)."""

    type: Literal["inverse_sqrt"] = "inverse_sqrt"

    timescale_steps: int = Field(default=10_000, ge=1)
    """Steps n after the warm-up at which the rate is peak / sqrt(2): peak / sqrt(1 + steps / n)."""

    def shape(self, fraction: float, steps: int) -> float:
        return 1.0 / math.sqrt(1.0 + steps / self.timescale_steps)


LearningRateConfig = family(
    "learning_rates",
    ConstantLearningRate,
    LinearLearningRate,
    CosineLearningRate,
    PolynomialLearningRate,
    CosineRestartsLearningRate,
    WarmupStableDecayLearningRate,
    InverseSqrtLearningRate,
    needs=("at",),
)
