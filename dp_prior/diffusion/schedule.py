"""Noise schedules: records that compute the table of (alpha_t, sigma_t) in x_t = alpha_t x_0 + sigma_t eps."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config, family
from dp_prior.diffusion.table import NoiseTable


class NoiseSchedule(Config):
    """A schedule. A subclass has a `type` and `table`, or extends `VariancePreserving` and has `alpha_bar`."""

    steps: int = Field(default=100, ge=1, le=1_000_000)
    """Number T of timesteps trained."""

    scale: float = Field(default=1.0, ge=1e-6, le=1e6)
    """Factor on the signal before noise is added; below 1 every timestep is noisier (Chen 2023, arXiv:2301.10972). The
    levels are divided by their norm again, so it is a shift of log(alpha / sigma)."""

    @abstractmethod
    def table(self) -> NoiseTable:
        """The levels of every timestep. Raises ValueError if the settings give no table."""


class VariancePreserving(NoiseSchedule):
    """A schedule with alpha^2 + sigma^2 = 1, given by its alpha-bar = alpha^2."""

    zero_terminal_snr: bool = False
    """Stretch alpha so that the last timestep is pure noise (Lin et al. 2024, algorithm 1); not for objective eps."""

    @abstractmethod
    def alpha_bar(self) -> Tensor:
        """(T,) float64, falling."""

    def table(self) -> NoiseTable:
        alpha = self.alpha_bar().sqrt()
        if self.zero_terminal_snr:
            if self.steps == 1:
                raise ValueError("zero_terminal_snr needs 2 or more steps; a single one would be pure noise")
            alpha = (alpha - alpha[-1]) * alpha[0] / (alpha[0] - alpha[-1])
        sigma = (1 - alpha**2).sqrt()
        norm = (self.scale**2 * alpha**2 + sigma**2).sqrt()
        return NoiseTable(self.scale * alpha / norm, sigma / norm)


class Cosine(VariancePreserving):
    """alpha-bar a squared cosine with its betas capped (Nichol and Dhariwal 2021, equation 17).

    With the defaults this is `squaredcos_cap_v2` of diffusers, which Diffusion Policy uses.
    """

    type: Literal["cosine"] = "cosine"

    s: float = Field(default=0.008, ge=0)
    """Offset that keeps the first betas from vanishing, as a fraction of the whole schedule."""

    beta_max: float = Field(default=0.999, gt=0, lt=1)
    """Cap on the betas; it keeps alpha above 0 at the last timestep."""

    def alpha_bar(self) -> Tensor:
        u = torch.linspace(0, 1, self.steps + 1, dtype=torch.float64)
        f = torch.cos((u + self.s) / (1 + self.s) * math.pi / 2) ** 2
        return torch.cumprod(1 - (1 - f[1:] / f[:-1]).clamp(max=self.beta_max), 0)


class Flow(NoiseSchedule):
    """The straight path of rectified flow (Liu et al. 2022): sigma = (t + 1) / T and alpha = 1 - sigma.

    Its last timestep is pure noise, so it goes with the objectives x0, v and flow. A `scale` of 1 / shift is the
    timestep shift of Stable Diffusion 3.
    """

    type: Literal["flow"] = "flow"

    def table(self) -> NoiseTable:
        sigma = torch.arange(1, self.steps + 1, dtype=torch.float64) / self.steps
        alpha = self.scale * (1 - sigma)
        return NoiseTable(alpha / (alpha + sigma), sigma / (alpha + sigma))


NoiseScheduleConfig = family(
    "noise_schedules",
    {
        "linear": "dp_prior.diffusion.beta_schedules:Linear",
        "scaled_linear": "dp_prior.diffusion.beta_schedules:ScaledLinear",
        "sigmoid_beta": "dp_prior.diffusion.beta_schedules:SigmoidBeta",
    },
    Cosine,
    {
        "linear_signal": "dp_prior.diffusion.continuous_schedules:LinearSignal",
        "sigmoid": "dp_prior.diffusion.continuous_schedules:Sigmoid",
        "power_cosine": "dp_prior.diffusion.continuous_schedules:PowerCosine",
    },
    Flow,
    needs=("steps", "table"),
)
