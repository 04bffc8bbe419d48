"""What a configuration may describe beside its weights."""

import json

import pytest
import torch

from dp_prior.tasks.bounded import UnbuildableError, build_bounded
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
        (lambda: torch.zeros(1 << 15, 1) + torch.zeros(1, 1 << 15), ("3 numbers", "1 tensors")),
        (lambda: [torch.zeros(1) for _ in range(1 << 15)], ("3 numbers", "1 tensors")),
        (lambda: torch.zeros(2) @ torch.zeros(3), ("[2]", "[3]")),
    ],
)
def test_what_is_larger_than_its_weights_or_cannot_be_built_is_refused(create, problem):
    with pytest.raises(UnbuildableError, match=naming(*problem)):
        build_bounded(create, [torch.zeros(3)])


def test_the_random_state_is_left_alone():
    before = torch.random.get_rng_state()
    assert build_bounded(lambda: torch.randn(5), []).shape == (5,)
    assert torch.equal(torch.random.get_rng_state(), before)
