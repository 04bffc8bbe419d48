"""Skipped steps are counted on the device and become known in order, none lost, each at most LAG steps later."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.training.guard import LAG, Guard, NotFiniteError, Readback, Skipped
from dp_prior.training.optimizer import update
from tests.messages import naming
from tests.training.test_trainer import Listener, build


def expected(steps):
    in_a_row, found = 0, []
    for number, is_finite in enumerate(steps, start=1):
        in_a_row = 0 if is_finite else in_a_row + 1
        if not is_finite:
            found.append(Skipped(number, 4 * (number - 1), in_a_row))
    return found


@example([])
@example([True] * 30)
@example([False] * 29 + [True])
@given(st.lists(st.booleans(), max_size=30))
def test_every_skipped_step_is_found_at_once_where_nothing_is_to_be_waited_for(steps):
    guard, found = Guard(torch.device("cpu")), []
    for number, is_finite in enumerate(steps, start=1):
        guard.count(torch.tensor(is_finite), number, 4 * (number - 1))
        found += guard.take_skipped()
        assert found == expected(steps[:number])
    assert guard.counts[0] == len(found)
    assert guard.row_begins == max((skipped.samples_seen for skipped in found if skipped.in_a_row == 1), default=None)


@example([])
@example([True] * 30)
@example([False] * 29 + [True])
@given(st.lists(st.booleans(), max_size=30))
def test_where_copies_take_their_time_none_is_lost_and_none_is_later_than_the_lag(steps):
    guard, found = Guard(torch.device("cpu")), []
    guard._readback = LateReadback()
    for number, is_finite in enumerate(steps, start=1):
        guard.count(torch.tensor(is_finite), number, 4 * (number - 1))
        found += guard.take_skipped()
        assert found == expected(steps[: max(0, number - LAG)])


def test_counts_of_a_checkpoint_go_on():
    guard = Guard(torch.device("cpu"))
    guard.load(torch.tensor([5, 2, 9]))
    guard.count(torch.tensor(False), 10, 36)
    assert guard.take_skipped() == [Skipped(10, 36, 3)]
    assert guard.counts.tolist() == [6, 3, 10]
    assert guard.row_begins == 36, "where the row began in the run before is not known"


def test_steps_before_a_restore_are_not_found_after_it():
    guard = Guard(torch.device("cpu"))
    guard._readback = LateReadback()
    guard.count(torch.tensor(False), 10, 36)
    guard.load(torch.tensor([5, 0, 9]))
    for number in range(11, 12 + LAG):
        guard.count(torch.tensor(True), number, 4 * (number - 1))
    assert guard.take_skipped() == []


@pytest.mark.promise("G2")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_run_ends_at_exactly_the_limit_wherever_the_row_begins(first, late):
    listener = Listener()
    trainer = build(listener, steps=20, nonfinite_limit=3)
    if late:
        trainer.guard._readback = LateReadback()
    spoil(trainer, range(first, first + 3))
    with pytest.raises(
        NotFiniteError, match=naming("3 optimizer steps", f"step {first + 2}", "events.jsonl")
    ) as caught:
        trainer.fit()
    assert trainer.progress.global_step == first + 2 + LAG * late
    assert [error.partition(" was")[0] for error in listener.errors] == [f"step {first + i}" for i in range(3)]
    samples = [(4 * (first - 1) + i) % 12 for i in range(4)]
    assert listener.errors[0].endswith(f"its samples: {samples}")
    assert f"samples {samples}..." in str(caught.value)
    assert caught.value.first_step == first


def test_a_row_that_is_one_short_does_not_end_the_run():
    trainer = build(steps=9, nonfinite_limit=3)
    spoil(trainer, (2, 3, 5, 6, 8))
    assert trainer.fit().global_step == 9
    assert trainer.guard.counts.tolist() == [5, 0, 8]


@pytest.mark.promise("G1")
def test_skipped_step_leaves_weights_averages_moments_and_learned_timesteps_as_they_were():
    class Process:
        steps, learns_timesteps = 4, True
        seen = []

        def self_conditions(self, seed, samples_seen):
            return False

        def observe(self, t, per_sample, valid):
            self.seen.append(valid.sum().item())

    trainer = build(steps=9)
    trainer.online.process = process = Process()
    batches = trainer.loader.from_sample(0)
    trainer.step(next(batches))
    tensors = [*trainer.online.parameters(), *trainer.averages["ema"].model.parameters()]
    tensors += [value for state in trainer.optimizer.state.values() for value in state.values()]
    before = [tensor.clone() for tensor in tensors]
    bad = next(batches)
    bad[1].x.fill_(float("inf"))
    trainer.step(bad)
    assert all(torch.equal(old, new) for old, new in zip(before, tensors, strict=True))
    assert process.seen == [4.0, 0.0]


def test_logged_gradient_norm_is_the_mean_over_the_steps_that_were_not_skipped(monkeypatch):
    updates, listener = [], Listener()

    def recording(*arguments):
        updates.append(update(*arguments))
        return updates[-1]

    monkeypatch.setattr("dp_prior.training.trainer.update", recording)
    trainer = build(listener, steps=4, log_every={"steps": 4})
    spoil(trainer, (2,))
    trainer.fit()
    norms = [norm.item() for norm, finite in updates if finite]
    assert len(norms) == 3 and listener.rows[0][1]["train/grad_norm"] == pytest.approx(sum(norms) / 3)


def spoil(trainer, steps):
    """Make the gradient of these steps, counted from 1, not a number."""
    step = trainer.step

    def spoiled(batches):
        if trainer.progress.global_step + 1 in steps:
            batches[0].x.fill_(float("nan"))
        step(batches)

    trainer.step = spoiled


def test_counts_of_a_checkpoint_are_copied_so_that_its_memory_may_be_used_again():
    guard, counts = Guard(torch.device("cpu")), torch.tensor([5, 2, 9])
    guard.load(counts)
    counts.zero_()
    assert guard.state().tolist() == [5, 2, 9]


class Late:
    """An event of a GPU."""

    def synchronize(self):
        pass


class LateReadback(Readback):
    """One whose values are copied as from a GPU."""

    def put(self, values, *label):
        self._copies.append((values, Late(), label))


@pytest.mark.parametrize(("kind", "lag"), [(Readback, 0), (LateReadback, LAG)])
def test_every_step_is_read_once_in_order(kind, lag):
    readback, found = kind(), []
    for step in range(1, 9):
        readback.put(torch.tensor([10 * step]), step, -step)
        found.append(readback.take())
    assert found == [None] * lag + [([10 * step], (step, -step)) for step in range(1, 9 - lag)]
    assert readback.take() is None


def test_what_is_on_its_way_can_be_waited_for():
    readback = LateReadback()
    assert not readback.settle()
    for step in (1, 2):
        readback.put(torch.tensor([step]), step)
    assert readback.take() is None and readback.settle()
    assert [readback.take(), readback.take()] == [([1], (1,)), ([2], (2,))] and not readback.settle()
