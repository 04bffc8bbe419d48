"""Cadences in minutes: due once per interval of training time, the same on all ranks, and kept over a restart."""

import pytest

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.job.stop import REQUEST
from dp_prior.training.throughput import Stopwatch
from tests.training.test_trainer import Listener, Score, build

MINUTES = {"log_every": {"steps": 1}, "save_every": {"minutes": 1}}


@pytest.fixture
def now(monkeypatch):
    """The clock, in seconds, as a list of one number."""
    now = [100.0]
    monkeypatch.setattr(Stopwatch, "clock", staticmethod(lambda: now[0]))
    return now


def timed(trainer, now, seconds=25.0):
    """Every step of the trainer takes these seconds."""
    step = trainer.step

    def slow(batches):
        step(batches)
        now[0] += seconds

    trainer.step = slow
    return trainer


def test_saves_at_the_end_of_the_step_in_which_the_minute_ends(now):
    listener = Listener()
    assert timed(build(listener, steps=9, **MINUTES), now).fit() == Progress(36, 9)
    assert [step for step, _ in listener.saved] == [3, 5, 8, 9], "75, 125, 200 s and the end"


@pytest.mark.parametrize("stop", range(1, 9))
def test_a_run_that_is_interrupted_saves_and_evaluates_at_the_same_steps(now, stop):
    """The second process begins an hour later, with another origin of its clock."""

    def evaluators():
        return [Score(Cadence(minutes=1.5))]

    listener = Listener()
    timed(build(listener, evaluators(), steps=9, **MINUTES), now).fit()
    expected = [step for step, _ in listener.images], [step for step, _ in listener.saved]
    first, second = Listener(), Listener()
    trainer = timed(build(first, evaluators(), steps=9, **MINUTES), now)
    step = trainer.step

    def asked(batches):
        step(batches)
        if trainer.progress.global_step == stop:
            trainer.stop.ask(REQUEST)

    trainer.step = asked
    trainer.fit()
    snapshot = trainer.snapshot({}).copy()
    now[0] -= 77.0
    resumed = timed(build(second, evaluators(), steps=9, **MINUTES), now)
    now[0] += 3600.0
    resumed.restore(snapshot)
    assert resumed.fit() == Progress(36, 9)
    assert [step for step, _ in first.images + second.images] == expected[0]
    saved = {step for step, _ in first.saved + second.saved}
    assert saved == {*expected[1], stop}


def test_checkpoints_of_runs_without_such_a_cadence_depend_on_no_clock(now):
    plain, in_time = (timed(build(steps=3, **change), now) for change in ({}, MINUTES))
    for trainer in (plain, in_time):
        trainer.fit()
    assert plain.snapshot({}).documents["progress.json"]["seconds"] is None
    assert in_time.snapshot({}).documents["progress.json"]["seconds"] == (75.0, 75.0)


def test_a_rollback_keeps_the_time(now):
    trainer = timed(build(steps=6, **MINUTES), now)
    early = trainer.snapshot({}).copy()
    trainer.fit()
    trainer.roll_back(early)
    assert trainer.stopwatch.seen == (150.0, 150.0)


def test_ranks_follow_the_clock_of_the_first(run_ranks):
    """The clock of the other one runs ten times as fast and began elsewhere; ranks that disagreed would hang."""
    said = run_ranks(
        """
from dp_prior.checkpoints.clock import Cadence
from dp_prior.training.throughput import Stopwatch
from tests.training.test_stopwatch import timed
from tests.training.test_trainer import Listener, Score, build
now = [1000.0 * rank]
Stopwatch.clock = staticmethod(lambda: now[0])
listener = Listener()
score = Score(Cadence(minutes=1))
trainer = build(listener, [score], steps=7, log_every={"minutes": 2}, save_every={"minutes": 1})
timed(trainer, now, 25.0 * (1 + 9 * rank)).fit()
print([step for step, _ in listener.images], [step for step, _ in listener.rows])
""",
        2,
    )
    assert [text.splitlines()[-1] for text in said] == ["[3, 5, 7] [3, 5, 7]"] * 2
