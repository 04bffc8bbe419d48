"""Objectives: what the network predicts, and how that is converted to x_0, on any noise schedule.

Every objective is a mixture, target = p eps + q x_0, defined by two numbers per timestep. Inserted into
x_t = alpha x_0 + sigma eps and solved for x_0:

    x_0 = (p x_t - sigma output) / (p alpha - q sigma)
    |target error|^2 = ((p alpha - q sigma) / sigma)^2 |x_0 error|^2
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal, TypeVar

from torch import Tensor

from dp_prior.config import Config, family
from dp_prior.diffusion.table import NoiseTable

Level = TypeVar("Level", float, Tensor)


class Objective(Config):
    """An objective; levels may be numbers or tensors that broadcast against x."""

    @abstractmethod
    def mixture(self, alpha: Level, sigma: Level) -> tuple[float | Level, float | Level]:
        """(p, q) of target = p eps + q x_0."""

    def target(self, x_0: Tensor, eps: Tensor, alpha: Level, sigma: Level) -> Tensor:
        """The prediction target of the network for x_t = alpha x_0 + sigma eps."""
        p, q = self.mixture(alpha, sigma)
        return p * eps + q * x_0

    def inversion(self, alpha: Level, sigma: Level) -> tuple[Level, Level]:
        """(a, b) of x_0 = a x_t + b output."""
        p, q = self.mixture(alpha, sigma)
        divisor = p * alpha - q * sigma
        return p / divisor, -sigma / divisor

    def to_x0(self, x_t: Tensor, output: Tensor, alpha: Level, sigma: Level) -> Tensor:
        """The estimate of x_0 from a prediction; inverse of `target`."""
        a, b = self.inversion(alpha, sigma)
        return a * x_t + b * output

    def error_scale(self, alpha: Level, sigma: Level) -> Level:
        """k such that the squared error of the target is k times the squared error of x_0."""
        p, q = self.mixture(alpha, sigma)
        return ((p * alpha - q * sigma) / sigma) ** 2

    def check(self, table: NoiseTable) -> None:
        """Refuse a schedule on which predictions cannot be converted to x_0.

        Raises:
            ValueError: at some timestep the prediction does not determine x_0.
        """
        scale = self.error_scale(table.alpha, table.sigma)
        if not (scale > 0).all():
            raise ValueError(
                f"objective {self.type!r} cannot be turned into x_0 at timestep {int((scale <= 0).nonzero()[0])} of "
                f"{len(table)}, where the schedule leaves no signal (alpha is 0); use objective x0, v or flow, or a "
                f"schedule with signal at its last timestep"
            )


class Eps(Objective):
    """The noise (Ho et al. 2020); error_scale is the SNR."""

    type: Literal["eps"] = "eps"

    def mixture(self, alpha: Level, sigma: Level) -> tuple[float | Level, float | Level]:
        """target = eps."""
        return 1.0, 0.0


class X0(Objective):
    """The clean sample."""

    type: Literal["x0"] = "x0"

    def mixture(self, alpha: Level, sigma: Level) -> tuple[float | Level, float | Level]:
        """target = x_0."""
        return 0.0, 1.0


class V(Objective):
    """The velocity on the circle, alpha eps - sigma x_0 (Salimans and Ho 2022)."""

    type: Literal["v"] = "v"

    def mixture(self, alpha: Level, sigma: Level) -> tuple[float | Level, float | Level]:
        """target = alpha eps - sigma x_0."""
        return alpha, -sigma


class FlowVelocity(Objective):
    """The velocity on the straight path, eps - x_0 (Liu et al. 2022; Lipman et al. 2022)."""

    type: Literal["flow"] = "flow"

    def mixture(self, alpha: Level, sigma: Level) -> tuple[float | Level, float | Level]:
        """target = eps - x_0."""
        return 1.0, -1.0


ObjectiveConfig = family("objectives", Eps, X0, V, FlowVelocity, needs=("target", "inversion", "error_scale", "check"))
