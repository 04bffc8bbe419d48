"""Noise schedules whose alpha-bar is a function of continuous time."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.diffusion.schedule import VariancePreserving


class _Continuous(VariancePreserving):
    """alpha-bar a function of continuous time, evaluated at (t + 1) / T (Chen 2023, arXiv:2301.10972)."""

    floor: float = Field(default=1e-9, ge=0, lt=1)
    """Least alpha-bar; 0 makes the last timestep pure noise, which objective eps refuses."""

    @abstractmethod
    def gamma(self, u: Tensor) -> Tensor:
        """alpha-bar at times `u` in [0, 1]; falls from 1 at `u` = 0 to 0 at `u` = 1."""

    def alpha_bar(self) -> Tensor:
        alpha_bar = self.gamma(torch.arange(1, self.steps + 1, dtype=torch.float64) / self.steps)
        n_below = int((alpha_bar <= self.floor).sum())
        if n_below > 1:
            raise ValueError(
                f"alpha-bar falls below floor {self.floor:g} at timestep {self.steps - n_below} of {self.steps}, and "
                f"only the last may; lower floor, tau or steps"
            )
        return alpha_bar.clamp(self.floor)


class LinearSignal(_Continuous):
    """alpha-bar on a line; with floor 0 this is the jsd schedule, whose betas are 1 / T, 1 / (T - 1), ..., 1."""

    type: Literal["linear_signal"] = "linear_signal"

    def gamma(self, u: Tensor) -> Tensor:
        return 1 - u


class _Span(_Continuous):
    """An interval of a curve, rescaled so that alpha-bar falls from 1 to 0."""

    start: float
    """Where on the curve the clean end lies."""

    end: float
    """Where on the curve the noisy end lies; above `start`."""

    tau: float = Field(default=1.0, gt=0)
    """Temperature of the curve."""

    def faults(self) -> Iterator[str]:
        if self.start >= self.end:
            yield f"start is {self.start:g} and end {self.end:g}; start must be below end"

    @abstractmethod
    def curve(self, place: Tensor) -> Tensor:
        """A falling curve."""

    def gamma(self, u: Tensor) -> Tensor:
        first, last = self.curve(torch.tensor([self.start, self.end], dtype=torch.float64))
        return (self.curve(self.start + (self.end - self.start) * u) - last) / (first - last)


class Sigmoid(_Span):
    """alpha-bar an interval of a falling sigmoid (Jabri et al. 2022, arXiv:2212.11972)."""

    type: Literal["sigmoid"] = "sigmoid"

    start: float = -3.0
    """Where on the sigmoid the clean end lies."""

    end: float = 3.0
    """Where on the sigmoid the noisy end lies; above `start`."""

    def curve(self, place: Tensor) -> Tensor:
        """Falls from 1 to 0 around 0; a higher tau is flatter."""
        return torch.sigmoid(-place / self.tau)


class PowerCosine(_Span):
    """alpha-bar an interval of a power of a cosine (Chen 2023, arXiv:2301.10972)."""

    type: Literal["power_cosine"] = "power_cosine"

    start: float = Field(default=0.0, ge=0, lt=1)
    """Where on the quarter wave the clean end lies, 0 being its crest."""

    end: float = Field(default=1.0, gt=0, le=1)
    """Where on the quarter wave the noisy end lies, 1 being its zero; above `start`."""

    def curve(self, place: Tensor) -> Tensor:
        """Falls from 1 at 0 to 0 at 1; a higher tau falls earlier."""
        return torch.cos(place * math.pi / 2).clamp(min=0) ** (2 * self.tau)
