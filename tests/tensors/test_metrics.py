"""The law of this file: a reduction over parts equals NumPy on their concatenation."""

import json
import re
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dp_prior
from dp_prior.tensors import metrics
from dp_prior.tensors.metrics import Means, by_quartile, pad_gather_reduce
from tests.cases import every
from tests.meeting import Meeting
from tests.messages import naming

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


class ThreadRanks:
    """Ranks as threads of one process: every call of `gather` waits until all have called."""

    device = torch.device("cpu")

    def __init__(self, size: int):
        self.num_processes, self.collectives = size, 0
        self._messages, self._local = [None] * size, threading.local()

    @property
    def process_index(self) -> int:
        return self._local.rank

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        self._messages[self.process_index] = tensor
        self._meeting.wait(self.process_index)
        gathered = torch.cat(self._messages)
        self._meeting.wait(self.process_index)
        if self.process_index == 0:
            self.collectives += 1
        return gathered

    def run(self, function):
        """`function(rank)` on every rank; the results, or the exceptions, in order."""
        results, self._meeting = [None] * self.num_processes, Meeting(self.num_processes)

        def work(rank: int) -> None:
            self._local.rank = rank
            try:
                results[rank] = function(rank)
            except Exception as error:
                results[rank] = error
            finally:
                self._meeting.end(rank)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.num_processes)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        return results


def over_ranks(parts, method="mean", weights=None):
    ranks = ThreadRanks(len(parts))
    weights = weights or [None] * len(parts)
    results = ranks.run(lambda rank: pad_gather_reduce(ranks, parts[rank], method, weights[rank]))
    assert ranks.collectives == (len(parts) > 1)
    first = results[0]
    if not isinstance(first, Exception):
        assert all(torch.equal(first, other) or (first.isnan() and other.isnan()) for other in results)
        assert first.shape == () and not first.requires_grad
    return first


values = st.one_of(st.just(0.0), st.floats(-1e4, 1e4, width=16))
ragged = st.lists(st.lists(values, max_size=5), min_size=1, max_size=3)


@given(ragged, st.sampled_from(["mean", "sum", "max", "min"]), st.sampled_from(FLOATS))
def test_floats_reduce_as_numpy_does_on_the_concatenation(parts, method, dtype):
    parts = [torch.tensor(part, dtype=dtype) for part in parts]
    whole = torch.cat(parts)
    found = over_ranks(parts, method)
    if not len(whole) and method in ("max", "min"):
        assert isinstance(found, ValueError)
        return
    with np.errstate(all="ignore"):
        expected = getattr(np, method)(whole.double().numpy()) if len(whole) or method == "sum" else np.nan
    assert found.dtype == dtype
    # both sides round an exact float64 result once
    torch.testing.assert_close(found, torch.tensor(expected).to(dtype), equal_nan=True, rtol=1e-12, atol=0)


@given(
    st.lists(st.lists(st.integers(0, 100), max_size=5), min_size=1, max_size=3),
    st.sampled_from(["mean", "sum", "max", "min"]),
    st.sampled_from(INTEGERS),
)
def test_integers_reduce_exactly(parts, method, dtype):
    parts = [torch.tensor(part, dtype=dtype) for part in parts]
    whole = torch.cat(parts).numpy()
    found = over_ranks(parts, method)
    if not len(whole):
        assert {"mean": lambda: found.isnan(), "sum": lambda: found == 0}.get(
            method, lambda: isinstance(found, ValueError)
        )()
        return
    assert found.dtype == {"mean": torch.float64, "sum": torch.int64}.get(method, dtype)
    assert found.item() == getattr(np, method)(whole)


@given(st.lists(st.lists(st.tuples(values, st.floats(0.125, 8, width=16)), max_size=4), min_size=1, max_size=3))
def test_weighted_mean_is_numpys_average(parts):
    x = [torch.tensor([value for value, _ in part], dtype=torch.float64) for part in parts]
    weights = [torch.tensor([weight for _, weight in part]) for part in parts]
    found = over_ranks(x, "mean", weights)
    if sum(map(len, x)):
        np.testing.assert_allclose(found, np.average(torch.cat(x), weights=torch.cat(weights)), rtol=1e-10, atol=1e-9)
    else:
        assert found.isnan()


def test_zeros_are_values():
    assert over_ranks([torch.zeros(3), torch.tensor([4.0])]) == 1.0
    assert over_ranks([torch.zeros(2), torch.zeros(0)], "max") == 0.0
    assert over_ranks([torch.zeros(2), torch.ones(2)], "min") == 0.0


def test_large_integers_are_not_rounded_through_floats():
    big = 2**53 + 1
    for method in ("max", "min", "sum"):
        assert over_ranks([torch.tensor([big]), torch.zeros(0, dtype=torch.int64)], method).item() == big


def test_ranks_of_different_dtypes_are_promoted_and_an_empty_rank_has_no_say():
    assert over_ranks([torch.tensor([3]), torch.tensor([0.5])], "max").dtype == torch.float32
    assert over_ranks([torch.tensor([3]), torch.tensor([0.5])], "sum") == 3.5
    assert over_ranks([torch.tensor([3]), torch.zeros(0)], "sum").dtype == torch.int64


def test_numbers_and_none_are_one_element_and_no_element():
    assert over_ranks([1, 2.5, None]) == 1.75
    assert over_ranks([0, False, 3], "mean") == 1.0
    assert over_ranks([None, None], "sum") == 0.0


def test_booleans_count():
    parts = [torch.tensor([True, False]), torch.tensor([True])]
    assert over_ranks(parts, "sum") == 2
    assert over_ranks(parts, "mean").item() == 2 / 3
    assert over_ranks(parts, "min").item() is False


@pytest.mark.parametrize("method", ["mean", "sum", "max", "min"])
def test_nan_propagates(method):
    assert over_ranks([torch.tensor([1.0, np.nan]), torch.tensor([2.0])], method).isnan()


def test_all_dimensions_are_reduced_and_half_precision_does_not_overflow_inside():
    assert pad_gather_reduce(None, torch.ones(3, 4, 5), "sum") == 60
    assert pad_gather_reduce(None, torch.full((4096,), 60000.0, dtype=torch.float16)) == 60000
    weight = torch.tensor([[1.0], [3.0]])
    assert pad_gather_reduce(None, torch.tensor([[0.0, 0.0], [4.0, 4.0]]), weight=weight) == 3.0


def test_a_trainer_lends_its_accelerator():
    class Trainer:
        accelerator = ThreadRanks(1)

    assert pad_gather_reduce(Trainer(), torch.tensor([1.0, 2.0], requires_grad=True)) == 1.5


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.sampled_from(["mean", "sum", "max", "min"]),
    st.sampled_from([torch.float32, torch.float64, torch.int64]),
    st.booleans(),
)
def test_rows_reduce_as_numpy_does_along_the_first_axis(lengths, method, dtype, with_nan):
    generator = torch.Generator().manual_seed(sum(lengths))
    parts = [(10 * torch.randn(n, 2, 3, generator=generator)).round().to(dtype) for n in lengths]
    if with_nan and dtype.is_floating_point and len(parts[0]):
        parts[0][0, 1, 2] = torch.nan
    ranks = ThreadRanks(len(parts))
    results = ranks.run(lambda rank: pad_gather_reduce(ranks, parts[rank], method, dim=0))
    assert ranks.collectives == (len(parts) > 1)
    whole = torch.cat(parts).numpy()
    if not len(whole) and method in ("max", "min"):
        assert all(isinstance(found, ValueError) for found in results)
        return
    with np.errstate(all="ignore"):
        expected = getattr(np, method)(whole.astype(np.float64), axis=0) if len(whole) else np.full((2, 3), np.nan)
        expected = np.zeros((2, 3)) if not len(whole) and method == "sum" else expected
    for found in results:
        assert found.shape == (2, 3)
        np.testing.assert_allclose(found.double(), expected, rtol=1e-6)


def test_weighted_rows_and_names_of_numbers():
    parts, weights = [torch.ones(1, 2), torch.tensor([[4.0, 0.0], [4.0, 9.0]])], [torch.ones(1, 1), torch.ones(2, 1)]
    ranks = ThreadRanks(2)
    found, _ = ranks.run(lambda rank: pad_gather_reduce(ranks, parts[rank], weight=weights[rank], dim=0))
    assert found.tolist() == [3.0, pytest.approx(10 / 3)]
    names = [["loss", "score"], ["loss", "speed"]]
    for error in ranks.run(lambda rank: pad_gather_reduce(ranks, parts[rank], dim=0, names=names[rank])):
        assert isinstance(error, RuntimeError) and "different metrics" in str(error)
    with pytest.raises(ValueError, match=naming("dim", 0, "None")):
        pad_gather_reduce(None, 3.0, dim=0)
    with pytest.raises(ValueError, match=naming("dim", 1, "None", 0)):
        pad_gather_reduce(None, torch.ones(2, 2), dim=1)


def test_ranks_that_hold_an_accelerator_are_asked_themselves():
    """They may wait for each other first, which their accelerator does not do."""
    ranks = ThreadRanks(2)
    ranks.accelerator = None
    assert ranks.run(lambda rank: pad_gather_reduce(ranks, float(rank), "sum").item()) == [1.0, 1.0]


def test_every_reduction_of_the_package_goes_through_pad_gather_reduce(monkeypatch):
    """Means and, through them or directly, every evaluator that adds up over ranks."""
    calls = []
    real = metrics.pad_gather_reduce
    assert dp_prior.pad_gather_reduce is real
    monkeypatch.setattr(metrics, "pad_gather_reduce", lambda *a, **k: calls.append(a[0]) or real(*a, **k))
    means, ranks = Means(), ThreadRanks(1)
    means.add("loss", 3.0, 2)
    assert means.reduce(ranks) == {"loss": 1.5} and calls == [ranks]


def test_messages_name_what_was_wrong():
    with pytest.raises(ValueError, match=naming("method", "'median'")):
        pad_gather_reduce(None, torch.ones(1), "median")
    with pytest.raises(ValueError, match=naming("weight", "'sum'")):
        pad_gather_reduce(None, torch.ones(1), "sum", weight=torch.ones(1))
    with pytest.raises(ValueError, match=naming("torch.complex64")):
        pad_gather_reduce(None, torch.ones(1, dtype=torch.complex64))
    with pytest.raises(ValueError, match=naming("x", "max")):
        pad_gather_reduce(None, torch.ones(0), "max")


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), values, st.integers(0, 3)), max_size=6), min_size=1, max_size=3)
)
def test_means_are_the_means_of_everything_added(parts):
    ranks = ThreadRanks(len(parts))

    def work(rank: int) -> dict[str, float]:
        means = Means()
        for name in "abc":
            means.add(name, 0.0, 0)
        for i, (name, value, count) in enumerate(parts[rank]):
            if i % 2:  # tensors and numbers may be mixed
                means.add(name, torch.tensor(value * count), torch.tensor(count))
            else:
                means.add(name, value * count, count)
        result = means.reduce(ranks)
        if ranks.num_processes == 1:
            assert means.reduce(ranks) == {}
        return result

    everything = [entry for part in parts for entry in part]
    expected = {
        name: np.sum([v * c for n, v, c in everything if n == name]) / total
        for name in "abc"
        if (total := sum(c for n, _, c in everything if n == name))
    }
    results = ranks.run(work)
    assert ranks.collectives == (len(parts) > 1)
    for found in results:
        assert found == results[0]
        assert found.keys() == expected.keys()
        np.testing.assert_allclose([found[name] for name in expected], list(expected.values()), rtol=1e-6, atol=1e-6)


def test_means_hold_no_graph_and_no_alias_and_start_again_after_reduce():
    means, value = Means(), torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    means.add("loss", value, 1)
    with torch.no_grad():
        value.fill_(7.0)
    means.add("loss", torch.tensor(5.0, dtype=torch.bfloat16), 1)
    assert means.reduce() == {"loss": 4.0}
    assert means.reduce() == {}


def test_a_long_sum_of_small_float32_losses_is_not_swallowed():
    means = Means()
    means.add("loss", torch.tensor(2.0**24), 1)
    for _ in range(100):
        means.add("loss", torch.tensor(1.0), 0)  # float32 would stay at 2**24
    assert means.reduce() == {"loss": 2.0**24 + 100}


def test_batches_and_vectors_are_named_and_weighted():
    means = Means()
    means.add_batch("plain", torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.ones(2, 2))
    means.add_batch("masked", torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    means.add("error_", torch.tensor([2.0, 9.0]), torch.tensor([1, 3]))
    means.add("share", torch.tensor([2.0, 4.0]), 2)
    assert means.reduce() == {"plain": 4.0, "masked": 2.0, "error_0": 2.0, "error_1": 3.0, "share0": 1.0, "share1": 2.0}
    with pytest.raises(ValueError, match=naming("(2, 2)", "()", "(k,)")):
        means.add("table", torch.ones(2, 2), 1)


def test_names_without_a_count_are_left_out_but_zero_means_stay():
    means = Means()
    means.add("nothing", 0.0, 0)
    means.add("zero", torch.tensor(0.0), 4)
    assert means.reduce() == {"zero": 0.0}


@pytest.mark.parametrize("only_here", [["rollout"], [], [f"many_{i}" for i in range(40)]])
def test_ranks_that_disagree_on_names_are_told_who_lacks_what(only_here):
    ranks = ThreadRanks(3)

    def work(rank: int) -> dict[str, float]:
        means = Means()
        for name in ["loss", *(only_here if rank == 1 else ["score"] if rank == 2 and not only_here else [])]:
            means.add(name, 1.0, 1)
        return means.reduce(ranks)

    errors = ranks.run(work)
    assert all(isinstance(error, RuntimeError) for error in errors)
    if only_here == ["rollout"]:
        assert re.search(naming("rank 0 lacks 'rollout'", "lacks 0"), str(errors[1]))
        assert re.search(naming("rank 1 lacks none", "lacks 1", "zero"), str(errors[0]))


@pytest.mark.parametrize("size", [1, 3])
def test_a_state_continues_where_it_was_taken(size):
    ranks = ThreadRanks(size)

    def work(interrupted: bool):
        def run(rank: int) -> dict[str, float]:
            means = Means()
            for step in range(6):
                means.add("loss", torch.tensor(float(rank + step)), 1)
                means.add("q", torch.tensor([1.0, float(rank)]), torch.tensor([1, step]))
                if interrupted and step == 3:
                    means.collect(ranks)
                    saved = ranks.gather(means.state()["q"][None])[0] if size > 1 else means.state()["q"]
                    assert saved.shape == (2, 2)
                    means = Means() if rank else means  # the main rank holds all there is
                    if rank:
                        means.add("loss", 0.0, 0)
                        means.add("q", torch.zeros(2), torch.zeros(2))
                    restored = Means()
                    restored.load(means.state())
                    means = restored
            return means.reduce(ranks)

        return ranks.run(run)

    assert work(interrupted=True) == work(interrupted=False)


def test_adding_does_not_read_the_device():
    means = Means()
    for _ in range(3):  # meta tensors have no values: any read would raise
        means.add("loss", torch.ones((), device="meta"), torch.ones((), device="meta"))
        means.add_batch("per_sample", torch.ones(4, device="meta"), torch.ones(4, device="meta"))
        values, t = (torch.ones(4, device="meta", dtype=dtype) for dtype in (torch.float32, torch.int64))
        means.add("q", *by_quartile(values, t, 8, values))


@given(st.lists(st.tuples(values, st.integers(0, 99), st.integers(0, 4)), max_size=20))
def test_quartiles_equal_the_loop(rows):
    values, t, weight = (torch.tensor([row[i] for row in rows]) for i in range(3))
    sums, counts = by_quartile(values, t.long(), 100, weight)
    for quarter in range(4):
        inside = [(v, w) for v, step, w in rows if quarter * 25 <= step < (quarter + 1) * 25]
        np.testing.assert_allclose(sums[quarter], sum(v * w for v, w in inside), rtol=1e-9, atol=1e-6)
        assert counts[quarter] == sum(w for _, w in inside)


@every(steps=[1, 2, 3, 7, 100, 1000])
def test_quartiles_cover_any_number_of_steps_and_keep_nan_at_home(steps):
    t = torch.arange(steps)
    values = torch.ones(steps)
    values[-1] = torch.nan
    sums, counts = by_quartile(values, t, steps, torch.ones(steps))
    assert counts.sum() == steps
    assert sums.isnan().sum() == 1 and sums[int(t[-1] * 4 // steps)].isnan()


SCRIPT = """
import json
import dp_prior
from dp_prior.tensors import metrics
from dp_prior.tensors.metrics import Means, by_quartile, pad_gather_reduce
generator = torch.Generator().manual_seed(5)
found = []
for case in range(60):
    lengths = torch.randint(0, 4, (3,), generator=generator).tolist()
    lengths[case % 3] += 1  # some rank of three has something; of one or two perhaps none
    data = [torch.randn(n, generator=generator).round() for n in lengths]
    dtype = [torch.float32, torch.float64, torch.bfloat16, torch.int64][case % 4]
    mine = torch.cat(data[rank::world_size]).to(dtype)  # three parts dealt out to the ranks
    found.append([pad_gather_reduce(accelerator, mine, method).item() for method in ("mean", "sum", "max", "min")])
class Trainer: pass
trainer = Trainer(); trainer.accelerator = accelerator
everything = torch.arange(7.0)
found.append(pad_gather_reduce(trainer, everything[rank::world_size], weight=everything[rank::world_size]).item())
means = Means()
mine = everything[rank::world_size]
means.add_batch("loss", mine, torch.ones(len(mine)))
means.add("q", *by_quartile(mine, torch.arange(7)[rank::world_size], 7, torch.ones(len(mine))))
found.append(means.reduce(accelerator))
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_gloo_ranks_give_what_numpy_gives(run_ranks, world_size):
    generator = torch.Generator().manual_seed(5)
    expected = []
    for case in range(60):
        lengths = torch.randint(0, 4, (3,), generator=generator).tolist()
        lengths[case % 3] += 1
        whole = torch.cat([torch.randn(n, generator=generator).round() for n in lengths]).double().numpy()
        expected.append([getattr(np, method)(whole) for method in ("mean", "sum", "max", "min")])
    outputs = [json.loads(output.splitlines()[-1]) for output in run_ranks(SCRIPT, world_size)]
    assert all(output == outputs[0] for output in outputs)
    *cases, weighted, means = outputs[0]
    for case, (found, wanted) in enumerate(zip(cases, expected, strict=True)):
        tolerance = 2**-8 if case % 4 == 2 else 1e-6  # bfloat16 keeps 8 bits
        np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=1e-7)
    assert weighted == pytest.approx(np.average(np.arange(7), weights=np.arange(7)), rel=1e-6)
    assert means == {"loss": 3.0, "q0": 0.5, "q1": 2.5, "q2": 4.5, "q3": 6.0}


def test_real_ranks_that_disagree_fail_together_instead_of_hanging(run_ranks):
    source = """
from dp_prior.tensors.metrics import Means
means = Means()
means.add("loss", 1.0, 1)
if rank == 1:
    means.add("extra", 1.0, 1)
try:
    means.reduce(accelerator)
except RuntimeError as error:
    print(error)
"""
    outputs = run_ranks(source, 2)
    assert "rank 0 lacks 'extra'" in outputs[1] and "rank 1" in outputs[0]
