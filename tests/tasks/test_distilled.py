"""A distilled policy learns where many steps of its teacher lead, resumes exactly, and acts without the teacher."""

import copy
import json
import math
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from dp_prior import load_policy
from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import DDIM
from dp_prior.run.changes import kind_of
from dp_prior.run.evaluate import evaluate_checkpoint
from dp_prior.tasks.distilled import DistilledPolicy, DistilledPolicyConfig, _misfits
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.randomness import Randomness
from dp_prior_client.onboard.scene import Scene
from tests.messages import naming, told
from tests.tasks.test_policy import statistics
from tests.test_elastic import assert_one_run, go
from tests.test_resume import assert_same_run
from tests.tiny import experiment, rows, state, tiny, train, train_and_die, write

EVALUATE = [
    {"type": "loss", "every": {"steps": 4}},
    {"type": "action_error", "eval_timesteps": [1, 2], "every": {"steps": 4}},
]


def distilled(teacher, **change):
    """Changes that make `tiny` a policy of two steps, distilled from a run in 4 steps of 10 timesteps."""
    return {
        "task__type": "distilled_policy",
        "task__teacher": str(teacher),
        "task__teacher_steps": 4,
        "task__diffusion__timesteps": {"type": "listed", "listed": [4, 9]},
        "task__sampler": {"type": "ddim", "steps": 2, "eta": 1.0},
        "train__init_from": str(teacher),
        "evaluate": EVALUATE,
        "train__monitor": {"metric": "validation/ema/loss"},
        "train__steps": 9,
        **change,
    }


@pytest.fixture
def teacher(trained_policy):
    """A trained tiny policy."""
    return trained_policy


@pytest.fixture(scope="module")
def uninterrupted(shared_run, tmp_path_factory):
    place = tmp_path_factory.mktemp("distilled")
    for teacher in shared_run("policy"):
        assert train(write(place, **distilled(teacher))).exit_code == 0
    return place / "run"


class GaussianDenoiser(nn.Module):
    """E[x_0 | x_t] of normal data."""

    def __init__(self, table, mean, std):
        super().__init__()
        self.table, self.mean, self.std = table, mean, std

    def forward(self, x_t, t, cond):
        alpha, sigma = self.table.levels[int(t[0])]
        gain = alpha * self.std**2 / (alpha**2 * self.std**2 + sigma**2)
        return self.mean + gain * (x_t - alpha * self.mean)


class Lines(nn.Module):
    """A line for each timestep."""

    def __init__(self, steps):
        super().__init__()
        self.slope, self.offset = nn.Parameter(torch.ones(steps)), nn.Parameter(torch.zeros(steps))

    def forward(self, x_t, t, cond):
        return self.slope[t].view(-1, 1, 1) * x_t + self.offset[t].view(-1, 1, 1)


def test_a_teacher_that_does_not_know_what_its_cameras_showed_has_the_shapes_of_one_that_does():
    spec = Spec(x_shape=(4, 1), cond_shapes={"state": (1, 1)})
    fields = {"horizon": 4, "n_obs_steps": 1, "n_action_steps": 1, "backbone": {"type": "mlp", "hidden_dim": 8}}
    create = PolicyConfig.from_json(json.dumps(fields)).create
    teacher, student = create(spec), create(spec.model_copy(update={"scenes": {"state": Scene((4, 6))}}))
    assert not any(told(line, "shapes") for line in _misfits(teacher, student, DDIM(steps=2)))
    student.spec = spec.model_copy(update={"fps": 5.0})
    assert any(told(line, "shapes") for line in _misfits(teacher, student, DDIM(steps=2)))


@pytest.mark.parametrize("steps", [4, 20, 80])
def test_distilled_map_of_a_gaussian_approaches_that_of_the_ode(steps):
    """For normal data the ODE keeps every sample at its quantile; DDIM's error is of first order in its step."""
    mean, std, listed, tolerance = 0.4, 0.3, (39, 79), 1.1 / steps
    fields = {"horizon": 4, "n_obs_steps": 1, "n_action_steps": 1, "backbone": {"type": "mlp", "hidden_dim": 8}}
    fields["diffusion"] = {"schedule": {"type": "flow", "steps": 80}, "objective": {"type": "x0"}, "clip": None}
    spec = Spec(x_shape=(4, 1), cond_shapes={"state": (1, 1)})
    taught = {"timesteps": {"type": "listed", "listed": list(listed)}}
    more = {"type": "distilled_policy", "teacher": "none", "teacher_steps": steps}
    more |= {"diffusion": fields["diffusion"] | taught, "sampler": {"type": "ddim", "steps": 2}}
    policy = PolicyConfig.from_json(json.dumps(fields)).create(spec)
    student = DistilledPolicyConfig.from_json(json.dumps(fields | more)).create(spec)
    for model in (policy, student):
        ends = torch.tensor([[-1.0], [1.0]])
        model.fit({"x": statistics(ends), "state": statistics(ends)}, None)
    policy.backbone, student.backbone = GaussianDenoiser(policy.process.table, mean, std), Lines(80)
    student.teacher = SimpleNamespace(sampler=DDIM(steps=steps), policy=lambda model, device: policy)

    x = mean + std * torch.randn(512, 4, 1, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(512)
    batch = Batch(x=x, cond={"state": torch.zeros(512, 1, 1)}, mask=None, ids=ids, positions=ids)
    random = Randomness.from_counts(0, "test", ids)
    optimizer = torch.optim.LBFGS(student.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = student(batch, random).total
        loss.backward()
        return loss

    assert optimizer.step(closure) > 100 * closure()
    for t in listed:
        alpha, sigma = policy.process.table.levels[t]
        slope = std / math.sqrt(alpha**2 * std**2 + sigma**2)
        assert student.backbone.slope[t].item() == pytest.approx(slope, abs=tolerance)
        assert student.backbone.offset[t].item() == pytest.approx(mean - slope * alpha * mean, abs=tolerance)


def built(place, teacher, **change):
    """A student with the teacher's weights, and a batch."""
    one = experiment(tiny(place, **distilled(teacher, **change)))
    one.parts.model.load_state_dict(load_policy(teacher).state_dict())
    return one.parts.model.eval(), one.parts.data.train.fetch(torch.arange(16))


def test_target_is_the_end_of_the_teachers_trajectory_from_the_same_noisy_chunk(teacher, tmp_path):
    student, batch = built(tmp_path, teacher)
    random = Randomness.from_counts(0, "test", batch.ids)
    end, eps = student.training_target(batch, random)
    t = student(batch, random).t
    assert set(t.tolist()) == {4, 9}
    alpha, sigma = student.process.levels[:2, t, None, None]
    drawn = random.stream("noise").normal(*end.shape[1:])
    x_t = alpha * student.diffused(batch.x, batch.cond) + sigma * drawn
    torch.testing.assert_close(alpha * end + sigma * eps, x_t, rtol=0, atol=1e-5)
    policy = load_policy(teacher)
    for start, path in ((9, (9, 7, 4, 1)), (4, (4, 1))):
        sampler = DDIM(steps=4)
        *_, (alone, _) = sampler.progressive(policy.denoiser(batch.cond), x_t, policy.process.table, random, path)
        assert torch.equal(end[t == start], alone[t == start])


def test_teacher_is_shared_by_copies_and_not_saved(teacher, tmp_path):
    student, batch = built(tmp_path, teacher)
    student(batch, Randomness.from_counts(0, "test", batch.ids))
    assert copy.deepcopy(student).teacher is student.teacher and student.teacher._policy is not None
    assert student.state_dict().keys() == load_policy(teacher).state_dict().keys()
    assert not any(parameter.requires_grad for parameter in student.teacher._policy.parameters())


@pytest.mark.slow
def test_killed_run_started_again_equals_the_uninterrupted_one(teacher, tmp_path, uninterrupted):
    config = write(tmp_path, **distilled(teacher))
    assert train_and_die(config, "step", 7) == -signal.SIGKILL
    assert train(config).exit_code == 0
    assert_same_run(tmp_path / "run", uninterrupted)


MIP = {
    "task__diffusion": {
        "schedule": {"type": "flow", "steps": 2, "scale": 9},
        "objective": {"type": "x0"},
        "timesteps": {"type": "uniform", "stratified": True},
        "start": "zeros",
    }
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["distilled", "MIP"])
def test_two_ranks_and_two_micro_batches_are_one_run(policy, teacher, tmp_path, run_ranks):
    change = {**(MIP if policy == "MIP" else distilled(teacher)), "evaluate": [], "train__steps": 6}
    for shape in ((1, 8, 1), (2, 2, 2)):
        (tmp_path / str(shape[0])).mkdir()
        go(tmp_path / str(shape[0]), shape, run_ranks, **change)
    assert_one_run(tmp_path / "2" / "run", tmp_path / "1" / "run")


@pytest.mark.slow
def test_acts_and_is_evaluated_without_its_teacher(teacher, tmp_path):
    lent = shutil.copytree(teacher, tmp_path / "lent")
    experiment(tiny(tmp_path, **distilled(lent, evaluate=EVALUATE[1:], train__monitor={
        "metric": "action_error/ema/mse[steps=2]"}))).run()  # fmt: skip
    shutil.rmtree(lent)
    policy = load_policy(tmp_path / "run")
    assert isinstance(policy, DistilledPolicy)
    obs = {key: torch.zeros(3, 2, 2) for key in ("agent_pos", "goal")}
    assert policy.predict(obs, Randomness.from_counts(0, "test", torch.arange(3))).shape == (3, 4, 2)
    assert all(now == stored for _, now, stored in evaluate_checkpoint(str(tmp_path / "run")))


def test_every_field_of_its_own_matters(teacher, tmp_path):
    assert set(DistilledPolicyConfig.model_fields) - set(PolicyConfig.model_fields) == {
        "teacher", "teacher_steps", "teacher_sha256"}  # fmt: skip
    for name in ("same", "steps", "other", "taught"):
        (tmp_path / name).mkdir()
    experiment(tiny(tmp_path / "other", evaluate=[], seed=1, train__steps=2)).run()

    def loss(name, **change):
        short = {"task__teacher": str(teacher), "evaluate": [], "train__steps": 2, **change}
        experiment(tiny(tmp_path / name, **distilled(teacher, **short))).run()
        return rows(tmp_path / name / "run")[-1]["train/loss"]

    same = loss("same")
    assert loss("steps", task__teacher_steps=10) != same
    assert loss("taught", task__teacher=str(tmp_path / "other" / "run")) != same
    assert (kind_of("task.teacher"), kind_of("task.teacher_sha256")) == ("harmless", "architecture")


def test_resuming_with_a_teacher_that_has_changed_is_refused(teacher, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        experiment(tiny(tmp_path / name, evaluate=[], seed=len(name), train__steps=2)).run()
    where = tmp_path / "link"
    where.symlink_to(tmp_path / "first" / "run")
    experiment(tiny(tmp_path, **distilled(where, train__steps=3, evaluate=[]))).run()
    where.unlink()
    where.symlink_to(tmp_path / "second" / "run")
    with pytest.raises(ConfigError, match=naming("task.teacher_sha256", "(architecture)")):
        experiment(tiny(tmp_path, **distilled(where, train__steps=6))).run()
    known = state(tmp_path / "run")["progress"] and load_policy(tmp_path / "run").record.teacher_sha256
    with pytest.raises(ConfigError, match=naming("task.teacher", f"'{where}'")):
        experiment(tiny(tmp_path, **distilled(where, train__steps=6, task__teacher_sha256=known))).run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task__diffusion__timesteps": {"type": "uniform"}}, ('"listed": [4, 9]', "diffusion.timesteps")),
        ({"task__diffusion__timesteps__listed": [4, 5, 9]}, ("[5]", 4)),
        ({"task__prefix": {"max_delay": 1}}, ("prefix", "remove")),
        ({"task__diffusion__timesteps__listed": [4]}, ("[9, 4]", "[9]")),
        ({"task__diffusion__timesteps__listed": [4, 10]}, (10, 9)),
        ({"task__sampler__steps": 4}, ("[1, 7]", "diffusion.timesteps", "[4, 9]")),
        ({"task__teacher_steps": 11}, ("teacher_steps", "11 steps", 10)),
        ({"task__diffusion__draws": 2}, ("diffusion.draws", "task")),
        ({"task__diffusion__weighting": {"type": "min_snr"}}, ("diffusion.weighting", "task")),
        ({"task__diffusion__guidance": {"scale": 2.0}}, ("diffusion.guidance", "task")),
        ({"task__cond_dropout": {"goal": 0.1}}, ("config", "task.cond_dropout")),
        ({"evaluate": [{"type": "action_error", "eval_timesteps": [4]}]}, ("evaluate.0.eval_timesteps", 4, "[1, 7]")),
        ({"evaluate": [{"type": "likelihood"}]}, ("evaluate.0.type", "'likelihood'")),
    ],
)  # fmt: skip
def test_settings_without_meaning_are_refused(change, message, teacher, tmp_path):
    with pytest.raises(ConfigError, match=naming(*message)):
        experiment(tiny(tmp_path, **{**distilled(teacher), **change}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"task__teacher": "nowhere"},
            ("task.teacher", "nowhere"),
        ),
        ({"task__horizon": 5, "train__init_from": None}, ("task.teacher", "x_shape=(4, 2)", "x_shape=(5, 2)")),
        (
            {"task__diffusion__schedule__beta_max": 0.9},
            ("task.teacher", "diffusion.schedule", "beta_max=0.999", "beta_max=0.9"),
        ),
        (
            {"task__relative_to": "agent_pos", "train__init_from": None},
            ("task.teacher", "relative_to None", "'agent_pos'"),
        ),
        (
            {"task__normalizer": {"action": {"type": "gaussian"}}, "train__init_from": None},
            ("task.teacher", "train.init_from"),
        ),
    ],
)
def test_teacher_that_cannot_teach_is_refused(change, message, teacher, tmp_path):
    with pytest.raises(ConfigError, match=naming(*message)):
        experiment(tiny(tmp_path, **{**distilled(teacher), **change})).run()


@pytest.mark.parametrize("field", [{"start": "zeros"}, {"self_condition": 0.5}], ids=str)
def test_teacher_without_a_map_from_noise_is_refused(field, tmp_path):
    flow = {"objective": {"type": "x0"}, "schedule": {"type": "flow", "steps": 10}}
    changes = {f"task__diffusion__{name}": value for name, value in (flow | field).items()}
    experiment(tiny(tmp_path, evaluate=[], train__steps=1, tracker__data_path=str(tmp_path / "it"), **changes)).run()
    changes = {f"task__diffusion__{name}": value for name, value in flow.items()}
    with pytest.raises(ConfigError, match=naming("task.teacher", f"diffusion.{next(iter(field))}")):
        experiment(tiny(tmp_path, **distilled(tmp_path / "it", train__init_from=None, **changes))).run()


def test_distilled_teacher_is_refused(uninterrupted, tmp_path):
    with pytest.raises(ConfigError, match=naming("task.teacher_steps", "[1, 7]")):
        experiment(tiny(tmp_path, **distilled(uninterrupted))).run()
