"""One network for three robots, and fine-tuning beside training from noise: the recipe and the command."""

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import bodies, training
from benchmarks.training import assignments
from dp_prior.inference.load import load_policy
from dp_prior.run.config import TrainConfig
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS
from tests.messages import told
from tests.tiny import train

SIZES = {"metaworld": (39, 4), "transfer_cube": (33, 14), "lift": (19, 7), "new_task": (39, 4)}
"""Numbers of a state and of an action in each file of demonstrations."""

QUATERNIONS = {"lift": [(3, 7), (13, 17)]}
SMALL = {
    "task.backbone.down_dims": [16, 32],
    "task.encoders.state": {"type": "state", "output_dim": 16},
    "data.global_batch_size": 8,
    "train.lr.warmup_steps": 2,
}


@pytest.fixture
def runs(tmp_path):
    """A folder with stand-ins for the demonstrations, of the right sizes, and the embedded instructions."""
    generator = np.random.default_rng(0)
    ends = np.arange(1, 51) * 12
    for name, (state_dim, action_dim) in SIZES.items():
        state = generator.normal(size=(ends[-1], state_dim)).astype(np.float32)
        for first, stop in QUATERNIONS.get(name, ()):
            state[:, first:stop] /= np.linalg.norm(state[:, first:stop], axis=1, keepdims=True)
        arrays = {"state": state, "action": generator.normal(size=(ends[-1], action_dim)), "episode_ends": ends}
        if name == "metaworld":
            arrays["instructions"] = np.array([INSTRUCTIONS[task] for task in bodies.TASKS])
            arrays["task"] = np.repeat(np.arange(50) % len(bodies.TASKS), 12)
        np.savez(tmp_path / f"{name}.npz", **arrays)
    bodies.record(tmp_path)
    return tmp_path


def words(settings):
    return [word for assignment in assignments(settings) for word in ("--set", assignment)]


def trained_base(runs):
    """A network trained by the recipe for a few steps."""
    loss = {"type": "loss", "every": {"samples": 16}}
    settings = bodies.places(runs) | SMALL | {"train.samples": 32, "evaluate": [loss], "test": []}
    settings |= {"train.monitor": {"metric": "validation/ema/loss", "mode": "min"}}
    done = train(bodies.recipe_path(), *words(settings | {"tracker.data_path": str(runs / "base")}))
    assert done.exit_code == 0, done.output
    return runs / "base"


@pytest.mark.slow
def test_the_recipe_trains_all_robots_and_a_new_task_begins_with_its_weights(runs):
    base = trained_base(runs)
    for body, name in {"sawyer": "metaworld", "aloha": "transfer_cube", "panda": "lift"}.items():
        policy = load_policy(base, body=body)
        assert policy.spec.x_shape == (8, SIZES[name][1]), body
    settings = bodies.settings(base, "joint", 10, 1, 16, 2) | SMALL | {"test": []}
    del settings["test.0.n_episodes"]
    done = train(runs / "few.json", *words(settings | {"tracker.data_path": str(runs / "tuned")}))
    assert done.exit_code == 0, done.output
    assert told(done.output, "initialised", str(base)) and not told(done.output, "begin anew")
    assert told(done.output, 10, "train episodes")


@pytest.mark.parametrize("body", bodies.FILES)
def test_a_robot_alone_has_the_same_network_steps_samples_and_episodes(runs, body):
    (runs / "alone.json").write_text(json.dumps(bodies.alone_config(runs, body, 200_000)))
    alone = TrainConfig.from_json_path(runs / "alone.json").model_dump()
    joint = TrainConfig.from_json_path(bodies.recipe_path(), assignments(bodies.places(runs))).model_dump()
    robots = joint["data"]["sets"]
    observed = {*robots[body]["obs"], *robots[body]["language"]}
    encoders = {name: encoder for name, encoder in joint["task"].pop("encoders").items() if name in observed}
    assert alone["task"]["encoders"] == encoders
    assert {name for name in joint["task"] if joint["task"][name] != alone["task"][name]} == {"type"}
    share = robots[body]["weight"] / sum(robot["weight"] for robot in robots.values())
    assert alone["data"]["global_batch_size"] == pytest.approx(share * joint["data"]["global_batch_size"], abs=0.5)
    steps = alone["train"]["samples"] / alone["data"]["global_batch_size"]
    assert steps == math.ceil(joint["train"]["samples"] / joint["data"]["global_batch_size"])
    for name in ("episodes", "obs", "action", "language"):
        assert alone["data"][name] == robots[body][name], name
    for name in ("env", "n_episodes", "first_seed"):
        assert alone["test"][0][name] == joint["test"][0]["worlds"][body][name], name
        assert alone["evaluate"][0][name] == joint["evaluate"][1]["worlds"][body][name], name


@pytest.mark.slow
@pytest.mark.long
def test_the_recipe_is_checked_in_the_worlds_of_all_robots(runs):
    for package in ("metaworld", "gym_aloha", "robosuite"):
        pytest.importorskip(package, reason=f"NOT CHECKED: {package} is not installed")
    settings = bodies.places(runs) | SMALL | {"tracker.data_path": str(runs / "checked")}
    done = train(bodies.recipe_path(), "--check", *words(settings))
    assert done.exit_code == 0, done.output
    assert told(done.output, "checked", 1)


def test_the_start_and_the_rate_are_all_that_differs(runs):
    (runs / "base").mkdir()

    def config(start):
        settings = bodies.settings(runs / "base", start, 25, 3, 1_000, 7)
        return TrainConfig.from_json_path(runs / "few.json", assignments(settings)).model_dump()

    joint, fast, noise = config("joint"), config("joint_fast"), config("noise")
    peaks = [settings["train"]["lr"].pop("peak") for settings in (joint, fast, noise)]
    assert peaks[0] < peaks[1] == peaks[2] == TrainConfig.from_json_path(bodies.recipe_path()).train.lr.peak
    assert joint["train"].pop("init_from") == fast["train"].pop("init_from") == str(runs / "base")
    assert noise["train"].pop("init_from") is None
    assert joint == fast == noise
    assert joint["data"]["choice"]["only"] == ("0-24",) and joint["seed"] == 3
    assert joint["test"][0]["n_episodes"] == 7 and joint["train"]["samples"] == 1_000
    assert joint["test"][0]["env"]["max_steps"] == bodies.MAX_STEPS
    recipe = TrainConfig.from_json_path(bodies.recipe_path()).model_dump()["task"]
    assert {name for name in recipe if recipe[name] != joint["task"][name]} == {"type"}
    assert bodies.NEW_TASK not in bodies.TASKS


@pytest.fixture
def started(monkeypatch):
    """Names of the runs that are asked to train; each has its result at once."""
    names = []

    def instantly(config, settings, run, *words_after):
        names.append(run.name)
        run.mkdir(parents=True, exist_ok=True)
        few, seed = run.name.split("_")[-2:] if "_" in run.name else ("", "")
        start = run.name.removesuffix(f"_{few}_{seed}")
        rate = {"joint": 0.2, "joint_fast": 0.3}.get(start, 0.1) * (1 + (few == "50")) + 0.1 * (seed == "1")
        numbers = {"success_rate": rate, "success_ci_low": 0, "success_ci_high": 1}
        evaluators = ("test", *(f"test_{body}" for body in bodies.FILES))
        metrics = {f"{evaluator}/{name}": value for evaluator in evaluators for name, value in numbers.items()}
        (run / "result.json").write_text(json.dumps({"test": metrics}))
        times = {"started": "2026-11-26T10:00:30+00:00", "ended": "2026-11-26T10:02:00+00:00"}
        (run / "exit.json").write_text(json.dumps(times))

    monkeypatch.setattr(training, "train", instantly)
    return names


def test_a_repeated_command_trains_nothing_again_and_shows_means_and_differences(runs, started):
    arguments = ["--runs", str(runs), "--seeds"]
    first, again, more = (CliRunner().invoke(bodies.main, [*arguments, seeds]) for seeds in "223")
    assert first.exit_code == again.exit_code == more.exit_code == 0, first.output
    assert started.count("base") == started.count("panda") == 3
    assert len(started) == 3 * 4 + 18 + 9 and len({*started}) == 31
    tables = json.loads(again.output[again.output.index("{\n") :])
    assert [row["robot"] for row in tables["robots"]] == [*bodies.FILES]
    assert all(row["jointly"] == row["alone"] == {"percent": 10, "interval": [0, 100]} for row in tables["robots"])
    rows = tables["new task"]
    assert [row["demonstrations"] for row in rows[::3]] == [10, 25, 50]
    assert [row["start"] for row in rows[:3]] == [*bodies.STARTS]
    assert [row["solved"]["percent"] for row in rows[:3]] == [25, 35, 15]
    assert [row["percent"] for row in rows[6]["each seed"]] == [40, 50]
    assert rows[6]["each seed"][0]["interval"] == [0, 100]
    assert rows[6]["more than from noise"] == {"percent": 20, "interval": [20, 20]}
    assert "more than from noise" not in rows[2]
    assert rows[0]["solved"]["interval"][0] == 0  # two seeds tell little, and a share is at least 0
