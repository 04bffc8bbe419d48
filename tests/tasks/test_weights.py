"""Weights are loaded strictly."""

import pytest
import torch
from safetensors.torch import load_file

from dp_prior.tasks.weights import load_weights
from tests.messages import naming


def test_weights_of_another_shape_are_refused_and_change_nothing(policy, tmp_path):
    directory = policy.save_pretrained(tmp_path / "policy")
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    policy.backbone.head.out = torch.nn.Linear(3, 4)
    with pytest.raises(
        ValueError, match=naming("x", "backbone.head.out.weight", "(2, 16, 1)", "(4, 3)", "backbone.head.out.bias")
    ):
        load_weights(policy, load_file(directory / "model.safetensors"), "x does not fit", "?")
    assert all(
        torch.equal(value, before[name]) for name, value in policy.state_dict().items() if "head.out" not in name
    )
