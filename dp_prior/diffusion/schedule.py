"""Noise schedules: tables of (alpha_t, sigma_t) with x_t = alpha_t x_0 + sigma_t eps.

Everything else in this folder knows a schedule by its table only. Timestep 0 is the least noisy; timestep -1 stands for
the clean sample, (alpha, sigma) = (1, 0), which is no row of the table. Tables are computed and kept in float64.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dp_prior.config import Config


@dataclass(frozen=True, eq=False)
class NoiseTable:
    """Signal and noise level of T timesteps, the noise growing with every one.

    Attributes:
        alpha: (T,) float64, >= 0; only the last may be 0.
        sigma: (T,) float64, > 0.
    """

    alpha: Tensor
    sigma: Tensor
    _transitions: dict[tuple[int, int, float], tuple[float, float, float]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not (torch.isfinite(self.alpha).all() and torch.isfinite(self.sigma).all() and (self.sigma > 0).all()):
            raise ValueError("a noise schedule needs finite alpha and sigma, and sigma above 0 at every timestep")
        rises = (self.snr.diff() >= 0).nonzero().flatten().tolist()
        if rises:
            raise ValueError(
                f"the signal-to-noise ratio must fall with every timestep, but it is {self.snr[rises[0]]:.3g} at "
                f"timestep {rises[0]} and {self.snr[rises[0] + 1]:.3g} at the next"
            )

    def __len__(self) -> int:
        return len(self.alpha)

    @property
    def snr(self) -> Tensor:
        """(T,) signal-to-noise ratio (alpha / sigma) squared."""
        return (self.alpha / self.sigma) ** 2

    @cached_property
    def levels(self) -> list[tuple[float, float]]:
        """(alpha, sigma) of every timestep as plain numbers, and at index -1 those of the clean sample."""
        return [*zip(self.alpha.tolist(), self.sigma.tolist(), strict=True), (1.0, 0.0)]

    def transition(self, t: int, s: int, eta: float) -> tuple[float, float, float]:
        """(c_x, c_0, std) of the step x_s = c_x x_t + c_0 x_0 + std n from timestep t to s, which is less noisy.

        eta 1 samples the posterior q(x_s | x_t, x_0), eta 0 follows the probability-flow ODE, as in DDIM (Song et al.
        2021, equations 12 and 16). Holds on every table.
        """
        step = self._transitions.get((t, s, eta))
        if step is None:
            (alpha_t, sigma_t), (alpha_s, sigma_s) = self.levels[t], self.levels[s]
            fresh = eta**2 * (1 - (alpha_t * sigma_s / (alpha_s * sigma_t)) ** 2)  # share of the noise drawn anew
            c_x = sigma_s / sigma_t * math.sqrt(1 - fresh)
            step = self._transitions[t, s, eta] = c_x, alpha_s - c_x * alpha_t, sigma_s * math.sqrt(fresh)
        return step


class _VariancePreserving(Config):
    """A schedule with alpha^2 + sigma^2 = 1, given by its alpha-bar = alpha^2."""

    steps: int = Field(default=100, ge=1)
    """Number T of timesteps trained."""

    @abstractmethod
    def alpha_bar(self) -> Tensor:
        """(T,) float64, falling."""

    def table(self) -> NoiseTable:
        """The levels of every timestep."""
        alpha_bar = self.alpha_bar()
        return NoiseTable(alpha_bar.sqrt(), (1 - alpha_bar).sqrt())


class _Betas(_VariancePreserving):
    """Betas between two ends; the ends are given for 1000 timesteps and scaled to T."""

    beta_start: float = Field(default=1e-4, gt=0, lt=1)
    """Beta of the first of 1000 timesteps; for T timesteps it is 1000 / T times this."""

    beta_end: float = Field(default=0.02, gt=0, lt=1)
    """Beta of the last of 1000 timesteps; for T timesteps it is 1000 / T times this."""

    @model_validator(mode="after")
    def _betas_below_one(self) -> _Betas:
        largest = 1000 / self.steps * max(self.beta_start, self.beta_end)
        if largest >= 1:
            raise ValueError(
                f"with {self.steps} steps the largest beta is 1000 / {self.steps} * "
                f"{max(self.beta_start, self.beta_end):g} = {largest:.3g}, and must stay below 1; "
                f"use more steps, a smaller beta, or the cosine schedule"
            )
        return self

    def alpha_bar(self) -> Tensor:
        """(T,) float64, falling."""
        return torch.cumprod(1 - self.betas(1000 / self.steps * self.beta_start, 1000 / self.steps * self.beta_end), 0)

    @abstractmethod
    def betas(self, start: float, end: float) -> Tensor:
        """(T,) float64 variances of the noise added at each step."""


class Linear(_Betas):
    """Betas on a line (Ho et al. 2020), scaled by 1000 / T (Nichol and Dhariwal 2021)."""

    type: Literal["linear"] = "linear"

    def betas(self, start: float, end: float) -> Tensor:
        """(T,) float64 variances of the noise added at each step."""
        return torch.linspace(start, end, self.steps, dtype=torch.float64)


class ScaledLinear(_Betas):
    """Square roots of the betas on a line (Rombach et al. 2022); with the default ends this is DALL-E 2's quadratic."""

    type: Literal["scaled_linear"] = "scaled_linear"

    def betas(self, start: float, end: float) -> Tensor:
        """(T,) float64 variances of the noise added at each step."""
        return torch.linspace(math.sqrt(start), math.sqrt(end), self.steps, dtype=torch.float64) ** 2


class Cosine(_VariancePreserving):
    """alpha-bar a squared cosine with its betas capped (Nichol and Dhariwal 2021, equation 17).

    With the defaults this is `squaredcos_cap_v2` of diffusers, which Diffusion Policy uses.
    """

    type: Literal["cosine"] = "cosine"

    s: float = Field(default=0.008, ge=0)
    """Offset that keeps the first betas from vanishing, as a fraction of the whole schedule."""

    beta_max: float = Field(default=0.999, gt=0, lt=1)
    """Cap on the betas; it keeps alpha above 0 at the last timestep."""

    def alpha_bar(self) -> Tensor:
        """(T,) float64, falling."""
        u = torch.linspace(0, 1, self.steps + 1, dtype=torch.float64)
        f = torch.cos((u + self.s) / (1 + self.s) * math.pi / 2) ** 2
        return torch.cumprod(1 - (1 - f[1:] / f[:-1]).clamp(max=self.beta_max), 0)


class Flow(Config):
    """The straight path of rectified flow (Liu et al. 2022): sigma = (t + 1) / T and alpha = 1 - sigma.

    Its last timestep is pure noise, so it goes with the objectives x0, v and flow.
    """

    type: Literal["flow"] = "flow"

    steps: int = Field(default=100, ge=1)
    """Number T of timesteps trained."""

    def table(self) -> NoiseTable:
        """The levels of every timestep."""
        sigma = torch.arange(1, self.steps + 1, dtype=torch.float64) / self.steps
        return NoiseTable(1 - sigma, sigma)


NoiseScheduleConfig = Annotated[Linear | ScaledLinear | Cosine | Flow, Field(discriminator="type")]
