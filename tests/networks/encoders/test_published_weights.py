"""Partial initialisation: what is taken, what is refused, and that nothing is changed by what is refused."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dp_prior.networks.encoders.encoder import PretrainedModule, load_pretrained
from dp_prior.networks.encoders.published_weights import load_parts, read_weights, rename
from tests.messages import naming


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 1)


def copies(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_named_parts_are_taken_and_the_others_kept():
    model, other = Model(), Model()
    before = copies(model)
    load_parts(
        model, {f"first.{name}": value for name, value in other.first.state_dict().items()}, ["first"], source="x"
    )
    assert torch.equal(model.first.weight, other.first.weight) and torch.equal(model.first.bias, other.first.bias)
    assert torch.equal(model.second.weight, before["second.weight"])


def test_every_tensor_that_does_not_fit_is_listed_and_nothing_is_taken():
    model = Model()
    before = copies(model)
    weights = {"first.weight": torch.zeros(3, 5), "second.bias": torch.zeros(1), "third.weight": torch.zeros(1)}
    missing, unknown, reshaped = "missing: first.bias, second.weight", "third.weight", "first.weight (3, 5) for (3, 2)"
    with pytest.raises(ValueError, match=naming("weights", "file.safetensors", missing, unknown, reshaped)):
        load_parts(model, weights, ["first", "second"], source="file.safetensors")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_tensor_of_a_part_that_is_not_asked_for_is_unknown():
    model = Model()
    with pytest.raises(ValueError, match=naming("first", "second.weight", "second.bias")):
        load_parts(model, model.state_dict(), ["first"], source="x")


def test_half_precision_is_widened():
    model, other = Model(), Model().half()
    load_parts(model, other.state_dict(), ["first", "second"], source="x")
    assert model.first.weight.dtype is torch.float32
    assert torch.equal(model.first.weight, other.first.weight.float())


def test_a_prefix_selects_and_is_taken_off(tmp_path):
    save_file({"a.b.weight": torch.ones(2), "a.c": torch.zeros(1), "d": torch.zeros(1)}, tmp_path / "w.safetensors")
    found = read_weights(tmp_path / "w.safetensors", "a.b.")
    assert list(found) == ["weight"] and torch.equal(found["weight"], torch.ones(2))
    assert set(read_weights(tmp_path / "w.safetensors")) == {"a.b.weight", "a.c", "d"}
    with pytest.raises(ValueError, match=naming("w.safetensors", "'e.'", "a.b.weight", "a.c")):
        read_weights(tmp_path / "w.safetensors", "e.")


def test_what_is_no_safetensors_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=naming("weights", "nowhere.safetensors")):
        read_weights(tmp_path / "nowhere.safetensors")
    torch.save({"weight": torch.ones(1)}, tmp_path / "w.pth")
    with pytest.raises(ValueError, match=naming("w.pth", "safetensors")):
        read_weights(tmp_path / "w.pth")


def test_patterns_are_applied_in_order_and_none_drops():
    weights = {"a.x": torch.zeros(1), "b.x": torch.ones(1), "c": torch.ones(1)}
    assert list(rename(weights, ((r"^c$", None), (r"^a\.", "d."), (r"^d\.x", "e")))) == ["e", "b.x"]


def test_one_name_for_two_tensors_is_refused_unless_they_are_equal():
    renaming = ((r"^[ab]$", "c"),)
    assert list(rename({"a": torch.ones(1), "b": torch.ones(1)}, renaming)) == ["c"]
    with pytest.raises(ValueError, match=naming("'b'", "'c'")):
        rename({"a": torch.ones(1), "b": torch.zeros(1)}, renaming)


def test_every_pretrained_part_of_a_model_is_read_once():
    class Part(PretrainedModule):
        count = 0

        def load_pretrained(self):
            self.count += 1

    model = nn.ModuleList([Part(), nn.Sequential(Part(), nn.ReLU())])
    load_pretrained(model)
    assert [model[0].count, model[1][0].count] == [1, 1]
