"""Laws of retention, against a brute-force model."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.checkpoints.format import Manifest
from dp_prior.checkpoints.retention import RetentionConfig, ranked
from dp_prior.checkpoints.scan import StoredCheckpoint
from dp_prior.config import ConfigError
from tests.messages import naming

VALUES = st.none() | st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 0.5, 1.0])
HISTORIES = st.lists(st.tuples(st.integers(1, 30), VALUES), max_size=25)


def saved(sequence, step, value):
    """A checkpoint with a loss."""
    about = {"sequence": sequence, "step": step, "samples_seen": step, "world_size": 1, "saved_at": ""}
    return StoredCheckpoint(Path(f"step_{step:08d}"), Manifest.model_construct(**about, metrics={"loss": value}))


def decide(retention, stored, mode):
    """Sequence numbers of the checkpoints that are kept."""
    dropped, _ = retention.decide(stored, "loss", mode)
    return {one.manifest.sequence for one in stored if one not in dropped}


def loss(one):
    return one.value("loss")


def history_of(pairs):
    """Checkpoints in order of saving; steps rise by the drawn amounts."""
    stored, step = [], 0
    for sequence, (increase, value) in enumerate(pairs, start=1):
        step += increase
        stored.append(saved(sequence, step, value))
    return stored


def is_measured(one):
    return loss(one) is not None and math.isfinite(loss(one))


def is_better(one, other, mode):
    """Strictly better, or as good and older."""
    if loss(one) != loss(other):
        return loss(one) < loss(other) if mode == "min" else loss(one) > loss(other)
    return one.manifest.sequence < other.manifest.sequence


@given(HISTORIES, st.sampled_from(["min", "max"]), st.integers(0, 4))
def test_kept_best_are_those_with_fewer_than_k_betters(pairs, mode, k):
    stored = history_of(pairs)
    kept = decide(RetentionConfig(keep_latest=2, keep_best=k), stored, mode)
    newest = {record.manifest.sequence for record in stored[-2:]}
    for record in stored:
        expected = is_measured(record) and k > sum(
            is_better(other, record, mode) for other in stored if is_measured(other)
        )
        assert (record.manifest.sequence in kept) == (expected or record.manifest.sequence in newest)


@given(HISTORIES, st.sampled_from(["min", "max"]), st.integers(2, 4), st.integers(0, 3), st.none() | st.integers(1, 40))
def test_pruning_after_every_save_keeps_what_judging_the_whole_history_keeps(pairs, mode, latest, best, every):
    retention = RetentionConfig(keep_latest=latest, keep_best=best, keep_every=every)
    whole = history_of(pairs)
    stored = []
    for record in whole:
        stored.append(record)
        kept = decide(retention, stored, mode)
        stored = [one for one in stored if one.manifest.sequence in kept]
    assert {record.manifest.sequence for record in stored} == decide(retention, whole, mode)


@given(HISTORIES, st.integers(1, 40))
def test_keep_every_keeps_the_first_at_or_after_each_multiple(pairs, every):
    stored = history_of(pairs)
    kept = decide(RetentionConfig(keep_latest=2, keep_best=0, keep_every=every), stored, "min")
    expected = {record.manifest.sequence for record in stored[-2:]}
    for multiple in range(every, 30 * 25 + every, every):
        after = [record for record in stored if multiple <= record.manifest.step < multiple + every]
        expected |= {record.manifest.sequence for record in after[:1]}
    assert kept == expected


def test_of_equal_values_the_older_is_the_best():
    stored = [saved(1, 10, 0.5), saved(2, 20, 0.3), saved(3, 30, 0.3)]
    assert [one.manifest.sequence for one in ranked(stored, "loss", "min")] == [2, 3, 1]
    assert [one.manifest.sequence for one in ranked(stored, "loss", "max")] == [1, 2, 3]


@pytest.mark.promise("G4")
@pytest.mark.parametrize("mode", ["min", "max"])
def test_missing_nan_and_infinite_values_are_never_best(mode):
    values = [None, math.nan, math.inf, -math.inf]
    assert ranked([saved(i, i, value) for i, value in enumerate(values)], "loss", mode) == []


def test_fewer_than_two_latest_are_refused():
    with pytest.raises(ConfigError, match=naming("keep_latest", 2, 1)):
        RetentionConfig(keep_latest=1)


@pytest.mark.parametrize(
    ("field", "value", "gained"),
    [("keep_latest", 3, {3}), ("keep_best", 2, {2}), ("keep_every", 10, {1, 2, 3})],
)
def test_every_knob_changes_what_is_kept(field, value, gained):
    stored = [saved(1, 10, 0.4), saved(2, 20, 0.1), saved(3, 30, 0.3), saved(4, 40, 0.0), saved(5, 50, None)]
    plain = decide(RetentionConfig(), stored, "min")
    assert plain == {4, 5}
    assert decide(RetentionConfig(**{field: value}), stored, "min") - plain == gained
