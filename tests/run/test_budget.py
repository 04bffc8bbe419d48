"""A budget that makes no sense is told, with the remedy; the time of a run follows from the time of a step."""

import json
from types import SimpleNamespace

import pytest

from dp_prior.clock import Progress
from dp_prior.run.budget import budget_warnings, duration, time_of_training, timed_steps
from dp_prior.run_directory.config import TrainConfig
from tests.messages import told
from tests.tiny import tiny, train, write


class Data(list):
    global_batch_size = 8


def config_of(place, **changes):
    return TrainConfig.from_json(json.dumps(tiny(place, **changes)))


def trainer_of(config, n=64):
    loader = Data(range(n))
    total = config.train.total_samples(n, 8)
    return SimpleNamespace(loader=loader, total_samples=total, total_steps=-(-total // 8))


def warnings_of(config, n=64):
    return "\n".join(budget_warnings(config, trainer_of(config, n)))


def test_a_warm_up_that_never_ends_is_told_with_the_rate_that_is_reached(tmp_path):
    assert not warnings_of(config_of(tmp_path, train__lr__warmup_steps=23))
    warned = warnings_of(config_of(tmp_path, train__lr__warmup_steps=500))
    assert told(warned, "train.lr.warmup_steps", 500, "24 steps", 4.8e-05, 0.001, 2)


@pytest.mark.parametrize("unit, count", [("samples", 64_000), ("steps", 8_000)])
def test_thousands_of_epochs_are_told_unless_they_were_asked_for(unit, count, tmp_path):
    budget = {"train__steps": None, f"train__{unit}": count}
    assert "is 1,000 epochs" in warnings_of(config_of(tmp_path, **budget))
    assert not warnings_of(config_of(tmp_path, **budget), n=65)
    assert not warnings_of(config_of(tmp_path, train__steps=None, train__epochs=5000))


def test_a_run_that_measures_nothing_is_told(tmp_path):
    assert told(warnings_of(config_of(tmp_path, evaluate=[])), "evaluate", "test", "nothing", "best")
    assert not warnings_of(config_of(tmp_path, evaluate=[], test=[{"type": "loss", "name": "test"}]))


def test_weights_by_the_success_of_rollouts_at_the_end_alone_are_told(tmp_path):
    texts = {"key": "said", "texts": ["a", "b"], "folder": {"path": "texts", "format": "parquet"}}

    def warned(every, weights="by_success"):
        rollouts = {"type": "rollout", "every": every, "env": {"type": "toy"}}
        language = {"data__language": {"told": {**texts, "weights": weights}}}
        monitor = {"metric": "rollout/score", "mode": "max"}
        return warnings_of(config_of(tmp_path, evaluate=[rollouts], train__monitor=monitor, **language))

    assert told(warned({"steps": 24}), "'rollout'", "24 steps", "3.0 epochs", "by_success")
    assert warned({"epochs": 50}) and warned({"samples": 192})
    assert not any(map(warned, [{"steps": 23}, {"epochs": 2}, {"samples": 100}, {"minutes": 90}]))
    assert not warned({"steps": 24}, weights="balanced")


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


def test_durations_have_two_units_at_most_and_grow_with_the_time():
    assert [duration(s) for s in (0.1, 89, 90, 3599, 12_000, 183_600)] == [
        "1 s", "89 s", "2 min", "1 h 0 min", "3 h 20 min", "2 d 3 h"
    ]  # fmt: skip


def test_check_prints_time_and_epochs_and_the_plan_the_warnings(tmp_path, monkeypatch):
    measured = []
    monkeypatch.setattr("dp_prior.run.check.timed_steps", lambda *given: measured.append(timed_steps(*given)) or 36.0)
    found = train(write(tmp_path, train__lr__warmup_steps=500, evaluate=[]), "--check")
    assert found.exit_code == 0, found.output
    rows = {line.split()[0]: line for line in found.output.splitlines() if line.startswith("  ")}
    assert told(rows["time"], "14 min", "3.3 epochs", "36 s") and measured[0] > 0
    assert "warning       train.lr.warmup_steps is 500" in found.output
    assert told(rows["save"], "5 steps", "end") and "best" not in rows["save"]
