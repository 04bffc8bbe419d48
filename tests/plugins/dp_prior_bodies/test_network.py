"""One network for many bodies: each is trained, fitted and drawn as if it were alone."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.diffusion.draw import Draw
from dp_prior.inference.agent import Agent
from dp_prior.inference.load import load_policy
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness
from dp_prior_bodies.union import BODY, narrowed
from tests.messages import naming, told
from tests.plugins.dp_prior_bodies.two_bodies import JOINTS, bodies_run, saved
from tests.tiny import assert_equal, experiment, state, tiny, train, train_and_die, write

BACKBONES = {
    "mlp": {"type": "mlp", "hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8},
    "unet1d": {"type": "unet1d", "down_dims": [16, 32], "step_embed_dim": 8, "n_groups": 4},
    "transformer": {"type": "transformer", "n_layers": 1, "n_heads": 2, "embed_dim": 16},
    "dit": {"type": "dit", "n_layers": 1, "n_heads": 2, "embed_dim": 16},
}


def built(place, **changes):
    """A fitted network for both bodies, and its data."""
    config = TrainConfig.from_json(json.dumps(bodies_run(place, **changes)))
    data = config.open_data()
    data.build_caches(lambda line: None)
    torch.manual_seed(0)
    model = config.task.create(data.spec)
    model.fit(data.statistics(), data.train)
    for weights in model.parameters():  # some begin at zero, which would hide a difference
        weights.data += 0.1 * torch.randn(weights.shape)
    return model, data


def batch_of(data, count=9):
    """Training windows of both bodies, in turns."""
    return data.train.fetch(torch.arange(count) * len(data.train) // count)


def of_body(batch, data, name):
    return batch[batch.cond[BODY][:, 0] == [*data.spec.bodies].index(name)]


def random_of(batch):
    return Randomness.from_counts(0, "test", batch.ids)


def garbage(batch, spec):
    """The batch with other numbers where a body has none."""
    cond = {key: value.clone() for key, value in batch.cond.items()}
    x = batch.x.clone()
    x[..., spec.x_shape[-1] :] = 1e6
    for key, value in cond.items():
        if key not in spec.cond_shapes and key != BODY:
            value += 7
        elif key != BODY and value.is_floating_point():
            value[..., spec.cond_shapes[key][-1] :] = torch.nan
    return dataclasses.replace(batch, x=x, cond=cond)


VARIANTS = [
    *({"task__backbone": backbone} for backbone in BACKBONES.values()),
    {
        "task__relative_to": "state", "task__prefix": {"max_delay": 1}, "task__cond_dropout": {"state": 0.5},
        "task__diffusion__self_condition": 1, "task__diffusion__draws": 2,
        "task__encoders__state": {"type": "state", "hidden_dims": [8], "output_dim": 4},
    },
]  # fmt: skip


@pytest.mark.parametrize("changes", VARIANTS, ids=[*BACKBONES, "everything"])
def test_loss_and_gradients_of_a_body_are_those_of_its_own_policy(tmp_path, changes):
    model, data = built(tmp_path, **changes)
    before = copy.deepcopy(model.state_dict())
    for name in JOINTS:
        model.load_state_dict(before)  # a step of rate 1 may lead where rounding is magnified
        batch = of_body(batch_of(data), data, name)
        alone = model.body(name).train().requires_grad_(True)
        model.train().zero_grad()
        loss, expected = model(batch, random_of(batch)), alone(narrowed(batch, alone.spec), random_of(batch))
        torch.testing.assert_close(loss.per_sample, expected.per_sample, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(loss.total, expected.total, rtol=1e-5, atol=1e-6)
        loss.total.backward()
        expected.total.backward()
        sizes = [sum(float(value.grad.abs().sum()) for value in each.parameters()) for each in (model, alone)]
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-4) and sizes[1] > 0  # weights of the other body have none
        for value in (*model.parameters(), *alone.parameters()):
            value.data -= value.grad
        cut = model.cut(name, model.state_dict())
        for key, value in alone.state_dict().items():
            torch.testing.assert_close(
                cut[key], value, rtol=1e-4, atol=3e-5, msg=lambda text, key=key: f"{key}: {text}"
            )


def test_numbers_that_a_body_does_not_have_change_nothing(tmp_path):
    model, data = built(tmp_path)
    for name, spec in data.spec.bodies.items():
        batch = of_body(batch_of(data), data, name)
        losses = [model(each, random_of(batch)) for each in (batch, garbage(batch, spec))]
        assert torch.equal(losses[0].per_sample, losses[1].per_sample)
        assert torch.equal(losses[0].total, losses[1].total)


def test_a_mixed_batch_is_the_mean_over_the_samples_of_its_bodies(tmp_path):
    model, data = built(tmp_path)
    batch = batch_of(data)
    with torch.no_grad():
        loss = model(batch, random_of(batch))
    assert loss.total == pytest.approx(float((loss.per_sample * loss.valid).sum() / batch.mask.sum()), rel=1e-5)
    for name in JOINTS:
        part = of_body(batch, data, name)
        places = torch.isin(batch.ids, part.ids)
        with torch.no_grad():
            alone = model(part, random_of(part))
        torch.testing.assert_close(loss.per_sample[places], alone.per_sample, rtol=1e-5, atol=1e-6)
        assert torch.equal(loss.t[places], alone.t) and torch.equal(loss.valid[places], alone.valid)


def test_statistics_are_those_of_each_set_alone(tmp_path):
    model, data = built(tmp_path, task__relative_to="state")
    for name in JOINTS:
        config = bodies_run(tmp_path, task__type="policy", task__relative_to="state")
        keys = ("split", "batch_size")
        config["data"] = {**config["data"]["sets"][name], **{key: config["data"][key] for key in keys}}
        config["task"]["encoders"] = config["task"]["encoders"] if name == "short" else {}
        alone = TrainConfig.from_json(json.dumps(config))
        own_data = alone.open_data()
        policy = alone.task.create(own_data.spec)
        policy.fit(own_data.statistics(), own_data.train)
        expected = policy.normalizer.state_dict()
        assert_equal(dict(model.body(name).normalizer.state_dict()), dict(expected))


def test_samples_of_a_body_have_its_width_and_units_alone(tmp_path):
    model, data = built(tmp_path)
    for name, joints in JOINTS.items():
        batch = of_body(batch_of(data), data, name)
        policy = model.body(name)
        cond = narrowed(batch, policy.spec).cond
        chunk = policy.predict(cond, random_of(batch))
        assert chunk.shape[1:] == (4, joints)
        other = narrowed(garbage(batch, data.spec.bodies[name]), policy.spec).cond
        assert torch.equal(policy.predict(other, random_of(batch)), chunk)
        low, high = (policy.normalizer.get_buffer(f"x/{end}") for end in ("min", "max"))
        reach = high - low
        assert (chunk >= low - 3 * reach).all() and (chunk <= high + 3 * reach).all()


def test_the_samples_of_a_joint_batch_are_those_of_each_body(tmp_path):
    model, data = built(tmp_path)
    model.eval()
    batch = batch_of(data)
    samples = model.sample(batch.cond, random_of(batch), Draw(sampler=model.sampler.model_copy(update={"steps": 3})))
    assert samples.shape == (9, 4, 3)
    for name, joints in JOINTS.items():
        rows = batch.cond[BODY][:, 0] == [*data.spec.bodies].index(name)
        part, policy = batch[rows], model.body(name)
        expected = policy.sample(
            narrowed(part, policy.spec).cond,
            random_of(part),
            Draw(sampler=policy.sampler.model_copy(update={"steps": 3})),
        )
        torch.testing.assert_close(samples[rows][..., :joints], expected, rtol=1e-4, atol=1e-4)
        assert (samples[rows][..., joints:] == 0).all()
    with pytest.raises(ValueError, match=naming("'long', 'short'", "load_policy")):
        model.sample(batch.cond, random_of(batch), Draw(noise=torch.zeros(9, 4, 3)))


@pytest.mark.parametrize("setting", [{}, {"task__relative_to": "state", "task__prefix": {"max_delay": 1}}])
def test_a_run_of_many_bodies_is_checked_before_training(tmp_path, setting):
    done = train(saved(tmp_path, **setting), "--check")
    assert done.exit_code == 0, done.output
    assert told(done.output, "checked", 1)


def test_a_body_acts_by_name(tmp_path):
    assert train(saved(tmp_path)).exit_code == 0
    run = tmp_path / "run"
    agent = Agent(load_policy(run, body="long"))
    agent.reset()
    assert agent.act({"state": np.zeros(3, np.float32), "goal": np.zeros(2, np.float32)}).shape == (3,)
    with pytest.raises(ValueError, match=naming("state", 3, 2)):
        agent.act({"state": np.zeros(2, np.float32), "goal": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match=naming("'tall'", "'long', 'short'", "load_policy")):
        load_policy(run, body="tall")
    with pytest.raises(ValueError, match=naming("'long', 'short'", "no body", "load_policy")):
        load_policy(run)
    with pytest.raises(ValueError, match=naming("'long', 'short'", "no body")):
        Agent(DiffusionPolicy.from_pretrained(run))
    with pytest.raises(ValueError, match=naming("'long', 'short'", "no body")):
        DiffusionPolicy.from_pretrained(run).sample({}, Randomness.from_counts(0, "test", torch.arange(1)))
    assert train(write(tmp_path / "run", train__steps=2, tracker__data_path=str(tmp_path / "plain"))).exit_code == 0
    with pytest.raises(ValueError, match=naming("one robot", "'long'", "body")):
        load_policy(tmp_path / "plain", body="long")


def test_the_policy_of_a_body_is_saved_and_trained_on(tmp_path):
    assert train(saved(tmp_path)).exit_code == 0
    policy = load_policy(tmp_path / "run", body="long")
    policy.save_pretrained(tmp_path / "long")
    again = load_policy(tmp_path / "long")
    assert_equal(dict(again.state_dict()), dict(policy.state_dict()))
    assert load_policy(tmp_path / "long", body="long").bodies == ("long",)
    with pytest.raises(ValueError, match=naming("'long'", "'short'")):
        load_policy(tmp_path / "long", body="short")

    config = bodies_run(tmp_path, task__type="body_policy", task__body="long", task__encoders={}, train__steps=0)
    sets = config["data"]["sets"]
    config["data"] = {**sets["long"], "split": config["data"]["split"], "batch_size": 8}
    config["train"]["init_from"] = str(tmp_path / "run")
    path = tmp_path / "tuned.json"
    for setting in ("long", "tall"):
        config["task"]["body"], config["train"]["steps"] = setting, 3
        config["tracker"]["data_path"] = str(tmp_path / f"tuned_{setting}")
        path.write_text(json.dumps(config))
        outcome = train(path, "--check") if setting == "tall" else train(path)
        if setting == "tall":
            assert told(outcome.output, "train.init_from", "'tall'", "'long', 'short'")
            assert outcome.exit_code != 0
        else:
            assert outcome.exit_code == 0, outcome.output
            assert told(outcome.output, "initialised", str(tmp_path / "run"))


def test_a_body_begins_with_the_weights_of_the_network_for_many(tmp_path):
    assert train(saved(tmp_path)).exit_code == 0
    base = load_policy(tmp_path / "run", body="long")
    config = bodies_run(tmp_path, task__type="body_policy", task__body="long", task__encoders={})
    config["data"] = {**config["data"]["sets"]["long"], "split": config["data"]["split"], "batch_size": 8}
    config["train"] |= {
        "init_from": str(tmp_path / "run"),
        "steps": 1,
        "ema": {"ema": {"type": "constant", "decay": 1}},
    }
    config["tracker"]["data_path"] = str(tmp_path / "tuned")
    (tmp_path / "tuned.json").write_text(json.dumps(config))
    assert train(tmp_path / "tuned.json").exit_code == 0
    assert_equal(dict(load_policy(tmp_path / "tuned").state_dict()), dict(base.state_dict()))


def test_an_interrupted_run_goes_on_exactly(tmp_path):
    whole, broken = saved(tmp_path / "whole", train__steps=12), saved(tmp_path / "broken", train__steps=12)
    assert train(whole).exit_code == 0
    assert train_and_die(broken, "step", 8) == -9
    assert train(broken).exit_code == 0
    assert_equal(state(tmp_path / "broken" / "run"), state(tmp_path / "whole" / "run"))


def test_two_ranks_train_as_one(tmp_path, run_ranks):
    timesteps = {"type": "loss_second_moment", "history": 2}  # which learn from the losses of all ranks
    changes = {"task__diffusion__timesteps": timesteps, "task__diffusion__schedule__steps": 5, "train__steps": 12}
    one = bodies_run(tmp_path / "one", **changes, data__device="cpu")
    experiment(one).run()
    two = bodies_run(tmp_path / "two", **changes)
    two["data"]["batch_size"] = 2
    two["train"]["accumulation"] = 2  # micro-batches of two samples are often of one body
    source = "import json, sys; from tests.tiny import experiment; experiment(json.loads(sys.argv[1])).run()"
    run_ranks(source, 2, json.dumps(two))
    weights = [load_policy(tmp_path / place / "run@latest", body="long").state_dict() for place in ("one", "two")]
    for key, value in weights[0].items():
        torch.testing.assert_close(weights[1][key], value, rtol=1e-4, atol=1e-6)


def test_a_body_has_all_settings_of_the_network(tmp_path):
    changes = {**VARIANTS[-1], "task__cond_dropout": {"state": 0.5, "goal": 0.1}, "task__embedding_dim": 5}
    changes["task__normalizer"] = {"goal": {"type": "gaussian"}, "action": {"type": "quantile"}}
    config = TrainConfig.from_json(json.dumps(bodies_run(tmp_path, **changes)))
    spec = config.open_data().spec
    of_one_key = {"encoders": {"state"}, "cond_dropout": {"state", "goal"}, "normalizer": {"action", "goal"}}
    record = config.task.of_body("long", spec.bodies["long"])
    for field in type(record).model_fields:
        expected = getattr(config.task, field, None)
        if field in of_one_key:
            expected = {key: value for key, value in expected.items() if key in of_one_key[field]}
        if field not in ("type", "body"):
            assert getattr(record, field) == expected, field
    assert config.task.create(spec).encoder.cond_shape == (2, 4 + 2 + 8 + 5)  # state, goal, camera, body


def test_cameras_that_share_an_encoder_do_so_in_a_body_that_has_one_of_them(tmp_path):
    sets = bodies_run(tmp_path)["data"]["sets"]
    sets["long"]["episodes"]["path"], sets["long"]["obs"] = sets["short"]["episodes"]["path"], {}
    sets["long"]["images"] = {"side": sets["short"]["images"]["front"]}
    model, data = built(tmp_path, data__sets=sets, task__shared_encoders={"side": "front"})
    for name in JOINTS:
        batch = of_body(batch_of(data), data, name)
        alone = model.body(name).train()
        assert alone.encoder.keys == (["side"] if name == "long" else ["front", "state"])
        expected = alone(narrowed(batch, alone.spec), random_of(batch)).per_sample
        torch.testing.assert_close(model.train()(batch, random_of(batch)).per_sample, expected, rtol=1e-5, atol=1e-6)


def test_faults_name_the_body_and_the_setting(tmp_path):
    def fault(**changes):
        config = TrainConfig.from_json(json.dumps(bodies_run(tmp_path, **changes)))
        with pytest.raises(ConfigError) as error:
            config.task.create(config.open_data().spec)
        return str(error.value)

    assert told(fault(task__relative_to="goal"), "task.relative_to", "'goal'", "'state', 'front'")
    assert told(fault(task__encoders__fron={"type": "state"}), "task.encoders", "'fron'", "'front'")
    assert told(fault(task__encoders__state={"type": "angle"}), "encoders.state", "'angle'", "'short'", "'long'")
    plain = TrainConfig.from_json(json.dumps(tiny(tmp_path)))
    record = TrainConfig.from_json(json.dumps(bodies_run(tmp_path))).task
    with pytest.raises(ConfigError, match=naming("data.type", "bodies")):
        record.create(plain.open_data().spec)
