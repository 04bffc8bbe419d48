"""--check tries everything once, says where a run would fail, and leaves nothing."""

import errno
import json
import os
import re
import tempfile

import pytest
import torch

from dp_prior.checkpoints.clock import Progress
from dp_prior.diffusion.sampler import DDIM, DDPM, UniPC
from dp_prior.evaluation import action_error, likelihood, loss
from dp_prior.evaluation.rollouts import Rollouts
from dp_prior.evaluation.samples import dealt, shared_batches
from dp_prior.networks.backbones.mlp import MLP
from dp_prior.run.check import time_of_training, timed_steps
from tests.messages import told
from tests.run.test_warnings import config_of, trainer_of
from tests.tiny import train, write

TYPES = {"ddpm": DDPM, "ddim": DDIM, "unipc": UniPC}

ROLLOUT = {"type": "rollout", "env": {"type": "toy", "n_envs": 2, "max_steps": 4}, "n_episodes": 2, "videos": 0}
MEASURED = [
    {"type": "loss", "every": {"steps": 3}},
    {"type": "action_error", "every": {"steps": 3}, "eval_timesteps": [2], "models": ["ema", "online"]},
    {**ROLLOUT, "every": {"steps": 3}},
]


def test_check_does_everything_once_prints_the_plan_and_leaves_nothing(tmp_path, monkeypatch):
    elsewhere = tmp_path / "temporary"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    config = write(tmp_path, description="Tiny.", test=[{**ROLLOUT, "name": "test"}])
    before = sorted(tmp_path.rglob("*"))
    checked = train(config, "--check")
    assert checked.exit_code == 0
    # torch makes itself a cache in the temporary directory when a process first uses it
    left = [path for path in sorted(tmp_path.rglob("*")) if "torchinductor" not in path.name]
    assert left == before
    plan = {line[2:16].strip(): line[16:] for line in checked.output.splitlines() if line.startswith("  ")}
    for name, *parts in (
        ("run", tmp_path / "run", "Tiny."),
        ("data", "3 train", "59 windows", "1 val", "0 test"),
        ("model", "mlp", "0.00 M", "fp32", "1 x cpu"),
        ("batch", "8 = 8", 1, "1 rank"),
        ("budget", "192 samples", "24 steps", "3.3 epochs"),
        ("evaluate", "validation", "7 steps"),
        ("test", "test", "best", "once"),
        ("save", "5 steps", "validation/ema/loss"),
        ("start from", "fresh"),
        ("checked", "one step", "loss"),
    ):
        assert told(plan[name], *parts), plan[name]
    assert re.fullmatch("[0-9a-f]{12}", plan["config"])


def test_check_says_which_directories_cannot_be_written(tmp_path):
    config, file = write(tmp_path), tmp_path / "toy.npz"
    for place, reason in ((file, "tracker.data_path"), (file / "run", f"({file})")):
        refused = train(config, "--check", "--set", f"tracker.data_path={place}")
        assert refused.exit_code == 74 and told(refused.output, place, reason)
    savers = [{"type": "local", "save_latest_to": f"{file}/a", "save_best_to": "exports/best"}]
    checked = train(config, "--check", "--set", f"tracker.save={json.dumps(savers)}")
    problem = checked.output.partition("  problem ")[2].splitlines()[0]
    assert told(problem, f"{file}/a", os.strerror(errno.ENOTDIR), f"({file})") and "exports/best" not in problem
    assert told(checked.output, "also to", "exports/best")
    assert checked.exit_code == 69 and not (tmp_path / "run").exists()


def test_check_refuses_a_step_that_leads_nowhere_as_the_run_would(tmp_path):
    checked = train(write(tmp_path, train__lr={"type": "constant", "peak": 1e30, "warmup_steps": 0}), "--check")
    assert checked.exit_code == 65 and told(checked.output, "error", "loss", "train.lr.peak", "data"), checked.output


def test_check_refuses_a_network_that_draws_at_random_when_acting(tmp_path, monkeypatch):
    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, *given: forward(self, *given) + torch.rand(()))
    checked = train(write(tmp_path), "--check")
    assert checked.exit_code == 64 and told(checked.output, "task", "random", "state_dict"), checked.output


@pytest.mark.parametrize("part", ["evaluate", "test"])
def test_check_runs_every_evaluator_and_fails_where_the_run_would(tmp_path, monkeypatch, part):
    config = write(tmp_path, evaluate=MEASURED) if part == "evaluate" else write(tmp_path, test=MEASURED[1:])
    checked = train(config, "--check")
    assert checked.exit_code == 0 and told(checked.output, "metrics", "samples")
    monkeypatch.setattr(Rollouts, "run", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(config, "--check")
    assert not (tmp_path / "run").exists()


def test_check_measures_a_few_samples_and_steps_however_many_the_run_does(tmp_path, monkeypatch):
    steps, fetched = [], []
    run_block = Rollouts.run
    monkeypatch.setattr(Rollouts, "run", lambda *arguments: steps.append(run_block(*arguments)) or steps[-1])
    fetch, deal = shared_batches, dealt
    for room in (loss, likelihood):
        monkeypatch.setattr(room, "shared_batches", lambda *a: fetched.append(a[1]) or fetch(*a))
    monkeypatch.setattr(action_error, "dealt", lambda *a, **named: fetched.append(a[0]) or deal(*a, **named))
    large = {**ROLLOUT, "n_episodes": 50, "env": {"type": "toy", "n_envs": 10, "max_steps": 100}}
    measured = [{"type": "loss"}, {"type": "action_error", "eval_timesteps": [2]}, {"type": "likelihood"}, large]
    assert train(write(tmp_path, evaluate=measured), "--check").exit_code == 0
    assert sum(len(rows) for rows in steps) == 2 and max(rows["steps"].max() for rows in steps) <= 16
    assert set(fetched) == {4, 1}  # 1 chunk for the page of the run


@pytest.mark.parametrize(
    ("sampler", "schedule", "steps"),
    [
        ({"type": "ddpm"}, 4000, 4),
        ({"type": "ddpm", "spacing": [30, 20]}, 100, 4),
        ({"type": "ddim", "steps": 50, "spacing": "ddim"}, 100, 4),
        ({"type": "unipc", "steps": 25, "order": 3}, 100, 4),
        ({"type": "ddim", "steps": 2, "spacing": "leading"}, 10, 2),
        ({"type": "ddpm"}, 3, 3),
    ],
)
def test_check_draws_few_steps_of_any_sampler_and_the_run_all(sampler, schedule, steps, tmp_path, monkeypatch):
    walk, paths = TYPES[sampler["type"]].walk, []

    def counted(self, denoise, x_t, table, path, random):
        paths.append(path)
        return walk(self, denoise, x_t, table, path, random)

    monkeypatch.setattr(TYPES[sampler["type"]], "walk", counted)
    rollout = {"type": "rollout", "env": {"type": "toy", "n_envs": 2}, "n_episodes": 2, "videos": 0}
    changes = {"task__sampler": sampler, "task__diffusion__schedule__steps": schedule, "evaluate": [rollout]}
    config = write(tmp_path, **changes, train__monitor={"metric": "rollout/score", "mode": "max"})
    done = train(config, "--check")
    assert done.exit_code == 0, done.output
    assert len(paths) > 2 and {len(path) for path in paths} == {steps}
    assert {(path[0][0], path[-1][1]) for path in paths} == {(schedule - 1, -1)}  # from noise to a sample


def test_check_of_a_run_in_progress_says_where_it_would_go_on_and_does_not_disturb_it(tmp_path):
    config = write(tmp_path, train__steps=5)
    train(config)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    checked = train(config, "--check")
    assert checked.exit_code == 0 and told(checked.output, "start from", f"{tmp_path / 'run'}@latest", "sample 40")
    refused = train(config, "--check", "--set", "seed=3")
    assert refused.exit_code == 64 and told(refused.output, "seed", 0, 3)
    allowed = train(config, "--check", "--set", "seed=3", "--allow-change", "seed", "--set", "train.steps=9")
    assert allowed.exit_code == 0 and told(allowed.output, "changed", "train.steps", 5, 9)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == files


def test_time_and_epochs_are_of_what_is_left_whatever_the_unit_of_the_budget(tmp_path):
    for unit, count in (("samples", 800), ("steps", 100), ("epochs", 12.5)):
        config = config_of(tmp_path, **{"train__steps": None, f"train__{unit}": count})
        whole, *_ = time_of_training(config, trainer_of(config), Progress(), 36.0)
        assert told(whole, "1 h 0 min", "12.5 epochs", "36 s", "evaluations")
        rest, *_ = time_of_training(config, trainer_of(config), Progress(400, 50), 36.0)
        assert told(rest, "30 min", "6.2 epochs")
        done, *more = time_of_training(config, trainer_of(config), Progress(800, 100), 36.0)
        assert told(done, "0 s", "0.0 epochs") and not more


@pytest.mark.parametrize("saves", [{"steps": 99}, {"samples": 799}, {"epochs": 12}, {"minutes": 59}])
def test_a_long_run_that_saves_nothing_before_its_end_is_told(saves, tmp_path):
    never = {unit: 100 * count for unit, count in saves.items()}
    evaluators = [{"type": "loss", "every": never}]
    for save, step_s, is_told in ((never, 36.0, True), (never, 5.0, False), (saves, 36.0, False)):
        config = config_of(tmp_path, train__steps=100, train__save_every=save, evaluate=evaluators)
        lines = time_of_training(config, trainer_of(config), Progress(), step_s)
        assert (len(lines) > 1) is is_told
    config = config_of(tmp_path, train__steps=100, train__save_every=never, evaluate=[{"type": "loss", "every": saves}])
    assert len(time_of_training(config, trainer_of(config), Progress(), 36.0)) == 1


def test_check_prints_time_and_epochs_and_the_plan_the_warnings(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr("dp_prior.run.check.timed_steps", lambda *parts: measured.append(timed_steps(*parts)) or 36.0)
    done = train(write(tmp_path, train__lr__warmup_steps=500, evaluate=[]), "--check")
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line for line in done.output.splitlines() if line.startswith("  ")}
    assert told(rows["time"], "14 min", "3.3 epochs", "36 s") and measured[0] > 0
    assert "warning       train.lr.warmup_steps is 500" in done.output
    assert told(rows["save"], "5 steps", "end") and "best" not in rows["save"]
