"""Samples of a process, given a network alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dp_prior.diffusion.denoiser import Network
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.tensors.randomness import Randomness


def sample_of(
    process: DiffusionProcess, network: Network, x_shape: tuple[int, ...], random: Randomness, draw: Draw, **how: Any
) -> Tensor:
    """(B, *x_shape) the samples that a model with this network would draw.

    Args:
        how: see `DiffusionProcess.denoiser`.
    """
    return process.sample(process.denoiser(network, draw, **how), process.noise(x_shape, random), random, draw)
