"""A baseline for likelihoods: a Gaussian fitted to each element of x, without network and without condition."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dp_prior.data.samples.over_columns import Samples
from dp_prior.diffusion.variational_bound import decoder_nll
from dp_prior.evaluation.measured_models import device_of
from dp_prior.evaluation.samples import shared_batches
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.metrics import Means, ReducingRanks

MOST_FITTED = 16_384
LEAST_STD = 1e-3
"""Least standard deviation for continuous data, in normalised units, since the density of a constant element would be
infinite. For 8-bit data the least is half a step, so that a new value of a pixel that was constant in training costs a
finite number of bits."""


def uniform_bits(data_step: float) -> float:
    """Bits per dimension of the uniform distribution over the values `data_step` apart from -1 to 1."""
    return math.log2(round(2 / data_step) + 1)


@torch.no_grad()
def gaussian_bits(
    model: Any, train: Samples, samples: Samples, max_samples: int | None, batch_size: int, ranks: ReducingRanks | None
) -> float:
    """Bits per dimension of samples under one Gaussian for each element of x, fitted to the training set.

    In normalised units, and with the bins of 8-bit data if the process has a `data_step`, like the model's own bits. A
    collective.

    Args:
        model: a `DiffusionModel`, whose normalizer and process are used.
        train: samples to fit, at most `MOST_FITTED`, evenly spread; each rank fits alone.
        max_samples: at most this many are measured, evenly spread; None for all.
    """
    device, data_step = device_of(model), model.process.config.data_step
    least = LEAST_STD if data_step is None else data_step / 2
    sums = [torch.zeros((), dtype=torch.float64)] * 3
    for batch in shared_batches(train, MOST_FITTED, batch_size, None, device):
        x, valid = _inside(model, batch)
        parts = torch.ones_like(x), x, x.square()
        sums = [total + (part * valid).sum(0).cpu() for total, part in zip(sums, parts, strict=True)]
    count, total, square = sums
    mean = total / count.clamp(min=1)
    log_std = (square / count.clamp(min=1) - mean**2).clamp(min=least**2).sqrt().log()
    means = Means()
    means.add("bits", 0.0, 0.0)  # a rank without samples must add the same names
    for batch in shared_batches(samples, max_samples, batch_size, ranks, device):
        x, valid = (tensor.cpu() for tensor in _inside(model, batch))
        means.add_batch("bits", decoder_nll(x, mean, log_std, data_step) / math.log(2), valid.expand_as(x))
    return means.reduce(ranks).get("bits", math.nan)


def _inside(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Normalised x, (B, *x_shape) float64, and a bool mask that broadcasts against x: True where x is real and
    predicted. x is 0 where the mask is False: at padding and at given elements."""
    valid = batch.mask[..., None] if batch.mask.ndim == batch.x.ndim - 1 else batch.mask
    valid = valid if model.shown is None else valid & ~model.shown
    return torch.where(valid, model.diffused(batch.x, batch.cond).double(), 0.0), valid
