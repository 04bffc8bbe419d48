"""Averages whose width is a fraction of the run: their profile is the closed form."""

import numpy as np
import pytest
import torch
from torch import nn

from dp_prior.training.ema import EMA
from dp_prior.training.power_function import PowerFunctionDecay
from tests.cases import every


@every(relative_width=[0.28, 0.2, 0.1, 0.05, 0.01, 0.001])
def test_power_function_profile_has_integral_one_and_the_stated_width(relative_width):
    exponent = PowerFunctionDecay(relative_width=relative_width).exponent
    assert exponent > 0
    edges = np.linspace(0.0, 1.0, 200_001)
    shares = np.diff(edges ** (exponent + 1))  # of the run's weights in each piece of it
    middles = (edges[1:] + edges[:-1]) / 2
    assert shares.sum() == pytest.approx(1.0, abs=1e-12)
    mean = (shares * middles).sum()
    assert np.sqrt((shares * (middles - mean) ** 2).sum()) == pytest.approx(relative_width, rel=1e-5)


@pytest.mark.parametrize("relative_width", [0.28, 0.1, 0.05, 0.01])
def test_power_function_recursion_gives_each_step_its_integral_of_the_profile(relative_width):
    n_steps, decay = 60, PowerFunctionDecay(relative_width=relative_width)
    model = nn.Linear(n_steps, 1, bias=False).double()
    average = EMA(model, decay)
    for step in range(1, n_steps + 1):
        with torch.no_grad():
            model.weight.copy_(torch.eye(n_steps)[step - 1])
        average.update(step, torch.tensor(True))
    edges = np.linspace(0.0, 1.0, n_steps + 1)
    expected = np.diff(edges ** (decay.exponent + 1))
    found = average.model.weight[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)  # the rate is a float32
