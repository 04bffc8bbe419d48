"""Rollouts in the toy environment: scores of known policies, the same on any number of ranks."""

import json
import math
import re
import sys

import numpy as np
import pytest

from dp_prior.diffusion.draw import AS_CONFIGURED
from dp_prior.diffusion.sampler import DDIM
from dp_prior.envs.gym import GymConfig
from dp_prior.envs.toy import Toy, ToyConfig
from dp_prior.evaluation.episode_metrics import worst_tenth
from dp_prior.evaluation.interval import mean_interval, share_interval, share_posterior
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.rollouts import _Episodes
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior_studio.pages.evaluation_report import is_fingerprint
from tests.evaluation.fakes import NOW, on_ranks
from tests.evaluation.rollouts import (
    SIDES,
    Listening,
    Silent,
    Way,
    config,
    measure,
)
from tests.messages import naming, told


def test_policy_that_keeps_its_side_solves_all_and_one_that_wavers_does_not():
    assert measure(Way(side=1.0)).metrics["rollout/score"] == 1.0
    assert measure(Way(side=1.0)).metrics["rollout/success_rate"] == 1.0
    wavering = measure(Way()).metrics
    assert wavering["rollout/score"] < 1.0 and 0 < wavering["rollout/success_rate"] < 1


def test_metrics_follow_from_the_table_of_seeds():
    result = measure(first_seed=500)
    table = result.tables["rollout/by_seed"]
    assert [row["seed"] for row in table] == list(range(500, 520))
    scores = np.array([row["score"] for row in table])
    solved = sum(row["success"] for row in table)
    expected = [scores.mean(), scores.std(ddof=1), *mean_interval(scores), solved / 20, *share_interval(solved, 20)]
    expected += [20, np.mean([row["steps"] for row in table])]
    expected += [worst_tenth(scores)]
    assert list(result.metrics.values()) == pytest.approx(expected)
    assert list(result.metrics) == config().metric_names()


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_result_is_the_same_bit_for_bit_on_any_number_of_ranks(ranks):
    alone = measure()

    def run(models, accelerator):
        return measure(models["online"], accelerator), models["online"].batches

    for result, _ in (results := on_ranks(ranks, run, {"online": Way()})):
        assert result.metrics == alone.metrics and result.tables == alone.tables
    assert [bool(batches) for _, batches in results] == [rank < 3 for rank in range(ranks)]  # 20 episodes, 3 blocks


def test_number_of_environments_changes_the_batches_only():
    assert measure(env=ToyConfig(n_envs=3)).tables == measure(env=ToyConfig(n_envs=20)).tables


def test_no_more_worlds_are_opened_than_episodes_are_played(monkeypatch):
    opened, create = [], ToyConfig.create
    monkeypatch.setattr(ToyConfig, "create", lambda self: opened.append(self.n_envs) or create(self))
    measure(env=ToyConfig(n_envs=50), n_episodes=3)
    assert max(opened) == 3


def test_failure_on_one_rank_reaches_all(monkeypatch):
    class Failing(Way):
        def draw(self, obs, random, how=AS_CONFIGURED):
            raise OSError("the simulator is gone")

    def run(models, accelerator):
        return measure(models["online"] if accelerator.process_index == 0 else Failing(), accelerator)

    first, second = on_ranks(2, run, {"online": Way()})
    assert isinstance(second, OSError)
    (note,) = second.__notes__
    assert told(note, "'rollout'", "seeds 100008 to 100015")
    assert isinstance(first, RuntimeError) and re.search(naming("'rollout'", "rank 1"), str(first))


def test_named_model_acts_and_goes_back_to_its_mode():
    good, bad = Way(side=1.0).train(), Way(side=0.0)
    models = {"ema": good, "online": bad}
    assert config(model="ema").create().run(models, None, NOW).metrics["rollout/score"] == 1.0
    assert config(model="online").create().run(models, None, NOW).metrics["rollout/score"] < 1.0
    assert good.training and config(model="ema").measured_models() == ("ema",)
    with pytest.raises(ValueError, match=naming("'rollout'", "'fast'")):
        config(model="fast").create().run(models, None, NOW)


def test_sampler_and_cadence_are_kept():
    policy = Way()
    measure(policy, sampler=DDIM(steps=3))
    assert set(policy.samplers) == {DDIM(steps=3)}
    evaluator = RolloutConfig.from_json('{"env": {"type": "toy"}, "every": {"steps": 9}}').create()
    assert evaluator.every.steps == 9


@pytest.mark.parametrize(("solved", "rate"), [((), math.nan), ((0, 5), 0.2)])
def test_success_that_nobody_speaks_of_is_unknown_and_not_zero(monkeypatch, tmp_path, solved, rate):
    monkeypatch.setattr(ToyConfig, "create", lambda self: Silent(**self.arguments()))
    monkeypatch.setattr(Silent, "solved", solved)
    result = config(env=ToyConfig(n_envs=10)).create(None, tmp_path).run({"online": Way()}, None, NOW)
    names = [f"rollout/{kind}" for kind in ("success_rate", "success_ci_low", "success_ci_high")]
    expected = [rate, *share_interval(20 * rate, 20)]
    assert [result.metrics[name] for name in names] == pytest.approx(expected, nan_ok=True)
    assert math.isfinite(result.metrics["rollout/score"])
    broken = config(env=ToyConfig(n_envs=10)).create().run({"online": Way(broken=True)}, None, NOW).metrics
    assert math.isnan(broken["rollout/success_rate"]) == (not solved)
    told = [row["success"] for row in result.tables["rollout/by_seed"]]
    assert told == ([row % 10 in solved for row in range(20)] if solved else [None] * 20)
    json.loads((tmp_path / "rollout_00000100.json").read_text())


def test_report_reproduces_the_setting(tmp_path):
    chosen = config()
    result = chosen.create(None, tmp_path / "media").run({"online": Way(broken=True)}, None, NOW)
    report = json.loads((tmp_path / "media" / "rollout_00000100.json").read_text())
    assert is_fingerprint(report["environment"])
    assert RolloutConfig.from_json(json.dumps(report["settings"])) == chosen
    assert report["metrics"]["rollout/score"] is None  # JSON has no NaN
    assert [row["seed"] for row in report["tables"]["rollout/by_seed"]] == [
        row["seed"] for row in result.tables["rollout/by_seed"]
    ]
    assert [path.name for path in (tmp_path / "media").iterdir()] == ["rollout_00000100.json"]


def test_a_name_with_a_dot_leaves_the_step_in_the_names_of_files(tmp_path):
    pytest.importorskip("av", reason="PyAV is not installed: the film is NOT tested")
    config(name="v1.5", videos=1).create(None, tmp_path).run({"online": Way()}, None, NOW)
    assert {path.name for path in tmp_path.iterdir()} == {f"v1.5_00000100.{kind}" for kind in ("json", "mp4", "png")}


@pytest.mark.slow
def test_workers_change_no_number(tmp_path):
    """Three blocks, the last of which has fewer episodes, and a film of the first."""
    found, expected = (
        config(workers=n, videos=2).create(None, tmp_path / str(n)).run({"online": Way()}, None, NOW) for n in (2, 0)
    )
    assert found.metrics == expected.metrics and found.tables == expected.tables
    for name, path in expected.media.items():
        assert found.media[name].read_bytes() == path.read_bytes()


def test_scores_by_instruction_follow_from_the_table_of_seeds_on_any_number_of_ranks(telling):
    result = measure(Listening())
    table = {row["instruction"]: row for row in result.tables["rollout/by_instruction"]}
    for side in SIDES:
        own = [row for row in result.tables["rollout/by_seed"] if row["instruction"] == side]
        scores, low, high = (
            np.array([row["score"] for row in own]),
            table[side]["score_ci_low"],
            table[side]["score_ci_high"],
        )
        assert table[side]["score"] == pytest.approx(scores.mean()) and (low, high) == mean_interval(
            scores, limits=(0.0, 1.0)
        )
        assert table[side]["success_rate"] == pytest.approx(np.mean([row["success"] for row in own]))
        assert table[side]["episodes"] == len(own)
    for other in on_ranks(3, lambda models, ranks: measure(models["online"], ranks), {"online": Listening()}):
        assert other.tables == result.tables
    assert "rollout/by_instruction" in measure(Way()).tables  # a policy that reads none is measured by them too


def test_rollouts_say_how_many_episodes_are_done_with_the_unfinished_by_their_steps():
    ranks, told = Ranks(make_accelerator("fp32")), []
    ranks.work.show = told.append
    found = measure(Way(), ranks)
    assert found.metrics == measure(Way()).metrics
    assert {(done.name, done.items) for done in told} == {("rollout", 20)}
    shares = [done.share for done in told]
    assert shares == sorted(shares) and shares[0] == 0 and 0.8 < shares[-1] < 1
    assert {str(done) for done in told} >= {"rollout 0/20", "rollout 8/20", "rollout 16/20"}


def test_intervals_are_clipped_to_the_scores_that_the_environment_can_give():
    low, high = (measure(n_episodes=2, noise_seed=1).metrics[f"rollout/score_ci_{end}"] for end in ("low", "high"))
    assert (low, high) == (0.0, 1.0)  # by t alone from -4.0 to 5.3
    success, rewards = (GymConfig(id="any", score=rule).score_range for rule in ("success", "sum"))
    assert success == (0.0, 1.0) and rewards == (-math.inf, math.inf)


@pytest.mark.parametrize("limits", [(0.0, 0.5), (0.5, 1.0)])
def test_no_interval_is_clipped_to_limits_that_a_score_exceeds(monkeypatch, caplog, limits):
    right = measure().metrics
    assert not caplog.records
    monkeypatch.setattr(ToyConfig, "score_range", limits)
    found = measure().metrics
    assert told(caplog.text, "'toy'", "from {:g} to {:g}".format(*limits), "score_range")
    assert found["rollout/score"] == right["rollout/score"]
    assert found["rollout/score_ci_low"] <= found["rollout/score"] <= found["rollout/score_ci_high"]


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_score_of_nan_is_the_fault_of_an_environment_whose_actions_were_finite(monkeypatch, caplog, is_broken):
    take = _Episodes.take

    def take_nan(block, step):
        take(block, step)
        block.scores, block.broken = block.scores * np.nan, block.broken | is_broken

    monkeypatch.setattr(_Episodes, "take", take_nan)
    assert math.isnan(measure().metrics["rollout/score"])
    assert told(caplog.text, "'toy'", "nan", "score") != is_broken


def test_an_environment_that_exits_is_an_error_that_names_its_seeds(monkeypatch):
    monkeypatch.setattr(Toy, "step", lambda self, actions: sys.exit(3))
    with pytest.raises(RuntimeError, match=naming("environment", "sys.exit(3)")) as caught:
        measure()
    assert told("".join(caught.value.__cause__.__notes__), "'rollout'", "seeds")


def test_seconds_to_success_are_those_of_the_rate_of_the_data_and_else_of_the_environment():
    policy, result = Way(side=1.0), measure(Way(side=1.0))
    (found,), table = result.tables["rollout/success"], result.tables["rollout/by_seed"]
    assert found["steps_to_success"] == pytest.approx(np.mean([row["solved_at"] for row in table]))
    assert found["seconds_to_success"] == found["steps_to_success"] / 10
    policy.spec = policy.spec.model_copy(update={"fps": 50.0})
    assert measure(policy).tables["rollout/success"][0]["seconds_to_success"] == found["steps_to_success"] / 50


def test_the_posterior_of_the_success_rate_is_in_the_report():
    result = measure(Way())
    solved = sum(row["success"] for row in result.tables["rollout/by_seed"])
    (found,) = result.tables["rollout/success"]
    assert tuple(found[f"posterior_{key}"] for key in ("mean", "low", "high")) == share_posterior(solved, 20)


def test_failures_are_counted_by_the_stage_that_the_environment_names(monkeypatch):
    step = Toy.step

    def staged(self, actions):
        found = step(self, actions)
        names = np.where(found.obs["agent_pos"][:, 1] < 0, "before the disc", "behind the disc")
        return found._replace(info={**found.info, "stage": names})

    assert "rollout/by_stage" not in measure(Way()).tables
    monkeypatch.setattr(Toy, "step", staged)
    result = measure(Way())
    stages, table = result.tables["rollout/by_stage"], result.tables["rollout/by_seed"]
    assert sum(row["episodes"] for row in stages) == 20
    for row in stages:
        own = [line for line in table if line["stage"] == row["stage"]]
        assert (len(own), sum(not line["success"] for line in own)) == (row["episodes"], row["failed"])
    assert {row["stage"] for row in table if row["success"]} == {"behind the disc"}
