"""bf16 is warned of where it is slower, and timing it changes nothing."""

import pytest
import torch

from dp_prior.run import precision
from dp_prior.run.precision import forward_seconds, precision_warnings
from tests.messages import told_each
from tests.tiny import experiment, tiny


@pytest.mark.parametrize(
    ("wanted", "seconds", "ratio"),
    [("bf16", (1.0, 1.5), "1.5 times"), ("bf16", (1.0, 1.1), None), ("fp32", (1.0, 9.0), None)],
)
def test_bf16_is_warned_of_where_it_is_slower(tmp_path, monkeypatch, wanted, seconds, ratio):
    run = experiment(tiny(tmp_path, train__precision=wanted)).parts
    monkeypatch.setattr(precision, "forward_seconds", lambda parts: seconds)
    parts = () if ratio is None else (("train.precision", "bf16", ratio, "fp32"),)
    assert told_each(precision_warnings(run), *parts)


def test_timing_changes_neither_the_model_nor_the_random_numbers(tmp_path):
    parts = experiment(tiny(tmp_path, train__precision="bf16")).parts
    parts.model.train()
    before = {name: value.clone() for name, value in parts.model.state_dict().items()}
    state = torch.random.get_rng_state()
    assert min(forward_seconds(parts)) > 0 and parts.model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in parts.model.state_dict().items())
