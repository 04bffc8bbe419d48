"""A tensor is taken by the names along its axes: what both policies have means the same, wherever it stands."""

import json

import numpy as np
import pytest
import torch

from dp_prior.tasks.named_axes import differing_names
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tasks.transfer import choose
from dp_prior.tasks.weights import TransferConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Statistics
from tests.messages import naming, told, told_each

CAMERA = {"type": "resnet", "width": 16, "blocks": [1], "keypoints": 2, "output_dim": 3, "crop": None}
TOP = ["normalizer", "encoder", "backbone"]
BACKBONES = {
    "unet1d": {"down_dims": [20, 40], "step_embed_dim": 8, "n_groups": 4},
    "unet1d_local": {"down_dims": [20, 40], "step_embed_dim": 8, "n_groups": 4},
    "transformer": {"embed_dim": 8, "n_layers": 1, "n_heads": 2, "dropout": 0.0},
    "dit": {"embed_dim": 8, "n_layers": 1, "n_heads": 2, "step_embed_dim": 8},
    "mlp": {"hidden_dim": 8, "n_blocks": 1, "step_embed_dim": 8},
}
ENCODERS = {"plain": {"type": "state"}, "layers": {"type": "state", "hidden_dims": [5], "output_dim": 4}}
WAYS = {
    "one action more": ("xyz", "ab", ["wrist"]),
    "actions in another order": ("yx", "ab", ["wrist"]),
    "one action less": ("y", "ab", ["wrist"]),
    "other state": ("xy", "bca", ["wrist"]),
    "a camera before": ("xy", "ab", ["front", "wrist"]),
    "no camera": ("xy", "ab", []),
    "all at once": ("zyw", "cbd", ["front", "wrist", "zenith"]),
}


def policy(
    actions, state, cameras=("wrist",), backbone="unet1d", encoder="plain", seed=0, n_obs_steps=2, names=None, **more
):
    """A policy of numbers with one-letter names, whose normalizer changes nothing."""
    torch.manual_seed(seed)
    task = {
        "horizon": 4,
        "n_obs_steps": n_obs_steps,
        "n_action_steps": 2,
        "encoders": {"state": ENCODERS[encoder], **dict.fromkeys(cameras, CAMERA)},
        "backbone": {"type": backbone, **BACKBONES[backbone]},
        "diffusion": {"schedule": {"type": "cosine", "steps": 20}},
        **more,
    }
    shapes = {"state": (n_obs_steps, len(state)), **{name: (n_obs_steps, 8, 8, 3) for name in cameras}}
    spec = Spec(
        x_shape=(4, len(actions)),
        cond_shapes=shapes,
        kinds=dict.fromkeys(cameras, "image"),
        names={"x": tuple(actions), "state": tuple(state)} if names is None else names,
    )
    made = PolicyConfig.from_json(json.dumps(task)).create(spec).eval()
    for parameter in made.parameters():
        parameter.data = torch.randn_like(parameter) / 3  # no layer starts at zero
    made.normalizer.fit({key: ends(len(one)) for key, one in (("x", actions), ("state", state))})
    return made


def ends(width):
    return Statistics.of(np.stack([np.full(width, -1.0), np.full(width, 1.0)]).astype(np.float32))


def values(names, known, rows):
    """(*rows, len(names)): the same numbers for the same name, zero for those not in both policies."""
    columns = [
        torch.randn(rows, generator=torch.Generator().manual_seed(ord(name))) * (name in known) for name in names
    ]
    return torch.stack(columns, -1)


def outputs(one, known, cameras):
    """What the network predicts, by the name of a number, where it knows what both policies do."""
    names = one.spec.names
    frames = torch.arange(2 * one.n_obs_steps * 192).view(2, one.n_obs_steps, 8, 8, 3).remainder(256).to(torch.uint8)
    obs = {key: frames for key in one.spec.cond_shapes if key != "state"}
    obs["state"] = values(names["state"], known, (2, one.n_obs_steps))
    kept = {key: torch.tensor([float(key in cameras)] * 2) for key in obs if key != "state"}
    x = values(names["x"], known, (2, 4))
    found = one.backbone(x, torch.tensor([3, 7]), one.encoder(obs, kept))
    return dict(zip(names["x"], found.unbind(-1), strict=True))


@pytest.mark.parametrize(
    "backbone",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in ("unet1d", "transformer"))) for name in BACKBONES],
)
def test_a_policy_predicts_what_the_other_one_does_where_both_know_the_numbers(backbone, subtests):
    for encoder in ENCODERS:
        was = policy("xy", "ab", backbone=backbone, encoder=encoder)
        for way, (actions, state, cameras) in WAYS.items():
            with subtests.test(f"{encoder}, {way}"), torch.no_grad():
                now = policy(actions, state, cameras, backbone=backbone, encoder=encoder, seed=1)
                taken = choose(now, was, TransferConfig(path="x", may_differ=TOP)).taken
                now.load_state_dict({**now.state_dict(), **taken})
                known = {*"xy"} & {*actions} | {*"ab"} & {*state}
                here, there = (outputs(one, known, {*cameras} & {"wrist"}) for one in (now, was))
                assert here.keys() & there.keys()
                for name in here.keys() & there.keys():
                    torch.testing.assert_close(here[name], there[name], atol=1e-5, rtol=1e-5)


def taken(now, was, **record):
    return choose(now, was, TransferConfig(path="x", **(record or {"may_differ": TOP})))


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        ({}, {}, ["0, 1 taken", "place", "2 anew"]),  # no data set names them
        ({"x": tuple("xyz")}, {"x": tuple("zx")}, ["x, z taken", "name", "y anew"]),
        ({"x": tuple("xyz")}, {"x": tuple("zw")}, ["z taken", "name", "x, y anew", "w", "not used"]),
        ({"x": tuple("xyz")}, {}, ["x, y, z anew", "0, 1 not used"]),
        ({}, {"x": tuple("xy")}, ["0, 1, 2 anew", "x, y", "not used"]),
        ({"x": tuple("xyz")}, {"x": tuple("pq")}, ["x, y, z anew", "p, q", "not used"]),
        ({"x": tuple("xxy")}, {"x": tuple("xy")}, ["0, 1, 2 anew", "x, y", "not used"]),  # a name said twice
    ],
)
def test_numbers_are_those_of_one_name_or_of_one_place_where_nobody_names_them(ours, theirs, says):
    now, was = policy("xyz", "ab", seed=1, names=ours), policy("xy", "ab", names=theirs)
    found = taken(now, was)
    assert told_each(found.names, ("action", *says))
    weight, old = (one.state_dict()["backbone.head.out.bias"] for one in (now, was))
    new = found.taken.get("backbone.head.out.bias", weight)
    places = {str(name): place for place, name in enumerate(theirs.get("x", range(2)))}
    for place, name in enumerate(map(str, ours.get("x", range(3)))):
        by_name = name in places and "taken" in says[0]
        assert new[place] == (old[places[name]] if by_name else weight[place])


def test_numbers_that_a_data_set_calls_otherwise_keep_their_places():
    """A renamed vector of the same length: what shapes decided before."""
    now, was = policy("pq", "ab", seed=1), policy("xy", "ab")
    found = taken(now, was)
    assert not found.partly and not found.fresh
    assert told("\n".join(found.warnings), "action", "p, q", "x, y")


def test_a_whole_checkpoint_takes_numbers_by_place_and_says_which_have_other_names():
    now = policy("yx", "ab", seed=1)
    assert told("\n".join(taken(now, policy("xy", "ab"), only=[]).warnings), "action", "y, x", "x, y")
    assert not taken(now, policy("xy", "ab")).warnings  # by name
    assert not taken(now, policy("xy", "ab", names={}), only=[]).warnings
    assert not taken(now, policy("yx", "ab"), only=[]).warnings


@pytest.mark.parametrize(
    ("arms", "is_told"),
    [([], True), ([{"action": [0, 2], "key": "state"}], False), ([{"action": [0, 1], "key": "state"}], True)],
)
def test_actions_that_are_relative_to_something_else_are_told(arms, is_told):
    """A policy of absolute targets takes weights that predict offsets, and their statistics."""
    was = policy("xy", "ab", relative_to="state")
    now = policy("xyz", "ab", seed=1, arms=[{"type": "offset", "slice": arm["action"], **arm} for arm in arms])
    assert told("\n".join(taken(now, was).warnings), "task.relative_to", "task.arms") == is_told


def test_statistics_of_further_numbers_are_those_of_the_new_data():
    now, was = policy("xyz", "ab", seed=1), policy("yx", "ab")
    was.normalizer.fit({"x": Statistics.of(np.float32([[1, 2], [5, 8]])), "state": ends(2)})
    now.load_state_dict({**now.state_dict(), **taken(now, was).taken})
    low, high = (now.state_dict()[f"normalizer.x/{end}"].tolist() for end in ("min", "max"))
    assert (low, high) == ([2, 1, -1], [8, 5, 1])


def test_observations_that_one_policy_alone_has_are_told():
    now, was = policy("xy", "ab", ["front"], seed=1), policy("xy", "ba", ["wrist"])
    assert told_each(differing_names(now, was), ("front", "anew"), ("state", "a, b", "name"), ("wrist", "not used"))


def test_parts_that_may_not_differ_refuse_numbers_in_another_order():
    now, was = policy("yx", "ab", seed=1), policy("xy", "ab")
    with pytest.raises(ValueError, match=naming("normalizer.x.scale", "another order", "may_differ: normalizer.x")):
        taken(now, was, only=["normalizer"])
    assert not taken(now, was, only=[]).partly  # all of it, by shape, as it always was


def test_an_encoder_whose_features_differ_gives_no_columns():
    """Cosines and sines of other angles, and layers of another width."""
    now, was = policy("xy", "ab", encoder="layers", seed=1), policy("xy", "abcd")  # both have four features
    found = taken(now, was)
    name = "backbone.down.0.first.film.linear.weight"
    state = range(8, 12)  # after 8 features of the timestep, before those of the camera
    assert torch.equal(found.taken[name][:, state], now.state_dict()[name][:, state])
    assert torch.equal(found.taken[name][:, 12:15], was.state_dict()[name][:, 12:15])


def test_a_policy_that_diffuses_its_observations_is_taken_by_whole_tensors():
    now = policy("xyz", "ab", seed=1)
    now.__class__ = type("Inpainting", (type(now),), {"has_named_numbers": False})
    found = taken(now, policy("xy", "ab"))
    assert not found.partly and not found.names and "backbone.head.out.bias" in found.fresh
