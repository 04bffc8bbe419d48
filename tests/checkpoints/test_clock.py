"""Everything that recurs is a function of the clock: no step is missed or repeated, however the steps are cut."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import ConfigError
from tests.messages import naming, told_each

DATASET = 23

cadences = st.one_of(
    st.builds(Cadence, steps=st.integers(1, 7)),
    st.builds(Cadence, samples=st.integers(1, 60)),
    st.builds(Cadence, epochs=st.floats(0.05, 3)),
)
batches = st.lists(st.integers(1, 40), max_size=30)


def clocks(sizes):
    """The clock before the first and after every step."""
    found = [Progress()]
    for size in sizes:
        found.append(found[-1].advance(size))
    return found


@given(batches)
def test_advancing_adds_up(sizes):
    assert clocks(sizes)[-1] == Progress(sum(sizes), len(sizes))


@given(cadences, batches)
def test_due_once_for_every_step_that_crosses_a_multiple(cadence, sizes):
    hits = [cadence.due(before, now, DATASET) for before, now in zip(clocks(sizes), clocks(sizes)[1:], strict=False)]
    if cadence.steps is not None:
        interval, counts = cadence.steps, [clock.global_step for clock in clocks(sizes)]
    else:
        interval = cadence.samples or max(1, round(cadence.epochs * DATASET))
        counts = [clock.samples_seen for clock in clocks(sizes)]
    expected = [
        any(count % interval == 0 for count in range(before + 1, now + 1))
        for before, now in zip(counts, counts[1:], strict=False)
    ]
    assert hits == expected


@given(cadences, batches, st.data())
def test_what_is_due_does_not_depend_on_where_a_run_was_interrupted(cadence, sizes, data):
    assume(sizes)
    moments = clocks(sizes)
    resumed = data.draw(st.integers(0, len(sizes)))
    restored = Progress(moments[resumed].samples_seen, moments[resumed].global_step)
    for size, before in zip(sizes[resumed:], moments[resumed:], strict=False):
        assert restored == before
        after = restored.advance(size)
        assert cadence.due(restored, after, DATASET) == cadence.due(before, before.advance(size), DATASET)
        restored = after


@given(cadences, st.integers(0, 100), st.integers(0, 100))
def test_nothing_is_due_while_the_clock_stands(cadence, samples, steps):
    assert not cadence.due(Progress(samples, steps), Progress(samples, steps), DATASET)


def test_a_cadence_is_shown_with_its_unit_in_the_number_of_its_count():
    shown = [str(Cadence(**{unit: count})) for unit, count in (("epochs", 1), ("epochs", 0.5), ("steps", 1000))]
    assert [*shown, str(Cadence(samples=1))] == ["1 epoch", "0.5 epochs", "1,000 steps", "1 sample"]


def test_the_first_event_comes_after_one_interval_not_at_the_start():
    hits = [Cadence(steps=3).due(Progress(i, i), Progress(i + 1, i + 1), DATASET) for i in range(7)]
    assert hits == [False, False, True, False, False, True, False]


@pytest.mark.parametrize(
    ("epochs", "expected"), [(1, [10, 20]), (0.5, [5, 10, 15, 20]), (2, [20]), (0.001, range(1, 22))]
)
def test_epochs_count_passes_over_the_data(epochs, expected):
    cadence = Cadence(epochs=epochs)
    found = [s for s in range(1, 22) if cadence.due(Progress(s - 1), Progress(s), 10)]
    assert found == list(expected)


def test_an_interval_in_samples_is_the_same_for_every_batch_size():
    for size in (1, 2, 5, 10):
        found = [s for s in range(size, 101, size) if Cadence(samples=50).due(Progress(s - size), Progress(s), DATASET)]
        assert found == [50, 100]


@given(st.lists(st.integers(0, 500), max_size=30), st.integers(1, 5))
def test_an_interval_in_minutes_is_due_in_the_step_in_which_it_ends(steps, minutes):
    cadence, still, seconds = Cadence(minutes=minutes), Progress(), 0
    assert str(cadence) == f"{minutes} minute{'s' * (minutes > 1)}"
    for step in steps:
        before, seconds = seconds, seconds + step
        ends = any(second % (60 * minutes) == 0 for second in range(before + 1, seconds + 1))
        assert cadence.due(still, still, 1, (before, seconds)) == ends


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", ("exactly one", "steps, samples, epochs, minutes", "none of")),
        (
            '{"steps": 1, "epochs": 2}',
            ("exactly one", "steps, samples, epochs, minutes", "steps, epochs; set", "null"),
        ),
        ('{"steps": 0}', ("steps", 1, "found 0")),
        ('{"epochs": 0}', ("epochs", "than 0", "found 0")),
        ('{"minutes": 0}', ("minutes", "than 0", "found 0")),
        ('{"step": 3}', ("step", "unknown key", "'steps'")),
    ],
)
def test_a_cadence_that_means_nothing_is_refused(text, message):
    with pytest.raises(ConfigError) as caught:
        Cadence.from_json(text)
    assert told_each(caught.value.problems, message)


def test_the_clock_and_cadences_are_frozen():
    with pytest.raises(AttributeError):
        Progress().samples_seen = 3
    with pytest.raises(ValueError, match=naming("steps", "TrainConfig.from_json")):
        Cadence(steps=1).steps = 2
