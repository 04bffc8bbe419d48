"""What a configuration may describe beside its weights."""

import json

import pytest

from dp_prior.tasks.bounded import Bounded
from dp_prior.tasks.policy_config import PolicyConfig
from tests.tasks.test_policy import SMALL, SPEC


@pytest.mark.slow
def test_as_many_timesteps_as_a_schedule_takes_can_be_loaded_with_a_small_network():
    schedule = {"type": "linear", "steps": 1_000_000}
    with Bounded([]):
        PolicyConfig.from_json(json.dumps({**SMALL, "diffusion": {"schedule": schedule}})).create(SPEC)
