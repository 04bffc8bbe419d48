"""The baselines of likelihoods against closed forms, and their padding."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.tensors.batch import Batch
from dp_prior_lab.gaussian import gaussian_bits, uniform_bits
from tests.evaluation.fakes import on_ranks


class Scaled(nn.Module):
    """The border of a model: what the diffusion sees of x, and which of it the network is given."""

    shown = None

    def __init__(self, data_step=None, factor=1.0, offset=0.0):
        super().__init__()
        self.process, self.factor, self.offset = DiffusionProcess(DiffusionConfig(data_step=data_step)), factor, offset

    def diffused(self, x, cond):
        return self.factor * x + self.offset


class Part:
    device = torch.device("cpu")

    def __init__(self, x, mask=None):
        self.x, self.mask = x, torch.ones(x.shape[:-1], dtype=torch.bool) if mask is None else mask

    def __len__(self):
        return len(self.x)

    def fetch(self, ids):
        return Batch(x=self.x[ids], cond={}, mask=self.mask[ids], ids=ids)


def normal(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(n, 3, 2, generator=generator) * torch.tensor([1.0, 0.5]) + torch.tensor([0.2, -0.1])


def bits(model, train, held_out, batch_size=7, ranks=None, max_samples=None):
    return gaussian_bits(model, train, held_out, max_samples, batch_size, ranks)


def test_of_continuous_data_it_is_the_entropy_of_the_gaussian_fitted():
    train = normal(500)
    found = bits(Scaled(), Part(train), Part(train))
    variance = train.double().var(0, unbiased=False)
    expected = (0.5 * torch.log2(2 * math.pi * math.e * variance)).mean().item()  # exact on the data it was fitted to
    assert found == pytest.approx(expected, rel=1e-6)
    assert bits(Scaled(), Part(train), Part(normal(500, 1))) > expected - 0.05
    assert bits(Scaled(factor=2.0), Part(train), Part(train)) == pytest.approx(expected + 1, rel=1e-5)


def test_of_8_bit_data_it_sums_the_probability_of_every_bin():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed: the 8-bit Gaussian is NOT tested")
    pixels = (normal(400) * 100 + 120).round().clamp(0, 255)
    model = Scaled(2 / 255, 1 / 127.5, -1.0)
    found = bits(model, Part(pixels), Part(pixels[:50]))
    mean, std = pixels.double().mean(0).numpy(), pixels.double().std(0, unbiased=False).numpy()
    x = pixels[:50].double().numpy()
    high = np.where(x == 255, 1, stats.norm.cdf(x + 0.5, mean, std))
    low = np.where(x == 0, 0, stats.norm.cdf(x - 0.5, mean, std))
    assert found == pytest.approx(-np.log2(high - low).mean(), rel=1e-6)
    assert uniform_bits(2 / 255) == 8 and uniform_bits(2 / 15) == 4


def test_pixels_that_never_change_keep_a_spread_of_half_a_step():
    black = torch.zeros(20, 3, 2)
    inside = (1 + math.erf(1 / math.sqrt(2))) / 2  # the bin of black reaches one std above it
    assert bits(Scaled(2 / 255, 1 / 127.5, -1.0), Part(black), Part(black)) == pytest.approx(
        -math.log2(inside), rel=1e-5
    )


def test_given_elements_do_not_count():
    train, model = normal(500), Scaled()
    model.shown = torch.zeros(3, 2, dtype=torch.bool)
    model.shown[0] = True
    assert bits(model, Part(train), Part(train)) == pytest.approx(
        bits(Scaled(), Part(train[:, 1:]), Part(train[:, 1:])), rel=1e-9
    )


def test_padding_does_not_count_and_neither_do_ranks_and_batches():
    train, held_out = normal(50), normal(23, 1)
    mask = torch.rand(23, 3, generator=torch.Generator().manual_seed(0)) < 0.7
    held_out[~mask] = float("nan")
    whole = bits(Scaled(), Part(train), Part(held_out, mask))
    assert math.isfinite(whole)
    assert bits(Scaled(), Part(train), Part(held_out, mask), batch_size=4) == pytest.approx(whole, rel=1e-9)
    for found in on_ranks(3, lambda model, ranks: bits(model, Part(train), Part(held_out, mask), 4, ranks), Scaled()):
        assert found == pytest.approx(whole, rel=1e-9)
    assert bits(Scaled(), Part(train), Part(held_out, mask), max_samples=5) != whole
