"""Time is up: saving begins early enough for the longest save and step seen so far."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.job.deadline import Deadline, parse_duration
from dp_prior.job.stop import TIME_LIMIT
from dp_prior.training.training_config import TrainingConfig
from tests.cases import every
from tests.messages import naming
from tests.training.test_trainer import Listener, build


@pytest.mark.parametrize(
    ("text", "seconds"), [("47h", 169_200), ("1d12h", 129_600), ("90m", 5400), ("0.5s", 0.5), (60, 60), (1.5, 1.5)]
)
def test_durations_are_numbers_of_seconds_or_say_their_unit(text, seconds):
    record = TrainingConfig.from_json(json.dumps({"steps": 1, "max_runtime": text}))
    assert record.max_runtime == parse_duration(text) == seconds
    assert TrainingConfig.from_json(record.to_json()) == record


@every(text=["47", "h", "1x", "1h x", "", "-1h", 0, -1, True, None, [1], 1e11])
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match=naming(repr(text), "'47h'")):
        parse_duration(text)
    if text is not None:
        with pytest.raises(ConfigError, match=naming("max_runtime", "'47h'")):
            TrainingConfig.from_json(json.dumps({"steps": 1, "max_runtime": text}))


@pytest.mark.promise("C3")
@given(
    saves=st.lists(st.floats(0.1, 50), min_size=1, max_size=5),
    steps=st.lists(st.floats(0.1, 5), min_size=3, max_size=20),
)
def test_save_that_begins_when_it_is_near_is_done_in_time(saves, steps):
    """Also if this step and this save take as long as the longest before them, twice over."""
    now = [0.0]
    deadline = Deadline(1_000.0, clock=lambda: now[0])
    for duration in saves:
        deadline.saved(duration)
    deadline.stepped()
    for duration in [0.0, *steps]:  # the first one does not count
        now[0] += duration
        deadline.stepped()
    assert not deadline.is_near()
    while not deadline.is_near():
        now[0] += max(steps)
    assert now[0] + max(steps) + max(saves) < 1_000.0
    assert now[0] + deadline.margin_s + max(steps) > 1_000.0 - max(steps)


def test_before_the_first_save_is_timed_some_time_is_set_aside():
    assert Deadline(10_000.0, clock=lambda: 0.0).margin_s == 61.0
    assert Deadline(20.0, clock=lambda: 0.0).margin_s == 5.0


def test_the_longest_save_so_far_is_set_aside_twice():
    deadline = Deadline(10_000.0, clock=lambda: 0.0)
    for duration, longest in ((2.0, 2.0), (80.0, 80.0), (10.0, 80.0)):
        deadline.saved(duration)
        assert deadline.margin_s == 2 * longest + 1.0


def test_steps_count_however_often_the_run_is_evaluated():
    now = [0.0]
    deadline = Deadline(1000.0, clock=lambda: now[0])
    margin = deadline.margin_s
    deadline.stepped()
    for _ in range(2):
        for step_s in (5.0, 5.0):
            now[0] += step_s
            deadline.stepped()
        deadline.rests()
        now[0] += 100
        deadline.stepped()
    assert deadline.margin_s == margin + 2 * 5.0


def test_first_step_and_evaluations_do_not_count_as_steps():
    now = [0.0]
    deadline = Deadline(1000.0, clock=lambda: now[0])
    margin = deadline.margin_s
    deadline.stepped()
    now[0] += 100
    deadline.stepped()
    deadline.rests()
    now[0] += 100
    deadline.stepped()
    assert deadline.margin_s == margin


@pytest.mark.promise("C3")
def test_run_stops_for_lack_of_time_with_its_last_step_saved():
    now = [0.0]
    listener = Listener()
    trainer = build(listener, steps=100, save_every={"steps": 1000})
    trainer.stop.deadline = Deadline(50.0, clock=lambda: now[0])
    step = trainer.step

    def taking_a_second(batches):
        step(batches)
        now[0] += 1.0

    trainer.step = taking_a_second
    progress = trainer.fit()
    assert trainer.stop.reason == TIME_LIMIT
    assert listener.saved == [(progress.global_step, False)]
    assert 35 < progress.global_step < 40  # 50 s - 2 saves of 5 s assumed - 2 steps of 1 s - 1 s, rounded down
