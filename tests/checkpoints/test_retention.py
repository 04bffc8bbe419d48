"""Laws of retention, against a brute-force model."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dp_prior.checkpoints.retention import Record, RetentionConfig, ranked

VALUES = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 0.5, 1.0])
HISTORIES = st.lists(st.tuples(st.integers(1, 30), VALUES), max_size=25)


def history_of(pairs):
    """Records in order of saving; steps rise by the drawn amounts."""
    records, step = [], 0
    for sequence, (increase, value) in enumerate(pairs, start=1):
        step += increase
        records.append(Record(sequence, step, value))
    return records


def is_measured(record):
    return record.value is not None and math.isfinite(record.value)


def is_better(one, other, mode):
    """Strictly better, or as good and older."""
    if one.value != other.value:
        return one.value < other.value if mode == "min" else one.value > other.value
    return one.sequence < other.sequence


@given(HISTORIES, st.sampled_from(["min", "max"]), st.integers(0, 4))
def test_kept_best_are_those_with_fewer_than_k_betters(pairs, mode, k):
    records = history_of(pairs)
    kept = RetentionConfig(keep_latest=2, keep_best=k).decide(records, mode)[0]
    newest = {record.sequence for record in records[-2:]}
    for record in records:
        expected = is_measured(record) and k > sum(
            is_better(other, record, mode) for other in records if is_measured(other)
        )
        assert (record.sequence in kept) == (expected or record.sequence in newest)


@given(HISTORIES, st.sampled_from(["min", "max"]), st.integers(2, 4), st.integers(0, 3), st.none() | st.integers(1, 40))
def test_pruning_after_every_save_keeps_what_judging_the_whole_history_keeps(pairs, mode, latest, best, every):
    retention = RetentionConfig(keep_latest=latest, keep_best=best, keep_every=every)
    whole = history_of(pairs)
    stored = []
    for record in whole:
        stored.append(record)
        kept = retention.decide(stored, mode)[0]
        stored = [one for one in stored if one.sequence in kept]
    assert {record.sequence for record in stored} == retention.decide(whole, mode)[0]


@given(HISTORIES, st.integers(1, 40))
def test_keep_every_keeps_the_first_at_or_after_each_multiple(pairs, every):
    records = history_of(pairs)
    kept = RetentionConfig(keep_latest=2, keep_best=0, keep_every=every).decide(records, "min")[0]
    expected = {record.sequence for record in records[-2:]}
    for multiple in range(every, 30 * 25 + every, every):
        after = [record for record in records if multiple <= record.step < multiple + every]
        expected |= {record.sequence for record in after[:1]}
    assert kept == expected


def test_of_equal_values_the_older_is_the_best():
    records = [Record(1, 10, 0.5), Record(2, 20, 0.3), Record(3, 30, 0.3)]
    assert [record.sequence for record in ranked(records, "min")] == [2, 3, 1]
    assert [record.sequence for record in ranked(records, "max")] == [1, 2, 3]


@pytest.mark.promise("G4")
@pytest.mark.parametrize("mode", ["min", "max"])
def test_missing_nan_and_infinite_values_are_never_best(mode):
    values = [None, math.nan, math.inf, -math.inf]
    assert ranked([Record(i, i, value) for i, value in enumerate(values)], mode) == []


def test_fewer_than_two_latest_are_refused():
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        RetentionConfig(keep_latest=1)


@pytest.mark.parametrize(
    ("field", "value", "gained"),
    [("keep_latest", 3, {3}), ("keep_best", 2, {2}), ("keep_every", 10, {1, 2, 3})],
)
def test_every_knob_changes_what_is_kept(field, value, gained):
    records = [Record(1, 10, 0.4), Record(2, 20, 0.1), Record(3, 30, 0.3), Record(4, 40, 0.0), Record(5, 50, None)]
    plain = RetentionConfig().decide(records, "min")[0]
    assert plain == {4, 5}
    assert RetentionConfig(**{field: value}).decide(records, "min")[0] - plain == gained
