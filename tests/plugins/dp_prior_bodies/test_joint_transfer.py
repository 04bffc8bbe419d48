"""Weights from one robot to many, from many to one, and to a body that the network has not seen."""

import json
from fnmatch import fnmatchcase

import numpy as np
import pytest
import torch

from dp_prior.run.config import TrainConfig
from dp_prior.tasks.transfer import choose
from dp_prior.tasks.weights import TransferConfig
from tests.messages import naming, told
from tests.plugins.dp_prior_bodies.test_network import BACKBONES, built
from tests.plugins.dp_prior_bodies.two_bodies import JOINTS, bodies_run, saved
from tests.tiny import assert_equal, train
from tests.tiny_camera import LENGTHS


def with_third(place, *, alone=False, **changes):
    """A configuration with a third body, `tall`: four joints, the observations `state` and `height`."""
    place.mkdir(exist_ok=True)
    ends, generator = np.cumsum(LENGTHS), np.random.default_rng(5)
    state = generator.normal(size=(ends[-1], 4)).astype(np.float32)
    np.savez(place / "tall.npz", state=state, action=state, height=state[:, :1], episode_ends=ends)
    config = bodies_run(place, **changes)
    tall = {
        "episodes": {"type": "npz", "path": str(place / "tall.npz")},
        "obs": {"state": {"key": "state"}, "height": {"key": "height"}},
        "action": {"key": "action"},
    }
    config["data"]["sets"] = {"tall": tall} if alone else {**config["data"]["sets"], "tall": tall}
    if alone:
        config["task"]["encoders"] = {}
    return config


def model_of(config, seed=1):
    """A fitted network of a configuration, with other first values than those of `built`."""
    config = TrainConfig.from_json(json.dumps(config))
    data = config.open_data()
    data.build_caches(lambda line: None)
    torch.manual_seed(seed)
    model = config.task.create(data.spec)
    model.fit(data.statistics(), data.train)
    return model


def plain_config(place, name, kind="policy", **task):
    """The configuration of a policy of one body alone."""
    config = bodies_run(place, task__type=kind)
    config["task"] |= task
    config["data"] = {**config["data"]["sets"][name], "split": config["data"]["split"], "batch_size": 8}
    config["task"]["encoders"] = config["task"]["encoders"] if name == "short" else {}
    return config


def chosen(model, source, *may_differ):
    return choose(model, source, TransferConfig(path="x", may_differ=may_differ))


def loaded(model, transfer):
    model.load_state_dict({**model.state_dict(), **transfer.taken})
    return model


@pytest.mark.parametrize("backbone", ["unet1d", "dit"])
def test_bodies_of_both_networks_are_taken_bit_for_bit(tmp_path, backbone):
    source, _ = built(tmp_path, task__backbone=BACKBONES[backbone])
    model = model_of(with_third(tmp_path, task__backbone=BACKBONES[backbone]))
    before = model.body("tall").state_dict()
    transfer = chosen(model, source)
    loaded(model, transfer)
    for name in JOINTS:
        assert_equal(dict(model.body(name).state_dict()), dict(source.body(name).state_dict()))
    after = model.body("tall").state_dict()
    own = [name for name in before if name.startswith("normalizer.") or name == "encoder.body"]
    assert own and all(torch.equal(before[name], after[name]) or before[name].isnan().any() for name in own)
    network = {name: value for name, value in source.body("long").state_dict().items() if name.startswith("backbone.")}
    ends = [f"backbone.{pattern}" for pattern in source.backbone.named_axes]  # whose numbers differ between bodies
    trunk = [name for name in network if not any(fnmatchcase(name, pattern) for pattern in ends)]
    assert trunk and all(torch.equal(after[name], network[name]) for name in trunk)
    assert any(part.startswith("normalizer.tall.") for part in transfer.fresh)
    assert not any(part.startswith(("normalizer.long.", "normalizer.short.")) for part in transfer.fresh)
    assert "encoder.body.weight" in transfer.partly and not transfer.unused


def test_a_new_body_alone_takes_the_network_where_that_is_asked_for(tmp_path):
    source, _ = built(tmp_path)
    model = model_of(with_third(tmp_path / "new", alone=True))
    with pytest.raises(ValueError, match=naming("'long', 'short'", "'tall'", "may_differ", "encoder, backbone")):
        chosen(model, source)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    transfer = chosen(model, source, "encoder", "backbone")
    after, stored = loaded(model, transfer).state_dict(), source.state_dict()
    whole = [name for name in after if name.startswith("backbone.") and after[name].shape == stored[name].shape]
    assert whole and all(torch.equal(after[name], stored[name]) for name in whole)
    width = 4  # of the action and of `state`; the network for both bodies has three
    ends = after["backbone.output.weight"].view(-1, width, 16), stored["backbone.output.weight"].view(-1, 3, 16)
    assert torch.equal(ends[0][:, :3], ends[1])
    assert torch.equal(ends[0][:, 3:], before["backbone.output.weight"].view(-1, width, 16)[:, 3:])
    own = [name for name in after if name.startswith("normalizer.")]
    assert_equal({name: after[name].nan_to_num() for name in own}, {name: before[name].nan_to_num() for name in own})
    assert told(str(transfer), "begin anew", "in part")
    assert any(told(line, "tall", "height", "anew") for line in transfer.names)


@pytest.mark.parametrize("kind", ["policy", "body_policy"])
def test_a_policy_becomes_one_of_many_bodies(tmp_path, kind):
    more = {} if kind == "policy" else {"body": "long"}
    policy = model_of(plain_config(tmp_path, "long", kind, **more))
    for weights in policy.parameters():
        weights.data += 0.1
    model = model_of(bodies_run(tmp_path), seed=2)
    before = model.body("short").state_dict()
    transfer = chosen(model, policy)
    after = loaded(model, transfer).body("long").state_dict()
    partial = 0
    for name, value in policy.state_dict().items():
        same = after[name].nan_to_num()
        if value.shape != same.shape:  # without the features of the body, which stand at the end of a token
            partial += 1
            steps = same[:, 8:].view(len(same), 2, -1)  # eight features of the timestep, two tokens
            same = torch.cat([same[:, :8], steps[..., :-16].flatten(1)], dim=1)
        assert torch.equal(same, value.nan_to_num()), name
    assert (partial > 0) == (kind == "policy") and transfer.partly
    assert any(part.startswith("normalizer.short.") for part in transfer.fresh)
    assert any(part.startswith("encoder.front.") for part in transfer.fresh)
    short = model.body("short").state_dict()
    own = [name for name in short if name.startswith("normalizer.")]
    assert_equal({name: short[name].nan_to_num() for name in own}, {name: before[name].nan_to_num() for name in own})


def test_a_policy_that_is_none_of_the_bodies_is_refused(tmp_path):
    config = plain_config(tmp_path, "long")
    del config["data"]["obs"]["goal"]
    with pytest.raises(ValueError, match=naming("'state': (3,)", 3)):
        chosen(model_of(bodies_run(tmp_path)), model_of(config))
    wider = bodies_run(tmp_path, task__backbone={**BACKBONES["mlp"], "hidden_dim": 24})
    with pytest.raises(ValueError, match=naming("'long'", "may_differ")):
        chosen(model_of(wider), model_of(plain_config(tmp_path, "long")))


def test_a_plain_policy_takes_a_body_without_its_features(tmp_path):
    source, _ = built(tmp_path)
    plain = model_of(plain_config(tmp_path, "long"))
    with pytest.raises(ValueError, match=naming("'long', 'short'", "load_policy")):
        chosen(plain, source)
    body = source.body("long")
    with pytest.raises(ValueError, match=naming("encoder.body", "may_differ")) as refusal:
        chosen(plain, body)
    advice = str(refusal.value).rpartition("may_differ: ")[2].split(", ")
    transfer = chosen(plain, body, *advice)
    assert transfer.unused == ("encoder.body",) and not transfer.fresh
    loaded(plain, transfer)
    for name, value in body.state_dict().items():
        if name != "encoder.body":
            mine = plain.state_dict()[name]
            if mine.shape != value.shape:
                steps = value[:, 8:].view(len(value), 2, -1)
                value = torch.cat([value[:, :8], steps[..., :-16].flatten(1)], dim=1)
            assert torch.equal(mine.nan_to_num(), value.nan_to_num()), name


def test_a_policy_of_a_body_takes_a_plain_policy(tmp_path):
    plain = model_of(plain_config(tmp_path, "long"))
    body = model_of(plain_config(tmp_path, "long", "body_policy", body="long"), seed=3)
    with pytest.raises(ValueError, match=naming("encoder.body", "may_differ")):
        chosen(body, plain)
    transfer = chosen(body, plain, "encoder.body", "backbone.blocks")
    assert transfer.fresh == ("encoder.body",) and not transfer.unused
    state = loaded(body, transfer).state_dict()
    for name, value in plain.state_dict().items():
        if state[name].shape == value.shape:
            assert torch.equal(state[name].nan_to_num(), value.nan_to_num()), name


def test_a_run_tells_what_it_takes(tmp_path):
    assert train(saved(tmp_path)).exit_code == 0
    config = with_third(tmp_path, train__init_from=str(tmp_path / "run"), train__steps=1)
    config["tracker"]["data_path"] = str(tmp_path / "three")
    (tmp_path / "three.json").write_text(json.dumps(config))
    outcome = train(tmp_path / "three.json")
    assert outcome.exit_code == 0, outcome.output
    assert told(outcome.output, "initialised", str(tmp_path / "run"), "begin anew", "normalizer.tall.x")
