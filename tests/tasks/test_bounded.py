"""What a configuration may describe beside its weights."""

import json
import math
import subprocess
import sys

import pytest
import torch

from dp_prior.tasks.bounded import UnbuildableError, _elements, build_bounded
from dp_prior.tasks.policy_config import PolicyConfig
from tests.messages import naming
from tests.tasks.test_policy import SMALL, SPEC


@pytest.mark.slow
def test_as_many_timesteps_as_a_schedule_takes_can_be_loaded_with_a_small_network():
    schedule = {"type": "linear", "steps": 1_000_000}
    build_bounded(
        lambda: PolicyConfig.from_json(json.dumps({**SMALL, "diffusion": {"schedule": schedule}})).create(SPEC), []
    )


@pytest.mark.parametrize(
    ("create", "problem"),
    [
        (lambda: torch.empty(1 << 40), ("3 numbers", "1 tensors")),
        (lambda: torch.empty(1 << 62, 1 << 10), ("3 numbers", "1 tensors")),
        (lambda: torch.zeros(1 << 70), ("3 numbers", "1 tensors")),
        (lambda: torch.zeros(-1), ("-1",)),
        (lambda: torch.arange(1e300), ("3 numbers", "1 tensors")),
        (lambda: torch.arange(3, 1), ("step",)),
        (lambda: torch.linspace(0, 1, 1 << 40), ("3 numbers", "1 tensors")),
        (lambda: torch.randn(1 << 40), ("3 numbers", "1 tensors")),
        (lambda: torch.zeros(1 << 15, 1) + torch.zeros(1, 1 << 15), ("3 numbers", "1 tensors")),
        (lambda: [torch.zeros(1) for _ in range(1 << 15)], ("3 numbers", "1 tensors")),
        (lambda: torch.zeros(2) @ torch.zeros(3), ("[2]", "[3]")),
    ],
)
def test_what_is_larger_than_its_weights_or_cannot_be_built_is_refused(create, problem):
    with pytest.raises(UnbuildableError, match=naming(*problem)):
        build_bounded(create, [torch.zeros(3)])


@pytest.mark.parametrize("numbers", [(0, 1, 1e-320), (math.nan,), (0, 1, 0)])
def test_rows_of_no_finite_length_are_refused_as_torch_does(numbers):
    with pytest.raises(UnbuildableError):
        build_bounded(lambda: torch.arange(*numbers), [])


def test_the_elements_of_a_factory_are_counted_as_torch_makes_them():
    calls = [(torch.arange, args) for args in ((7,), (0,), (2, 9), (2, 9, 3), (9, 2, -2), (0.0, 1.0, 0.3), (1.5,))]
    calls += [(torch.linspace, (0, 1, 5)), (torch.randn, (2, 3)), (torch.randn, ((2, 3),)), (torch.eye, (3, 4))]
    for function, args in calls:
        assert _elements(function, args, {"dtype": torch.float32}) == function(*args).numel(), (function, args)
    assert _elements(torch.arange, (), {"start": 2, "end": 6}) == 4 == _elements(torch.linspace, (0, 1), {"steps": 4})


@pytest.mark.slow
def test_a_model_is_built_without_sympy():
    """Which took half of the time of a loading on a robot."""
    code = "import json, sys; from tests.tasks.test_bounded import *; import dp_prior.networks\n"
    code += "config = PolicyConfig.from_json(json.dumps(SMALL)); build_bounded(lambda: config.create(SPEC), [])\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('sympy' in sys.modules)"], capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr


def test_the_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    assert build_bounded(lambda: torch.randn(5), []).shape == (5,)
    assert torch.equal(torch.random.get_rng_state(), before)
