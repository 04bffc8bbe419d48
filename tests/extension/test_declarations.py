"""What our records declare by an attribute, a record of another package declares as well, and lacks nothing if not."""

import contextlib
import importlib

import numpy as np
import pytest

from tests.extension.installed import anew, examples
from tests.messages import told

PARTS = '''
import threading
from pathlib import Path
from typing import ClassVar, Literal

from dp_prior.checkpoints.clock import Cadence
from dp_prior.config import Config, member_of
from dp_prior.envs import EnvConfig
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.measurement import EvaluatorRecord
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.places import SaverConfig
from dp_prior.places.saver import Saver
from dp_prior.tracking import LoggerConfig
from dp_prior.tracking.logger import Logger
from my_env import PointConfig


@member_of(EnvConfig)
class SteppedConfig(PointConfig):
    """The point, one row after the other."""

    type: Literal["stepped"] = "stepped"
    steps_in_turn: ClassVar = True
    score_range: ClassVar = (-2.0, 1.0)


@member_of(EvaluatorConfig)
class PushedConfig(EvaluatorRecord):
    """Rollouts in which the point is pushed."""

    type: Literal["pushed"] = "pushed"
    tasks: ClassVar = ("policy",)
    metrics: ClassVar = ()
    name: str = "pushed"
    every: Cadence = Cadence(steps=4)
    env: EnvConfig = PointConfig(n_envs=4)
    seed: int = 500
    shuffle: list[str] = []

    def rollouts(self):
        return RolloutConfig(name=self.name, env=self.env, first_seed=self.seed, n_episodes=4, shuffle=self.shuffle)

    def measured_models(self):
        return ("ema",)

    def trial(self):
        return self

    def create(self, data=None, output_dir=None): ...


@member_of(SaverConfig)
class PlainSaverConfig(Config):
    """Declares nothing."""

    type: Literal["plain"] = "plain"

    def create(self, directory, monitor):
        return Saver()


@member_of(SaverConfig)
class SlowSaverConfig(PlainSaverConfig):
    """Copies to a place and takes its time."""

    type: Literal["slow"] = "slow"
    to: str
    farewell_s: ClassVar = 120.0

    @property
    def copies_to(self):
        return [Path(self.to)]

    def check_places(self, directory):
        return [f"{self.to} is below {directory.name}"]


@member_of(LoggerConfig)
class QuickConfig(Config):
    """Called by the run itself."""

    type: Literal["quick"] = "quick"
    is_synchronous: ClassVar = True

    def create(self):
        return Quick()


logged = []


class Quick(Logger):
    name = "quick"

    def log(self, metrics, progress):
        assert threading.current_thread() is threading.main_thread()
        logged.append(metrics)


@member_of(LoggerConfig)
class TrackioConfig(Config):
    """Another client of a service of ours."""

    type: Literal["my_trackio"] = "my_trackio"
    service: ClassVar = "trackio"

    def create(self): ...
'''


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The module of the parts, beside dp_prior imported anew."""
    place = tmp_path_factory.mktemp("parts")
    (place / "my_parts.py").write_text(PARTS)
    (place / "my_env.py").write_text(examples()["my_env"])
    with anew("my_"), contextlib.chdir(place), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(place)
        yield importlib.import_module("my_parts")


def a_run(**parts):
    """A run of a policy with these evaluators, savers and loggers."""
    from dp_prior.run.config import TrainConfig

    rollout = {"type": "pushed", **parts.get("evaluator", {})}
    return TrainConfig(
        task={"horizon": 16},
        data={
            "episodes": {"type": "npz", "path": "none.npz"},
            "obs": {"goal": {"key": "goal"}, "agent_pos": {"key": "agent_pos"}},
            "action": {"key": "action"},
            "batch_size": 4,
            **parts.get("data", {}),
        },
        train={"steps": 4, "ema": {"ema": {"type": "constant"}}},
        evaluate=[{"type": "loss"}, rollout],
        tracker={"log": parts.get("log", []), "save": parts.get("save", [])},
    )


@pytest.mark.slow
def test_an_environment_that_steps_in_turn_runs_in_worker_processes_with_the_same_numbers(parts):
    from dp_prior.envs.workers import Workers, is_divisible

    record = parts.SteppedConfig(n_envs=4, max_steps=3)
    assert is_divisible(record) and not is_divisible(parts.PointConfig())
    seeds, actions = [3, 4, 5, 6], np.full((4, 2), 0.5)
    alone, shared = record.create(), Workers(record, 2)
    with contextlib.closing(shared):
        for expected, found in ((alone.reset(seeds), shared.reset(seeds)), (alone.step(actions), shared.step(actions))):
            expected, found = [
                step if isinstance(step, dict) else {**step.obs, "reward": step.reward, **step.info}
                for step in (expected, found)
            ]
            for key, values in expected.items():
                np.testing.assert_array_equal(found[key], values)


def test_an_environment_that_declares_nothing_has_the_defaults(parts):
    from dp_prior.envs.env_record import EnvRecord

    record = parts.PointConfig()
    for name in ("score_range", "modules", "angles", "steps_in_turn"):
        assert getattr(record, name) == getattr(EnvRecord, name)
    assert parts.SteppedConfig().score_range == (-2.0, 1.0)


def test_an_evaluator_that_plays_episodes_is_asked_like_a_rollout(parts, tmp_path):
    from dp_prior_lab.players import _rollouts
    from dp_prior_studio.inspection.replays import _replays
    from dp_prior_studio.pages.evaluation_report import EvaluationReport

    config = a_run()
    played = config.evaluate[1].rollouts()
    assert (played.first_seed, played.n_episodes) == (500, 4)
    assert _rollouts(config, None, "run") == _rollouts(config, "pushed", "run") == played
    assert [replay.env for replay in _replays(config, "data")] == [played.env]
    assert config.evaluate[0].rollouts() is None
    for env, limits in ((parts.SteppedConfig(), (-2.0, 1.0)), (parts.PointConfig(), (-np.inf, np.inf))):
        settings = parts.PushedConfig(env=env).model_dump(mode="json")
        report = EvaluationReport(tmp_path, "pushed", 4, 16, settings, tables={})
        assert report.score_range == limits


def test_a_saver_of_another_package_reserves_time_and_refuses_a_place_twice(parts):
    from dp_prior.config import ConfigError

    tracker = a_run(save=[{"type": "plain"}, {"type": "slow", "to": "copies"}]).tracker
    assert tracker.farewell_s == 120.0
    assert tracker.check() == ["copies is below run"]
    with pytest.raises(ConfigError) as caught:
        a_run(save=[{"type": "slow", "to": "copies"}, {"type": "slow", "to": "copies"}])
    assert told(str(caught.value), "tracker", "'copies'", "two savers")
    assert a_run(save=[{"type": "plain"}, {"type": "plain"}]).tracker.farewell_s == 0.0


def test_a_logger_of_another_package_may_be_synchronous_and_names_its_service(parts, tmp_path):
    from dp_prior.checkpoints.clock import Progress
    from dp_prior.config import ConfigError

    tracker = a_run(log=[{"type": "quick"}]).tracker
    assert tracker.farewell_s == 0.0, "there is no queue to wait for"
    opened = tracker.create(directory=tmp_path / "run", console=False)
    opened.log({"x": 1.0}, Progress(1, 1))
    opened.close()
    assert parts.logged == [{"x": 1.0}], "without a thread in between"
    with pytest.raises(ConfigError) as caught:
        a_run(log=[{"type": "my_trackio"}, {"type": "accelerate", "tracker": "trackio"}])
    assert told(str(caught.value), "tracker", "'trackio'", 2)
