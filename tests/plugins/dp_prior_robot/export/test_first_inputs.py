"""Examples of a part's inputs are those of its first computation, whoever acts meanwhile."""

import threading

import pytest
import torch

from dp_prior.tensors.randomness import Randomness
from dp_prior_robot.export.example_rows import observations
from dp_prior_robot.export.first_inputs import first_inputs
from tests.plugins.dp_prior_robot.export.policies import build


@torch.no_grad()
def test_they_are_what_the_network_and_the_encoder_compute_first(monkeypatch):
    policy, computed = build(), {}
    [values] = first_inputs(policy, "encoding", 3)
    x_t, t, tokens = first_inputs(policy, "runtime", 3)
    for name in ("encoder", "backbone"):
        getattr(policy, name).register_forward_pre_hook(
            lambda _, inputs, name=name: computed.setdefault(name, [value for value in inputs]) and None
        )
    policy.predict(observations(policy, 0, 3), Randomness.from_counts(0, "runtime", torch.arange(3)))
    assert values.keys() == computed["encoder"][0].keys() and len(values) > 0
    assert all(torch.equal(values[key], computed["encoder"][0][key]) for key in values)
    for example, first in zip((x_t, t, tokens), computed["backbone"], strict=True):
        assert torch.equal(example, first) and example.is_contiguous()


@pytest.mark.parametrize("name", ["runtime", "encoding"])
def test_a_policy_that_acts_in_another_thread_meanwhile_acts_as_ever(name, monkeypatch):
    policy, random = build(), Randomness.from_counts(0, "test", torch.arange(2))
    obs = observations(policy, 1, 2)
    with torch.no_grad():
        expected = policy.predict(obs, random)
    predict, actions = policy.predict, []

    def act():
        with torch.no_grad():
            actions.append(predict(obs, random))

    def interrupted(*arguments):
        thread = threading.Thread(target=act)
        thread.start(), thread.join()
        return predict(*arguments)

    monkeypatch.setattr(policy, "predict", interrupted)
    assert first_inputs(policy, name, 2) and getattr(policy, name) is None
    assert len(actions) == 1 and torch.equal(actions[0], expected)
