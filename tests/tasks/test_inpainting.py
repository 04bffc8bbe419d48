"""An inpainting policy sees its first observations as they are, predicts the rest, and does all that a policy does."""

import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior import Agent, load_policy, load_prior
from dp_prior.config import ConfigError
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.run.evaluate import evaluate_checkpoint
from dp_prior.tasks.inpainting import InpaintingPolicy, InpaintingPolicyConfig, JoinedNormalizer
from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.normalizer import Identity, Normalizer, Statistics
from dp_prior.tensors.randomness import Randomness
from tests.messages import naming
from tests.test_resume import assert_same_run
from tests.tiny import experiment, tiny, train, train_and_die, write

INPAINTING = {
    "task__type": "inpainting_policy",
    "task__diffusion__objective": {"type": "x0"},  # whose samples do not all end at the clip when untrained
}
TOY = {"type": "toy", "n_envs": 2, "max_steps": 5}
EVERY = {"every": {"steps": 7}}
EVALUATE = [
    {"type": "loss", "models": ["ema", "online"], **EVERY},
    {"type": "likelihood", "max_samples": 8, **EVERY},
    {"type": "action_error", "eval_timesteps": [2], **EVERY},
    {"type": "rollout", "env": TOY, "n_episodes": 2, "videos": 0, "warm_start": True, **EVERY},
]
BACKBONES = {
    "unet1d": {"down_dims": [8, 16], "n_groups": 4, "step_embed_dim": 8},
    "transformer": {"embed_dim": 16, "n_layers": 1, "n_heads": 2},
    "dit": {"embed_dim": 16, "n_layers": 1, "n_heads": 2},
    "mlp": {"hidden_dim": 16, "n_blocks": 1, "step_embed_dim": 8},
}


def rows(n):
    return Randomness.from_counts(0, "test", torch.arange(n))


def opened(place, **change):
    """An untrained policy, and a batch of what it learns from."""
    one = experiment(tiny(place, **{**INPAINTING, **change}))
    return one.parts.model.eval(), one.parts.data.train.fetch(torch.arange(5))


def test_samples_have_the_observations_of_the_whole_horizon_and_are_otherwise_those_of_a_policy(tmp_path):
    one, other = experiment(tiny(tmp_path, **INPAINTING)).parts.data, experiment(tiny(tmp_path)).parts.data
    ids = torch.arange(len(other.train))
    mine, theirs = one.train.fetch(ids), other.train.fetch(ids)
    assert len(one.train) == len(other.train) and one.fingerprint == other.fingerprint
    assert torch.equal(mine.x, theirs.x) and torch.equal(mine.mask, theirs.mask)
    for key, value in mine.cond.items():
        assert value.shape[1] == 4 and torch.equal(value[:, :2], theirs.cond[key])
        next_window = torch.nonzero((mine.mask[:-1].all(1)) & (mine.mask[1:].all(1))).flatten()
        assert torch.equal(value[next_window][:, 1:], value[next_window + 1][:, :-1])


def test_trajectory_is_actions_and_observations_each_normalised_by_its_own(tmp_path):
    policy, batch = opened(tmp_path, task__normalizer={"goal": {"type": "gaussian"}, "action": {"type": "identity"}})
    inside = policy.diffused(batch.x, batch.cond)
    parts = {"x": batch.x, "agent_pos": batch.cond["agent_pos"], "goal": batch.cond["goal"]}
    of_key = partial(Normalizer.normalize, policy.normalizer)
    by_key = [of_key(key, value) for key, value in parts.items()]
    assert torch.equal(inside, torch.cat(by_key, dim=-1)) and inside.shape[1:] == policy.x_shape == (4, 6)
    torch.testing.assert_close(policy.normalizer.unnormalize("x", inside), torch.cat(list(parts.values()), dim=-1))
    assert torch.equal(policy.decode_x(policy.encode_x(batch.x, batch.cond), batch.cond), batch.x)
    for end, joined in zip(("min", "max"), policy.normalizer.bounds("x"), strict=True):
        ends = [of_key(key, policy.normalizer._buffers[f"{key}/{end}"]) for key in parts]
        assert torch.equal(joined, torch.cat(ends))


def test_bounds_of_an_observation_that_is_one_number():
    normalizer = JoinedNormalizer({"x": (2,), "force": (), "pose": (2, 2)}, {"force": Identity()})
    values = {"x": torch.tensor([[0.0, 1], [2, 5]]), "force": torch.tensor([3.0, 4]), "pose": torch.rand(2, 2, 2)}
    normalizer.fit({key: Statistics.of(value.numpy()) for key, value in values.items()})
    for end, found in zip((0, 1), normalizer.bounds("x"), strict=True):
        torch.testing.assert_close(found, torch.tensor([2.0 * end - 1] * 2 + [3.0 + end] + [2.0 * end - 1] * 4))


def test_future_observations_are_predicted_never_read(tmp_path):
    policy, batch = opened(tmp_path)
    chunk = policy.predict(batch.cond, rows(5))
    assert chunk.shape == batch.x.shape
    changed = {
        key: torch.cat([value[:, :2], torch.full_like(value[:, 2:], 9.0)], 1) for key, value in batch.cond.items()
    }
    seen = {key: value[:, :2] for key, value in batch.cond.items()}
    assert torch.equal(policy.predict(changed, rows(5)), chunk) and torch.equal(policy.predict(seen, rows(5)), chunk)
    for key in seen:
        assert not torch.equal(policy.predict({**seen, key: seen[key] + 0.1}, rows(5)), chunk)


@pytest.mark.parametrize("relative_to", [None, "agent_pos"])
def test_network_sees_the_same_known_observations_in_training_and_in_sampling(relative_to, tmp_path, monkeypatch):
    policy, batch = opened(tmp_path, task__relative_to=relative_to)
    expected, seen = policy.diffused(batch.x, batch.cond)[:, :2, 2:], []
    backbone = policy.backbone.forward

    def spy(x_t, t, cond):
        assert cond.numel() == 0
        seen.append(x_t)
        return backbone(x_t, t, cond)

    monkeypatch.setattr(policy.backbone, "forward", spy)
    policy(batch, rows(5))
    policy.predict({key: value[:, :2] for key, value in batch.cond.items()}, rows(5))
    assert len(seen) == 3  # a loss and two steps
    for x_t in seen:
        assert torch.equal(x_t[:, :2, 2:], expected)
        assert not torch.isclose(x_t[:, 2:, 2:], policy.diffused(batch.x, batch.cond)[:, 2:, 2:]).all()


def test_observations_that_are_known_cost_nothing_and_those_to_come_do(tmp_path):
    """A network that answers with the truth but for some places."""
    policy, batch = opened(tmp_path)
    truth = policy.diffused(batch.x, batch.cond)

    def loss_off_at(*where):
        answer = truth.clone()
        answer[(slice(None), *where)] += 1.0
        policy.backbone.forward = lambda x_t, t, cond: answer
        return policy(batch, rows(5)).total.item()

    assert loss_off_at(slice(0, 2), slice(2, None)) == 0
    assert loss_off_at(slice(2, None), slice(2, None)) > 0 and loss_off_at(slice(0, 2), slice(0, 2)) > 0


def test_relative_actions_are_offsets_from_the_newest_observation_that_is_seen(tmp_path):
    policy, batch = opened(tmp_path, task__relative_to="agent_pos")
    offsets = batch.x - batch.cond["agent_pos"][:, 1:2]
    joined = policy.encode_x(batch.x, batch.cond)
    assert torch.equal(joined[..., :2], offsets)
    torch.testing.assert_close(policy.decode_x(joined, batch.cond), batch.x)
    other = experiment(tiny(tmp_path, task__relative_to="agent_pos")).parts.model
    assert torch.equal(policy.normalizer._buffers["x/scale"], other.normalizer._buffers["x/scale"])


def test_known_actions_are_in_the_chunk_exactly(tmp_path):
    policy, batch = opened(tmp_path)
    is_known = torch.tensor([True, False, True, False])[:, None]
    values = torch.where(is_known, batch.x, float("nan"))
    chunk = policy.predict(batch.cond, rows(5), known=(values, is_known))
    assert torch.equal(chunk[:, [0, 2]], batch.x[:, [0, 2]]) and torch.isfinite(chunk).all()
    assert not torch.equal(chunk[:, [1, 3]], policy.predict(batch.cond, rows(5))[:, [1, 3]])


def test_agent_gives_it_the_newest_observations(tmp_path):
    policy, _ = opened(tmp_path)
    random = np.random.default_rng(0)
    seen = [{key: random.normal(size=(3, 2)).astype("float32") for key in ("agent_pos", "goal")} for _ in range(5)]
    plain, warm = VectorAgent(policy), VectorAgent(policy, warm_start=True)
    for agent in (plain, warm):
        agent.reset(range(3))
    acted = [(plain.act(obs), warm.act(obs)) for obs in seen]
    for step in (0, 2, 4):
        obs = {key: torch.tensor(np.stack([seen[max(step - 1, 0)][key], seen[step][key]], 1)) for key in seen[0]}
        noise = Randomness.from_counts(0, "agent", torch.arange(3)).stream("chunk", step)
        assert np.array_equal(acted[step][0], policy.predict(obs, noise)[:, 1].numpy())
    assert all(np.isfinite(one).all() for pair in acted for one in pair)
    assert np.array_equal(*acted[0]) and not np.array_equal(*acted[2])
    Agent(policy).act({key: value[0] for key, value in seen[0].items()})


@pytest.mark.parametrize("self_condition", [0.0, 1.0])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_backbone_learns_without_a_condition(backbone, self_condition, tmp_path, recwarn):
    policy, batch = opened(
        tmp_path,
        task__backbone={"type": backbone, **BACKBONES[backbone]},
        task__diffusion__self_condition=self_condition,
        task__diffusion__variance={"type": "learned_range"},
    )
    policy.train()(batch, rows(5)).total.backward()
    idle = [name for name, weight in policy.named_parameters() if weight.grad is None]
    assert not idle and not [warning for warning in recwarn if "zero-element" in str(warning.message)]
    assert policy.eval().predict(batch.cond, rows(5)).shape == (5, 4, 2)


def test_what_makes_no_sense_is_refused_by_name(tmp_path):
    local = {"type": "unet1d_local", **BACKBONES["unet1d"]}
    with pytest.raises(ConfigError, match=naming("'unet1d_local'", "task", "'unet1d'")):
        opened(tmp_path, task__backbone=local)
    with pytest.raises(ConfigError, match=naming("diffusion.guidance", "task", "'policy'")):
        opened(tmp_path, task__diffusion__guidance={"scale": 2.0})
    for name, value in (("encoders", {"goal": {"type": "state"}}), ("cond_dropout", {"goal": 0.1})):
        with pytest.raises(ConfigError, match=naming("config", f"task.{name}")):
            opened(tmp_path, **{f"task__{name}": value})
    with pytest.raises(ConfigError, match=naming("task.normalizer", "['gaol']", "['action', 'agent_pos', 'goal']")):
        opened(tmp_path, task__normalizer={"gaol": {"type": "limits"}})
    with pytest.raises(ConfigError, match=naming("task.relative_to", "'pose'")):
        opened(tmp_path, task__relative_to="pose")


CHANGES = {
    "horizon": 6,
    "n_obs_steps": 1,
    "n_action_steps": 1,
    "relative_to": "agent_pos",
    "normalizer": {"goal": {"type": "gaussian"}},
    "backbone": {"type": "unet1d", **BACKBONES["unet1d"]},
    "diffusion": {"schedule": {"type": "cosine", "steps": 20}},
    "sampler": {"type": "ddim", "steps": 5},
}


@pytest.mark.parametrize("field", sorted(set(InpaintingPolicyConfig.model_fields) - {"type"}))
def test_every_field_changes_the_policy(field, tmp_path):
    def acts(**change):
        policy, batch = opened(tmp_path, **change)
        return policy.predict(batch.cond, rows(5)).tolist(), policy.n_action_steps

    assert acts() != acts(**{f"task__{field}": CHANGES[field]})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("inpainting")
    done = train(write(place, **INPAINTING, evaluate=EVALUATE))
    assert done.exit_code == 0 and "from dp_prior import load_policy" in done.output
    return place / "run"


@pytest.mark.slow
@pytest.mark.parametrize(("moment", "count"), [("step", 13), ("file of a checkpoint", 9)])
def test_killed_run_started_again_equals_the_uninterrupted_one(moment, count, tmp_path, uninterrupted):
    config = write(tmp_path, **INPAINTING, evaluate=EVALUATE)
    assert train_and_die(config, moment, count) == -signal.SIGKILL
    assert train(config).exit_code == 0
    assert_same_run(tmp_path / "run", uninterrupted)


@pytest.mark.slow
def test_loaded_policy_is_an_inpainting_policy(uninterrupted, tmp_path):
    policy = load_policy(uninterrupted)
    obs = {key: torch.randn(3, 2, 2) for key in ("agent_pos", "goal")}
    chunk = policy.predict(obs, rows(3))
    assert isinstance(policy, InpaintingPolicy)
    for other in (DiffusionPolicy, InpaintingPolicy):
        assert torch.equal(other.from_pretrained(uninterrupted).predict(obs, rows(3)), chunk)
    saved = policy.save_pretrained(tmp_path / "saved")
    assert torch.equal(load_policy(saved).predict(obs, rows(3)), chunk)
    assert torch.allclose(load_policy(uninterrupted, dtype=torch.bfloat16).predict(obs, rows(3)), chunk, atol=0.2)
    assert not torch.equal(load_policy(uninterrupted, weights="slow").predict(obs, rows(3)), chunk)


def test_model_of_another_task_is_refused_with_what_loads_it(uninterrupted, tmp_path):
    with pytest.raises(ValueError, match=naming("inpainting_policy", "prior", "load_policy")):
        load_prior(uninterrupted)
    plain = experiment(tiny(tmp_path)).parts.model.save_pretrained(tmp_path / "plain")
    with pytest.raises(ValueError, match=naming("policy", "inpainting_policy", "load_policy")):
        InpaintingPolicy.from_pretrained(plain)
    assert type(load_policy(plain)) is DiffusionPolicy


def test_evaluations_of_a_checkpoint_repeat_its_numbers(uninterrupted):
    found = evaluate_checkpoint(str(uninterrupted))
    stored = [(now, before) for _, now, before in found if before is not None]
    assert len(stored) > 10 and all(now == before for now, before in stored)


def test_check_does_everything_once(tmp_path):
    done = train(write(tmp_path, **INPAINTING, evaluate=EVALUATE), "--check")
    assert done.exit_code == 0 and "checked" in done.output


@pytest.mark.slow
def test_it_learns_the_toy(tmp_path):
    backbone = {"type": "mlp", "hidden_dim": 64, "n_blocks": 2, "step_embed_dim": 16}

    def error(steps):
        """Mean squared error of actions on held-out samples; the square is 2 wide."""
        change = {"task__backbone": backbone, "data__batch_size": 32, "train__lr": {"type": "constant", "peak": 3e-3}}
        place = {"tracker__data_path": str(tmp_path / str(steps)), "train__save_every": {"steps": 1000}}
        one = experiment(tiny(tmp_path, **INPAINTING, evaluate=[], train__steps=steps, **change, **place))
        one.run()
        batch = one.parts.data.val.fetch(torch.arange(len(one.parts.data.val)))
        chunk = one.parts.model.eval().predict(batch.cond, Randomness.from_counts(0, "test", batch.ids))
        return ((chunk - batch.x) ** 2).mean().item()

    assert error(200) < 0.5 * error(1)
