"""Loss weightings: the weight of an error at each timestep.

Papers state a weighting for one objective. Here it is stated for the squared error of x_0 and divided by the
objective's `error_scale`, which gives the published form for every objective.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from dp_prior.config import Config, family


class Uniform(Config):
    """Every error of the network's output counts the same."""

    type: Literal["uniform"] = "uniform"

    def weight(self, snr: Tensor, error_scale: Tensor) -> Tensor:
        """(T,) weights of the squared error of the output, from (T,) `snr` and `error_scale`."""
        return snr.new_ones(snr.shape)


class MinSNR(Config):
    """Errors of x_0 count by the SNR up to a ceiling, so that nearly clean timesteps do not dominate.

    Source: Hang et al. 2023 (arXiv:2303.09556).
    """

    type: Literal["min_snr"] = "min_snr"

    gamma: float = Field(default=5.0, gt=0)
    """Ceiling of the weight; 5 in the paper."""

    def weight(self, snr: Tensor, error_scale: Tensor) -> Tensor:
        """(T,) weights of the squared error of the output, from (T,) `snr` and `error_scale`."""
        return snr.clamp(max=self.gamma) / error_scale


class P2(Config):
    """Errors of eps count by 1 / (k + SNR)^gamma, so that nearly clean timesteps count less.

    Source: Choi et al. 2022 (arXiv:2204.00227).
    """

    type: Literal["p2"] = "p2"

    gamma: float = Field(default=1.0, ge=0)
    """Strength; 0.5 and 1 in the paper, 0 weighs all errors of eps the same."""

    k: float = Field(default=1.0, gt=0)
    """Keeps the weight of the noisiest timesteps finite; 1 in the paper."""

    def weight(self, snr: Tensor, error_scale: Tensor) -> Tensor:
        """(T,) weights of the squared error of the output, from (T,) `snr` and `error_scale`."""
        return snr / (self.k + snr) ** self.gamma / error_scale


WeightingConfig = family("weightings", Uniform, MinSNR, P2, needs=("weight",))
