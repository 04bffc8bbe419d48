"""A loss that leaves its level is noticed once, whatever the ranks; one that only varies is not."""

import contextlib
import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.training.divergence import DIVERGED_FACTOR, MEAN_STEPS, STEPS_IN_A_ROW, DivergedError, Divergence, LossSum
from dp_prior.training.guard import LAG
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.training_config import TrainingConfig
from tests.messages import naming, told
from tests.tiny import assert_equal, experiment, rows, state, tiny, train, write
from tests.training.test_guard import LateReadback
from tests.training.test_trainer import Listener, build

CURVES = sorted((Path(__file__).parent.parent / "golden/curves").glob("*.json"))
WILD = {"train__lr": {"type": "constant", "peak": 10.0, "warmup_steps": 0}, "train__steps": 40}


def follow(losses, divergence=None):
    """The steps, counted from 1, at which a loss is reported to diverge."""
    divergence, found = divergence or Divergence(), []
    for step, loss in enumerate(losses, start=1):
        divergence.count(torch.tensor(loss * 4.0), torch.tensor(4.0), step)
        if divergence.follow(divergence.read()) is not None:
            found.append(step)
    return found


def test_jump_is_reported_once_after_a_row_and_names_its_first_step():
    divergence = Divergence()
    assert follow([1.0] * 60 + [11.0] * 100, divergence) == [60 + STEPS_IN_A_ROW]
    assert divergence.since == 61


def test_weights_that_gave_the_first_loss_of_a_row_are_not_good():
    """The update of the step before made them, so that a rollback takes older ones."""
    trainer = build(divergence="stop")
    with pytest.raises(
        DivergedError, match=naming("20 steps", "step 61", 10, "train.lr", "train.max_grad_norm")
    ) as caught:
        for step, loss in enumerate([1.0] * 60 + [11.0] * STEPS_IN_A_ROW, start=1):
            trainer.divergence.count(torch.tensor(loss), torch.tensor(1.0), step)
            trainer._agree_to_stop()
    assert caught.value.first_step == 60


def test_explosion_in_the_second_step_and_one_that_grows_slowly_are_noticed():
    assert follow([1.0] + [1e6] * 50) == [1 + STEPS_IN_A_ROW]
    growth = [1.05**step for step in range(200)]
    assert len(follow(growth)) == 1 and follow(growth)[0] < 100


def test_collapse_to_the_loss_of_the_start_is_noticed():
    assert len(follow([0.99**step for step in range(500)] + [1.0] * 50)) == 1


def test_row_that_is_one_short_and_steps_that_are_not_finite_are_nothing():
    assert follow(([1.0] * 10 + [1e3] * (STEPS_IN_A_ROW - 1)) * 5) == []
    assert follow([1.0] * 5 + [float("nan")] * 100 + [1.0] * 5) == []
    assert follow([1.0] * 60 + [float("nan")] + [0.01] * 300 + [1.0] * STEPS_IN_A_ROW) == [361 + STEPS_IN_A_ROW]


def test_likelihood_of_a_density_that_falls_below_zero_does_not_diverge():
    assert follow([1 - 0.05 * step for step in range(200)]) == []


@pytest.mark.parametrize("seed", range(3))
def test_likelihood_of_a_density_that_stays_around_zero_does_not_diverge_until_it_leaves(seed):
    """Most batches hold no sample of the last step, whose log density is the negative part."""
    draws = random.Random(seed)
    losses = [-9 * draws.random() if draws.random() < 0.2 else 2 * draws.random() for _ in range(2000)]
    assert follow(losses) == []
    assert follow([*losses, *[1e3] * STEPS_IN_A_ROW]) == [2000 + STEPS_IN_A_ROW]


def test_after_a_rollback_the_next_row_is_reported_whatever_was_still_to_be_read():
    divergence = Divergence()
    assert len(follow([1.0] * 60 + [11.0] * STEPS_IN_A_ROW, divergence)) == 1
    divergence.forget()
    assert divergence.since is None and follow([11.0] * STEPS_IN_A_ROW, divergence) == [STEPS_IN_A_ROW]
    divergence._readback = LateReadback()
    divergence.count(torch.tensor(11.0), torch.tensor(1.0), 1)
    divergence.load(divergence.state())
    for step in range(LAG + 1):
        divergence.count(torch.tensor(2.0), torch.tensor(1.0), step)
    assert divergence.read() == LossSum(2.0, 1.0)


@pytest.mark.parametrize("shape", [1.0, 2.0, 8.0])
def test_losses_of_tiny_batches_do_not_diverge_whatever_the_first_ones_are(shape):
    for seed in range(30):
        draws = random.Random(seed)
        assert follow([draws.gammavariate(shape, 1.0) for _ in range(150)]) == [], seed


@given(st.lists(st.floats(0.35, 3.4), max_size=200), st.floats(1e-6, 1e6))
def test_loss_within_a_factor_never_diverges(losses, scale):
    """Whatever the order, the lowest mean is not below the lowest loss."""
    assert follow([scale * loss for loss in losses]) == []


@given(st.lists(st.floats(0.01, 100), min_size=30, max_size=150), st.integers(1, 4))
def test_ranks_change_nothing(losses, ranks):
    one, many = Divergence(), [Divergence() for _ in range(ranks)]
    for step, loss in enumerate(losses, start=1):
        one.count(torch.tensor(8.0 * loss), torch.tensor(8.0), step)
        for rank, part in enumerate(many):
            part.count(torch.tensor(8.0 * loss * (rank + 1)), torch.tensor(8.0 * (rank + 1)), step)
        own = [part.read() for part in many]
        total = LossSum(sum(part.value for part in own), sum(part.weight for part in own))
        said = one.follow(one.read())
        assert [part.follow(total) is None for part in many] == [said is None] * ranks


def test_state_goes_on(tmp_path):
    losses = [1.0] * 60 + [11.0] * 100
    first, second = Divergence(), Divergence()
    follow(losses[:70], first)
    second.load(json.loads(json.dumps(first.state())))
    assert len(follow(losses[70:], second)) == len(follow(losses[70:], first)) == 1


def test_where_copies_are_late_each_step_is_read_once_the_lag_later():
    divergence, seen = Divergence(), []
    divergence._readback = LateReadback()
    for step in range(1, 9):
        divergence.count(torch.tensor(float(step)), torch.tensor(1.0), step)
        seen.append(divergence.read().value)
    assert seen == [0.0] * LAG + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert divergence.read() == LossSum()  # asked again without a step in between


def test_a_checkpoint_holds_the_verdict_on_all_its_steps_where_copies_are_late(tmp_path, monkeypatch):
    """As on a GPU, where a resumed run would otherwise know of fewer steps than one that was never stopped."""
    late, direct = (tiny(tmp_path, tracker__data_path=str(tmp_path / name)) for name in ("late", "direct"))
    experiment(direct).run()
    monkeypatch.setattr("dp_prior.training.divergence.Readback", LateReadback)
    experiment(late).run()
    assert_equal(state(tmp_path / "late"), state(tmp_path / "direct"))


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (number % 4 > 0)) for number, path in enumerate(CURVES)],
    ids=lambda path: path.stem,
)
def test_golden_curves_do_not_diverge(path):
    """Not even if each of their losses lasted for a whole row."""
    losses = json.loads(path.read_text())["loss"]
    assert losses and follow([loss for loss in losses for _ in range(STEPS_IN_A_ROW)]) == []


def test_a_loss_that_comes_back_does_not_last():
    wild, calm = Divergence(), Divergence()
    follow([1.0] * 60 + [11.0] * STEPS_IN_A_ROW, wild)
    follow([1.0] * 60 + [11.0] * STEPS_IN_A_ROW + [1.0], calm)
    assert (wild.lasts, calm.lasts) == (True, False) and wild.since == calm.since == 61


def events(run):
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line["message"] for line in lines if line["event"] == "error"]


@pytest.mark.slow
def test_run_that_diverges_says_so_in_events_console_and_exit_file(tmp_path):
    done = train(write(tmp_path, **WILD, tracker__report=True))
    assert done.exit_code == 65 and told(done.output, "error", "step", "train.lr.peak")
    assert "diverged" in done.output and "finished" not in done.output
    (message,) = events(tmp_path / "run")
    assert told(message, "diverges", f"{STEPS_IN_A_ROW} steps", "train.lr")
    found = json.loads((tmp_path / "run/exit.json").read_text())
    assert (found["reason"], found["code"]) == ("diverged", 65) and "diverged" in found["message"]
    assert (tmp_path / "run/result.json").exists()  # what was measured before is kept
    assert '<span class="chip">failed</span>' in (tmp_path / "run/report.html").read_text()
    again = train(write(tmp_path, **WILD))
    assert again.exit_code == 65 and "diverged" in again.output


@pytest.mark.slow
def test_a_run_whose_loss_comes_back_finishes_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(Divergence, "lasts", False)
    done = train(write(tmp_path, **WILD))
    assert done.exit_code == 0 and told(done.output, "warning", "diverged", "step")
    found = json.loads((tmp_path / "run/exit.json").read_text())
    assert found["code"] == 0 and "diverged" in found["message"]


def test_run_stops_with_65_if_wanted_and_null_ignores_it(tmp_path):
    stopped = train(write(tmp_path, **WILD, train__divergence="stop"))
    assert stopped.exit_code == 65 and told(stopped.output, "error", "diverges")
    found = json.loads((tmp_path / "run/exit.json").read_text())
    assert (found["reason"], found["code"]) == ("diverged", 65)
    place = {"tracker__data_path": str(tmp_path / "ignored")}
    ignored = train(write(tmp_path, **WILD, **place, train__divergence=None))
    assert ignored.exit_code == 0 and "diverge" not in ignored.output


def ruin(monkeypatch, times):
    """Make the weights a hundred times as large before step 11, as often as the run comes to it."""
    step, left = PolicyTrainer.step, [True] * times

    def ruined(self, batches):
        if self.progress.global_step >= 10 and self.rollbacks == times - len(left) and left:
            left.pop()
            with torch.no_grad():
                for parameter in self.online.parameters():
                    parameter.mul_(100)
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", ruined)


BACK = {"train__divergence": "roll back", "train__rollback": 1, "train__save_every": {"steps": 4}, "train__steps": 40}


def test_run_is_rolled_back_to_weights_from_before(tmp_path, monkeypatch):
    ruin(monkeypatch, times=1)
    outcome = experiment(tiny(tmp_path, **BACK)).run()
    assert (outcome.status, outcome.diverged_at) == ("finished", None)
    (rolled,) = [message for message in events(tmp_path / "run") if "rolled back" in message]
    assert told(rolled, "step_00000007", "1 of 1", "step 11")  # the best, which retention keeps
    found = state(tmp_path / "run")
    assert found["progress"]["rollbacks"] == 1 and found["progress"]["global_step"] == 40
    largest = max(value.abs().max() for name, value in found.items() if name.startswith("model.safetensors:backbone"))
    assert largest < 10


@pytest.mark.slow
def test_second_rollback_does_not_take_weights_that_were_saved_while_the_loss_diverged(tmp_path, monkeypatch):
    ruin(monkeypatch, times=2)
    twice = {"train__steps": 60, "train__rollback": 2, "checkpoints__keep_latest": 99}
    outcome = experiment(tiny(tmp_path, **BACK | twice)).run()
    assert (outcome.status, outcome.diverged_at) == ("finished", None)
    first, second = [message for message in events(tmp_path / "run") if "rolled back" in message]
    assert told(first, "step_00000008", "1 of 2", "step 11")
    assert told(second, "step_00000008", "2 of 2", "step 31")


@pytest.mark.slow
def test_rollbacks_are_limited(tmp_path, monkeypatch):
    ruin(monkeypatch, times=2)
    with pytest.raises(DivergedError, match=naming("20 steps", "step 31", 10)):
        experiment(tiny(tmp_path, **BACK | {"train__steps": 60})).run()


def test_rolling_back_needs_a_number_of_times():
    with pytest.raises(ConfigError, match=naming("divergence", "'roll back'", "rollback", 0)):
        TrainingConfig.from_json('{"steps": 1, "divergence": "roll back"}')


@pytest.mark.slow
def test_run_that_is_continued_is_judged_as_if_it_had_not_stopped(tmp_path):
    for place, ends in (("whole", [40]), ("parts", [10, 24, 40])):
        for end in ends:
            lr = {"type": "constant", "peak": 10.0, "warmup_steps": 0}
            here = {"tracker__data_path": str(tmp_path / place), "train__steps": end, "train__lr": lr, "evaluate": []}
            with contextlib.suppress(DivergedError):  # its loss is off its level; a longer budget goes on all the same
                experiment(tiny(tmp_path, **here)).run()
    assert_equal(state(tmp_path / "parts"), state(tmp_path / "whole"))
    assert events(tmp_path / "parts") == events(tmp_path / "whole") != []
    assert len(rows(tmp_path / "parts")) >= 20


def test_weights_are_the_same_whether_it_is_followed_or_not():
    found = []
    for divergence in ("warn", None):
        trainer = build(Listener(), divergence=divergence)
        trainer.fit()
        found.append(trainer.online.layer.weight.item())
    assert found[0] == found[1]


def test_the_rule_is_the_one_that_is_documented():
    page = (Path(__file__).parent.parent.parent / "docs/processes.md").read_text()
    rules = (" ".join(item.split()) for item in page.split("\n- "))
    assert any(
        told(rule, f"{DIVERGED_FACTOR:g} times", f"{MEAN_STEPS} steps", f"{STEPS_IN_A_ROW} steps", "train.divergence")
        for rule in rules
    )


@pytest.mark.parametrize("n_low", [1, 4])
def test_a_few_low_losses_at_the_start_are_no_level_to_leave(n_low):
    """A mean of n steps counts MEAN_STEPS / n times as much; that of a whole window counts once."""
    assert follow([0.05] * n_low + [1.0] * 100) == []
    assert follow([0.05] * MEAN_STEPS + [1.0] * 100) == [MEAN_STEPS + STEPS_IN_A_ROW]
