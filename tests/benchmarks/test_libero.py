"""The small policy of LIBERO: its recipe, what is done once, the rows of its tests, and how far lost starts come."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import libero
from benchmarks.training import ROOT, assignments
from dp_prior.envs.vector import EnvStep
from dp_prior.run.config import TrainConfig
from tests.messages import told

NAMES = [("pick_up_the_can", "pick up the can"), ("pick_up_the_milk", "pick up the milk")]


def recipe(suite):
    return ROOT / f"configs/policy/{suite}.json"


@pytest.mark.parametrize("suite", libero.SUITES)
def test_the_cut_is_a_recipe_of_the_same_parts_with_the_tests_on_published_starts(suite, tmp_path):
    changes = libero.settings(tmp_path, suite, (1, 3), 1_000, 6, "libero/python")
    config = TrainConfig.from_json_path(recipe(suite), assignments(changes)).model_dump()
    whole = TrainConfig.from_json_path(recipe(suite)).model_dump()
    differing = {name for name in whole["task"] if whole["task"][name] != config["task"][name]}
    assert differing == {"horizon", "encoders", "backbone"}
    for camera in libero.CAMERAS:
        cut = config["task"]["encoders"][camera]
        assert {name for name, value in whole["task"]["encoders"][camera].items() if cut[name] != value} == {"crop"}
    assert config["train"]["samples"] == 1_000 and config["train"]["optimizer"] == whole["train"]["optimizer"]
    replay, *rollouts = config["test"]
    assert replay["type"] == "replay" and replay["env"]["tasks"] == (1, 3)
    assert [(test["name"], test["n_episodes"]) for test in rollouts] == [("test", 12), ("shuffled", 6), ("blind", 6)]
    for test in rollouts:
        assert test["env"]["starts"] == "fixed" and test["env"]["tasks"] == (1, 3) and test["first_seed"] == 0
        assert test["env"]["python"] == "libero/python" and test["env"]["n_envs"] == 2


SCENE = {"is_held": True, "low": np.zeros(3), "object": np.zeros(3), "goal": np.array([0.3, 0.0, 0.0])}


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"is_held": False, "object": np.array([0.3, 0.0, 0.0])}, "not grasped"),
        ({}, "grasped"),
        ({"low": np.array([0.0, 0.0, 0.2])}, "lifted"),
        ({"low": np.array([0.0, 0.0, 0.2]), "object": np.array([0.28, 0.0, 0.2])}, "over the goal"),
    ],
)
def test_a_moment_has_the_farthest_stage_that_it_shows(changes, name):
    assert libero.STAGES[libero.stage({**SCENE, **changes}, SCENE, False)] == name
    assert libero.STAGES[libero.stage({**SCENE, **changes}, SCENE, True)] == "solved"


class Env:
    """An environment of one row, whose object is lifted at the second of three steps, and falls at the third."""

    heights = (0.0, 0.0, 0.2, 0.0)

    def __init__(self, solves):
        self.envs, self._solves, self.is_watched = [self], solves, False

    def reset(self, seeds):
        assert self.is_watched
        (self.seed,), self.steps = seeds, 0
        return {"instruction": np.array(["pick up the can"])}

    def step(self, actions):
        self.steps += 1
        assert actions.shape == (1, 7) and self.is_watched == (self.steps == 2)
        is_over = np.array([self.steps == 3])
        success = np.array([float(self.steps == 3 and self.seed in self._solves)])
        return EnvStep({"instruction": np.array(["pick up the can"])}, np.zeros(1), is_over, {"success": success})

    def ask(self, method):
        assert method == "scene"
        height = self.heights[self.steps]
        return {**SCENE, "is_held": height > 0, "low": np.array([0.0, 0.0, height])}

    def close(self):
        pass


class Agent:
    """Acts in place of a policy, whose chunk has two actions."""

    def __init__(self, policy):
        self.episodes = []

    def reset(self, episodes):
        self.episodes, self.steps = episodes, 0

    def act(self, obs):
        assert obs["instruction"] == ["pick up the can"] and len(self.episodes) == 1
        self.steps += 1
        return np.zeros((1, 7))

    @property
    def watches(self):
        return self.steps % 2 == 0


def test_lost_starts_are_counted_by_the_farthest_stage(monkeypatch, tmp_path):
    monkeypatch.setattr(libero, "VectorAgent", Agent)
    monkeypatch.setattr(libero, "load_policy", lambda run: run)
    monkeypatch.setattr(libero, "LiberoConfig", lambda **fields: SimpleNamespace(create=lambda: Env(solves={5})))
    assert libero.stages(tmp_path, {"suite": "libero_object"}, [2, 5, 6]) == {"lifted": 2, "solved": 1}


def cells(line):
    return line.strip("| ").split(" | ")


def trained(run):
    """Write what a finished run holds."""
    solved = {"test": (0.75, 0.5), "shuffled": (0.0, 0.5), "blind": (0.0, 0.0)}
    for test, shares in solved.items():
        table = [
            {"instruction": instruction, "success_rate": share, "episodes": 4}
            for (_, instruction), share in zip(NAMES, shares, strict=True)
        ]
        seeds = [{"seed": seed, "success": float(seed not in (1, 4, 6))} for seed in range(8)]
        place = run / f"media/{test}_00000012.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps({"tables": {f"{test}/by_instruction": table, f"{test}/by_seed": seeds}}))
    (run / "result.json").write_text(json.dumps({"test": {"replay/success_rate": 1.0}}))
    error = {libero.CUT["train.monitor"]["metric"]: 0.125}
    (run / "metrics.jsonl").write_text(json.dumps({"step": 3}) + "\n" + json.dumps({"step": 12, **error}) + "\n")
    times = {"started": "2026-11-30T10:00:00+00:00", "ended": "2026-11-30T10:40:10+00:00"}
    (run / "exit.json").write_text(json.dumps(times))


def test_the_command_records_once_and_prints_a_row_for_each_task(monkeypatch, tmp_path):
    recorded, played = [], []

    def write_suite(path, suite, episodes, **settings):
        recorded.append((suite, episodes, settings["tasks"], settings["noise"]))
        path.mkdir()

    monkeypatch.setattr(libero, "write_suite", write_suite)
    monkeypatch.setattr(libero, "embed_data", lambda *words: None)
    monkeypatch.setattr(libero, "tasks_of", lambda suite, python, tasks: NAMES)
    monkeypatch.setattr(libero.training, "train", lambda suite, changes, run: trained(run))

    def stages(run, env_settings, seeds):
        played.append((env_settings["tasks"], seeds))
        return libero.Counter({"grasped": 2, "solved": 1})

    monkeypatch.setattr(libero, "stages", stages)
    arguments = ["--tasks", "3,0", "--demonstrations", "7", "--runs", str(tmp_path)]
    first, again = (CliRunner().invoke(libero.main, arguments) for _ in range(2))
    assert first.exit_code == again.exit_code == 0, first.output
    assert recorded == [("libero_object", 7, (3, 0), libero.NOISE)] and first.output == again.output
    *_, can, milk, everything, spent, lost = first.output.splitlines()
    assert cells(can) == ["pick up the can", "75% (30% to 95%)", "0% (0% to 49%)", "0% (0% to 49%)"]
    assert cells(milk) == ["pick up the milk", "50% (15% to 85%)", "50% (15% to 85%)", "0% (0% to 49%)"]
    assert cells(everything) == ["all", "62% (31% to 86%)", "25% (7% to 59%)", "0% (0% to 32%)"]
    assert told(spent, "100%", 0.125, 40) and told(lost, "2 grasped", "1 solved", "0 lifted")
    assert played[0] == ((3, 0), [1, 4, 6])
