"""Noise schedules given by their betas, the variances of the noise added at each step."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.diffusion.schedule import VariancePreserving


class _Betas(VariancePreserving):
    """Betas between two ends; the ends are given for 1000 timesteps and scaled to T."""

    beta_start: float = Field(default=1e-4, gt=0, lt=1)
    """Beta of the first of 1000 timesteps; for T timesteps it is 1000 / T times this."""

    beta_end: float = Field(default=0.02, gt=0, lt=1)
    """Beta of the last of 1000 timesteps; for T timesteps it is 1000 / T times this."""

    def faults(self) -> Iterator[str]:
        largest = 1000 / self.steps * max(self.beta_start, self.beta_end)
        if largest >= 1:
            yield (
                f"with {self.steps} steps the largest beta is 1000 / {self.steps} * "
                f"{max(self.beta_start, self.beta_end):g} = {largest:.3g}, and must stay below 1; "
                f"use more steps, a smaller beta, or the cosine schedule"
            )

    def alpha_bar(self) -> Tensor:
        return torch.cumprod(1 - self.betas(1000 / self.steps * self.beta_start, 1000 / self.steps * self.beta_end), 0)

    @abstractmethod
    def betas(self, start: float, end: float) -> Tensor:
        """(T,) float64 variances of the noise added at each step."""


class Linear(_Betas):
    """Betas on a line (Ho et al. 2020), scaled by 1000 / T (Nichol and Dhariwal 2021)."""

    type: Literal["linear"] = "linear"

    def betas(self, start: float, end: float) -> Tensor:
        return torch.linspace(start, end, self.steps, dtype=torch.float64)


class ScaledLinear(_Betas):
    """Square roots of the betas on a line (Rombach et al. 2022); with the default ends this is DALL-E 2's quadratic."""

    type: Literal["scaled_linear"] = "scaled_linear"

    def betas(self, start: float, end: float) -> Tensor:
        return torch.linspace(math.sqrt(start), math.sqrt(end), self.steps, dtype=torch.float64) ** 2


class SigmoidBeta(_Betas):
    """Betas on a sigmoid from -6 to 6, as in DALL-E 2's prior and diffusers."""

    type: Literal["sigmoid_beta"] = "sigmoid_beta"

    def betas(self, start: float, end: float) -> Tensor:
        return start + (end - start) * torch.linspace(-6, 6, self.steps, dtype=torch.float64).sigmoid()
