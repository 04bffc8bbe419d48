"""The variational bound of samples under a diffusion process, and its parts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from dp_prior.diffusion.criterion import ElementMean
from dp_prior.diffusion.denoiser import Denoiser
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.variational_bound import normal_kl, reverse_step_bits
from dp_prior.tensors.randomness import Randomness


class BitsPerDim(NamedTuple):
    """The variational bound of B samples, in bits per dimension, and its parts; means over valid elements.

    Attributes:
        total: (B,) bound on the negative log likelihood: `prior` and the sum of `vb`.
        prior: (B,) cost of the noisiest timestep against standard normal noise; the network has no part in it.
        vb: (B, T) cost of each reverse step.
        x_0_error: (B, T) squared error of x_0.
        eps_error: (B, T) squared error of the noise.
        valid: (B,) number of valid positions of each sample.
    """

    total: Tensor
    prior: Tensor
    vb: Tensor
    x_0_error: Tensor
    eps_error: Tensor
    valid: Tensor


@torch.no_grad()
def bits_per_dim(
    process: DiffusionProcess,
    denoiser: Denoiser,
    x_0: Tensor,
    mask: Tensor | None,
    random: Randomness,
    *,
    known: Tensor | None = None,
) -> BitsPerDim:
    """The variational bound of each sample, every timestep evaluated once (IDDPM's `calc_bpd_loop`).

    Args:
        denoiser: of the process, as in sampling: clipped, and given the known elements of x_0, see `Draw.of_known`.
        x_0, mask: see `DiffusionProcess.loss`.
        random: B rows; the noise of each timestep.
        known: see `DiffusionProcess.loss`; the bound then covers the unknown elements, conditional on the known.
    """
    config, mean = process.config, ElementMean(x_0, mask, known=known)
    vb, x_0_error = [], []
    for t in reversed(range(process.steps)):
        alpha, sigma, _, _, *step = process.levels[:, t]
        x_t = alpha * x_0 + sigma * random.stream("bits", t).normal(*x_0.shape[1:])
        estimate, raw, _ = denoiser.estimate(x_t, t)
        difference, index = x_0 - estimate, process.indices[t]
        vb.append(mean(reverse_step_bits(config.variance, difference, x_0, index, raw, step, config.data_step)))
        x_0_error.append(mean(difference**2))
    alpha, log_sigma = process.table.alpha[-1].item(), process.table.sigma[-1].log().item()
    prior = mean(normal_kl(alpha * x_0, log_sigma, 0.0)) / math.log(2)
    vb, x_0_error = torch.stack(vb[::-1], 1), torch.stack(x_0_error[::-1], 1)
    alpha, sigma = process.levels[0], process.levels[1]
    eps_error = (alpha / sigma) ** 2 * x_0_error
    return BitsPerDim(prior + vb.sum(1), prior, vb, x_0_error, eps_error, mean.valid)
