"""What a model takes of a checkpoint of other shapes: all that fits, by name and part, and nothing in silence."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from dp_prior.config import ConfigError
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.transfer import choose
from dp_prior.tasks.weights import TransferConfig
from dp_prior.tensors.batch import Spec
from tests.messages import naming, told
from tests.tiny import experiment, tiny

CAMERA = {"type": "resnet", "width": 16, "blocks": [1], "keypoints": 4, "output_dim": 3}
TOP = ["normalizer", "encoder", "backbone"]


def policy(action_dim=2, cameras=("wrist",), seed=0):
    torch.manual_seed(seed)
    task = {
        "horizon": 4,
        "n_obs_steps": 1,
        "n_action_steps": 2,
        "encoders": dict.fromkeys(cameras, CAMERA),
        "backbone": {"type": "unet1d", "down_dims": [8, 16], "step_embed_dim": 8, "n_groups": 4},
        "diffusion": {"schedule": {"type": "cosine", "steps": 20}},
    }
    shapes = {"agent_pos": (1, 2), **{name: (1, 16, 16, 3) for name in cameras}}
    spec = Spec(x_shape=(4, action_dim), cond_shapes=shapes, kinds=dict.fromkeys(cameras, "image"))
    return PolicyConfig.from_json(json.dumps(task)).create(spec)


SOURCE, SAME, WIDER, FURTHER = policy(), policy(seed=1), policy(3, seed=1), policy(cameras=("front", "wrist"), seed=1)


def taken(model, **record):
    return choose(model, SOURCE, TransferConfig(path="x", **record))


def test_all_of_a_model_of_equal_shapes_is_taken():
    found = taken(SAME)
    assert found.taken.keys() == SAME.state_dict().keys() and not found.fresh and not found.unused
    for name, value in found.taken.items():
        torch.testing.assert_close(value, SOURCE.state_dict()[name], rtol=0, atol=0, equal_nan=True)


def test_of_another_action_size_the_ends_of_the_network_and_the_normalizer_are_taken_in_part():
    """What the shapes alone decide, found here by comparing them one by one."""
    ours, theirs = WIDER.state_dict(), SOURCE.state_dict()
    differ = {name for name in ours if ours[name].shape != theirs[name].shape}
    with pytest.raises(ValueError, match=naming("normalizer.x.scale", "(2,)", "(3,)")) as info:
        taken(WIDER)
    advice = str(info.value).rpartition("may_differ: ")[2].split(", ")
    found = taken(WIDER, may_differ=advice)
    assert found.taken.keys() == ours.keys() and not found.fresh and not found.unused
    assert {part.replace("normalizer.x.", "normalizer.x/") for part in found.partly} == differ
    assert told(str(found), "normalizer.x", str(len(differ)), "in part")
    assert told(*found.names, "action", "0, 1", "place", "2 anew")


def test_the_advice_names_all_that_differs_by_few_modules():
    """It can be copied: taken at its word, nothing is refused."""
    other = policy(cameras=("front", "rear", "side", "top"), action_dim=3)
    with pytest.raises(ValueError, match=naming("may_differ")) as info:
        taken(other)
    advice = str(info.value).rpartition("may_differ: ")[2].split(", ")
    assert len(advice) <= 6 and taken(other, may_differ=advice).taken


def test_a_further_camera_does_not_move_the_weights_of_the_one_there_was():
    """The new key stands before the old one, so that the numbers of the encoders change."""
    found = taken(FURTHER, may_differ=["encoder.front", "backbone"])
    where, was = 2, 1
    moved = {name: value for name, value in found.taken.items() if name.startswith(f"encoder.encoders.{where}.")}
    assert len(moved) == len([name for name in SOURCE.state_dict() if name.startswith(f"encoder.encoders.{was}.")])
    for name, value in moved.items():
        assert torch.equal(value, SOURCE.state_dict()[name.replace(f"encoders.{where}", f"encoders.{was}")]), name
    assert not [part for part in found.fresh if part.startswith("encoder.wrist")]
    assert any(part.startswith("encoder.front") for part in found.fresh)


def test_only_the_parts_that_are_named_are_taken():
    found = taken(FURTHER, only=["encoder.wrist"])
    assert found.taken and all(name.startswith("encoder.encoders.2.") for name in found.taken)
    assert not found.has_normalizer and taken(SAME).has_normalizer
    matched, unused = len(found.taken), len(found.unused)
    total = len(FURTHER.state_dict())
    assert told(str(found), f"{matched} of {total}", f"{total - matched} begin", f"{unused} of", "normalizer.x")
    assert matched + unused == len(SOURCE.state_dict())


@given(st.lists(st.sampled_from(["normalizer", "normalizer.x", "encoder.wrist", "backbone.down.0", "backbone"])))
def test_taken_and_fresh_parts_are_all_of_the_model(entries):
    found = taken(SAME, only=entries)
    assert len(found.taken) + len(found.fresh) == len(SAME.state_dict())
    assert len(found.taken) + len(found.unused) == len(SOURCE.state_dict())


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"only": ["encoder.wirst"]}, ["'encoder.wirst'", "encoder.wrist", "backbone.down"]),
        ({"may_differ": ["normalizer.y"]}, ["'normalizer.y'", "normalizer.x"]),
        ({"only": ["encoder.wris"]}, ["'encoder.wris'"]),  # a part, not the beginning of a word
    ],
)
def test_an_entry_that_names_no_part_is_refused_with_the_parts(record, says):
    with pytest.raises(ValueError) as info:  # noqa: PT011
        taken(FURTHER, **record)
    assert all(one in str(info.value) for one in says), info.value


class Other(Pretrained):
    """A model of another kind, with one tensor."""

    def __init__(self):
        super().__init__()
        self.spec, self.other = SOURCE.spec, torch.nn.Parameter(torch.zeros(2))


def test_a_checkpoint_of_another_architecture_gives_nothing():
    with pytest.raises(ValueError, match=naming("1 tensors")):
        choose(SAME, Other(), TransferConfig(path="x", may_differ=["other", *TOP]))


def test_a_run_begins_with_the_parts_that_it_names_and_says_what_began_anew(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    experiment(tiny(tmp_path / "first", train__steps=2)).run()
    source = {"path": str(tmp_path / "first" / "run"), "may_differ": ["backbone", "normalizer"]}
    still = {"train__steps": 1, "train__lr": {"type": "constant", "peak": 1e-12}, "task__backbone__n_blocks": 2}
    lines, one = [], experiment(tiny(tmp_path / "second", seed=5, train__init_from=source, **still))
    one.parts.report = lines.append
    one.run()
    told = next(line for line in lines if "initialised" in line)
    assert "begin anew: backbone.blocks.1" in told
    before, after = (
        load_file(tmp_path / name / "run/checkpoints" / step / "model.safetensors")
        for name, step in (("first", "step_00000002"), ("second", "step_00000001"))
    )
    fresh = after.keys() - before.keys()
    assert fresh and all("blocks.1" in name for name in fresh)
    for name in before:
        torch.testing.assert_close(after[name], before[name], atol=1e-6, rtol=0)


def test_a_part_that_does_not_fit_ends_the_start_with_the_setting_that_allows_it(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    experiment(tiny(tmp_path / "first", train__steps=1)).run()
    source = {"path": str(tmp_path / "first" / "run"), "only": ["backbone"]}
    with pytest.raises(ConfigError) as info:
        experiment(tiny(tmp_path / "second", train__init_from=source, task__backbone__hidden_dim=8)).run()
    assert all(one in str(info.value) for one in ("train.init_from", "has shape", "may_differ", "backbone.blocks.0"))
