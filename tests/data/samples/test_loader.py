import contextlib
import re
import threading
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.samples.loader import READ_AHEAD, Loader, micro_batch_sizes
from dp_prior.data.samples.order import epoch_order
from dp_prior.data.samples.weighted_order import FollowingOrder
from dp_prior.tensors.batch import Batch
from tests.data.samples.test_weighted_order import divide
from tests.examples import examples
from tests.messages import naming


class Numbers:
    """n samples in memory, which say nothing of it; sample i is i, its mask has i % 5 + 1 valid positions of 5."""

    def __init__(self, n: int):
        self.n = n
        self.device = torch.device("cpu")
        self.valid_counts = torch.arange(n) % 5 + 1

    def __len__(self) -> int:
        return self.n

    def count_valid(self, ids: torch.Tensor) -> int:
        return int(self.valid_counts[ids].sum())

    def fetch(self, ids: torch.Tensor) -> Batch:
        mask = torch.arange(5) < self.valid_counts[ids][:, None]
        x = ids[:, None, None].expand(-1, 5, 1).float()
        return Batch(x=x, cond={}, mask=mask, ids=ids)


def make(n: int, batch_size=4, accumulation=1, seed=0, rank=0, world_size=1) -> Loader:
    return Loader(
        Numbers(n), batch_size=batch_size, accumulation=accumulation, seed=seed, rank=rank, world_size=world_size
    )


def global_rows(n, batch_size, accumulation, world_size, samples_seen, seed=0):
    """(positions, ids) of one global batch over all its ranks, in order of position, and the batches themselves."""
    batches = [
        batch
        for rank in range(world_size)
        for batch in make(n, batch_size, accumulation, seed, rank, world_size).global_batch(samples_seen)
    ]
    positions = torch.cat([batch.positions for batch in batches])
    ids = torch.cat([batch.ids for batch in batches])
    order = positions.argsort()
    return positions[order], ids[order], batches


@examples(100)
@given(n=st.integers(1, 200), seed=st.integers(0, 2**60), epoch=st.integers(0, 2**40))
def test_the_order_of_an_epoch_is_a_permutation(n, seed, epoch):
    assert sorted(epoch_order(seed, epoch, n)) == list(range(n))


def test_the_order_depends_on_seed_and_epoch_and_never_changes_between_versions():
    assert epoch_order(0, 0, 8).tolist() == [0, 4, 2, 5, 1, 6, 7, 3]
    assert epoch_order(3, 1, 8).tolist() == [4, 0, 3, 5, 2, 7, 6, 1]
    orders = {tuple(epoch_order(seed, epoch, 50)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_the_order_is_unbiased():
    first = np.array([epoch_order(0, epoch, 20) for epoch in range(2000)])
    mean_id = first.mean(0)  # of a uniform permutation: 9.5 at every place, standard error 0.13
    assert np.abs(mean_id - 9.5).max() < 0.6
    neighbours = np.corrcoef(first[:, 0], first[:, 1])[0, 1]
    assert abs(neighbours + 1 / 19) < 0.1


@pytest.mark.parametrize(
    ("world_size", "accumulation", "batch_size"), [(4, 1, 3), (2, 2, 3), (1, 4, 3), (3, 2, 2), (1, 1, 12)]
)
def test_orders_of_all_ranks_interleave_to_the_order_of_one(world_size, accumulation, batch_size):
    for samples_seen in (0, 12, 31, 96, 1000):
        positions, ids, _ = global_rows(50, batch_size, accumulation, world_size, samples_seen)
        expected = make(50, batch_size=12).global_batch(samples_seen)[0]
        assert torch.equal(positions, torch.arange(samples_seen, samples_seen + 12))
        assert torch.equal(ids, expected.ids) and torch.equal(positions, expected.positions)


def test_rows_of_micro_batches_follow_the_published_layout():
    positions, _, batches = global_rows(50, 3, 2, 2, 100)
    assert [batch.positions.tolist() for batch in batches] == [
        [100, 102, 104],  # rank 0, first micro-batch
        [106, 108, 110],
        [101, 103, 105],  # rank 1
        [107, 109, 111],
    ]


@pytest.mark.promise("B2", "B3")
@examples(40)
@given(
    n=st.integers(24, 90),
    phases=st.lists(
        st.tuples(
            st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (4, 1)]), st.integers(1, 6), st.integers(1, 9)
        ),
        min_size=1,
        max_size=8,
    ),
)
def test_every_sample_comes_once_per_epoch_across_restarts_and_changes_of_ranks(n, phases):
    samples_seen, seen = 0, []
    for (world_size, accumulation), batch_size, steps in phases:
        for _ in range(steps):
            positions, ids, _ = global_rows(n, batch_size, accumulation, world_size, samples_seen)
            assert positions[0] == samples_seen
            seen += ids.tolist()
            samples_seen += len(ids)
    for epoch in range(len(seen) // n):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))
    rest = seen[len(seen) // n * n :]
    assert len(set(rest)) == len(rest)


def test_seeking_equals_iterating():
    loader = make(23, batch_size=5, accumulation=2)
    for step, batches in enumerate(islice(loader.from_sample(0), 12)):
        for sought in (make(23, 5, 2).global_batch(step * 10), next(make(23, 5, 2).from_sample(step * 10))):
            for batch, expected in zip(sought, batches, strict=True):
                assert torch.equal(batch.ids, expected.ids)
                assert torch.equal(batch.positions, expected.positions)
                assert torch.equal(batch.denominator, expected.denominator)


def test_a_late_epoch_is_reached_at_once():
    assert len(make(23).global_batch(10**15)[0]) == 4


class Stored(Numbers):
    """Samples on disk, of which one may be damaged; `began` counts the reads of all threads."""

    def __init__(self, n: int, reads_disk=True, damaged=None):
        super().__init__(n)
        self.reads_disk, self.damaged = reads_disk, damaged
        self.began, self.threads, self.at_once = 0, set(), threading.Lock()

    def read(self, ids):
        assert self.at_once.acquire(blocking=False), "two threads read at a time"
        self.began += 1
        self.threads.add(threading.current_thread().name)
        self.at_once.release()
        if self.damaged is not None and self.damaged in ids.tolist():
            raise DataError("frames.u8", [f"sample {self.damaged} is damaged"])
        return {"front": ids.clone()}

    def fetch(self, ids, read=None):
        assert threading.current_thread() is threading.main_thread()
        batch = super().fetch(ids)
        assert not self.reads_disk or torch.equal(read["front"], ids)
        return batch


def stored(data, batch_size=4, accumulation=1, rank=0, world_size=1):
    return Loader(data, batch_size=batch_size, accumulation=accumulation, seed=0, rank=rank, world_size=world_size)


@pytest.mark.parametrize(("accumulation", "rank", "world_size"), [(1, 0, 1), (2, 0, 1), (2, 1, 3)])
def test_batches_that_are_read_ahead_are_the_same(accumulation, rank, world_size):
    data = Stored(50)
    loader = stored(data, 2, accumulation, rank, world_size)
    expected = make(50, 2, accumulation, 0, rank, world_size)
    for ours, theirs in zip(loader.from_sample(36), islice(expected.from_sample(36), 40), strict=False):
        assert torch.equal(loader.ids(1200), expected.ids(1200))  # the order is asked by both threads
        for batch, other in zip(ours, theirs, strict=True):
            for name in ("x", "mask", "ids", "positions", "denominator"):
                assert torch.equal(getattr(batch, name), getattr(other, name))
    assert data.threads == {"read-ahead_0"}


def test_only_a_few_batches_are_read_ahead_and_the_thread_ends_with_the_iterator(own_threads):
    data = Stored(1000)
    batches = stored(data).from_sample(0)
    assert not own_threads("read-ahead")  # begins with the first batch
    for count in range(1, 30):
        next(batches)
        assert count <= data.began <= count + READ_AHEAD
    del batches
    assert not own_threads("read-ahead")


@pytest.mark.parametrize("reads_disk", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_batch_after_an_evaluation_is_that_of_the_new_order_whatever_was_read_ahead(
    reads_disk, world_size, own_threads
):
    found = [{"instruction": text, "success_rate": solved, "episodes": 10} for text, solved in (("a", 0.9), ("b", 0.2))]
    tables = {"rollout/by_instruction": found}

    def make(rank=0, data=None):
        order = FollowingOrder(4, {"rollout": ("a", "b")}, divide)
        data = Stored(30, reads_disk) if data is None else data
        return Loader(data, batch_size=4 // world_size, seed=0, rank=rank, world_size=world_size, order=order)

    for rank in range(world_size):
        loader, fresh = make(rank), make(rank)
        batches = loader.from_sample(8)
        before = [next(batches)[0].ids.tolist() for _ in range(4)]
        assert before == [fresh.global_batch(start)[0].ids.tolist() for start in (8, 12, 16, 20)]
        loader.follow({"loss": []})
        assert next(batches)[0].ids.tolist() == fresh.global_batch(24)[0].ids.tolist()
        loader.follow(tables)
        after = [next(batches)[0] for _ in range(9)]  # into the next epoch
        resumed = make(rank)
        resumed.load(loader.state())
        for start, batch, other in zip(range(28, 64, 4), after, resumed.from_sample(28), strict=False):
            assert torch.equal(batch.ids, other[0].ids) and torch.equal(batch.positions, other[0].positions)
            assert torch.equal(batch.positions, torch.arange(start + rank, start + 4, world_size))
        assert [batch.ids.tolist() for batch in after] != [
            fresh.global_batch(start)[0].ids.tolist() for start in range(28, 64, 4)
        ]
        resumed.load(None)
        assert torch.equal(resumed.global_batch(28)[0].ids, fresh.global_batch(28)[0].ids)
        del batches
    assert not own_threads("read-ahead")
    plain = stored(Stored(30))
    plain.follow(tables)
    plain.load({"rollout": {}})
    assert plain.state() is None


def test_what_a_gpu_copies_is_pinned_on_that_gpu(monkeypatch):
    used = []

    @contextlib.contextmanager
    def device(name):
        used.append(name)
        yield
        used.append("left")

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: used.append("pinned") or self + 100)
    loader = Loader(Stored(50), batch_size=4, accumulation=2, seed=0, rank=0, world_size=1, device="cuda:1")
    read = loader._read(0)
    assert used == [torch.device("cuda:1"), "pinned", "left"] * 2
    assert torch.equal(torch.cat([part["front"] for part in read.parts]), read.ids + 100)


def test_what_is_in_memory_needs_no_thread(own_threads):
    data = Stored(1000, reads_disk=False)
    assert next(stored(data).from_sample(0)) and not data.began and not own_threads("read-ahead")


def test_an_error_of_the_thread_is_raised_by_the_batch_that_it_belongs_to(own_threads):
    order = make(50, batch_size=5)
    data = Stored(50, damaged=int(order.ids(20)[2]))
    batches = stored(data, 5).from_sample(0)
    assert [batch.ids.tolist() for (batch,) in islice(batches, 4)] == [order.ids(k).tolist() for k in (0, 5, 10, 15)]
    with pytest.raises(DataError, match=naming("frames.u8", f"sample {data.damaged}")):
        next(batches)
    assert not own_threads("read-ahead")


def test_another_reader_waits_for_the_thread():
    """A rollback, or a look at one batch, while an iterator reads ahead."""
    data = Stored(400)
    loader = stored(data)
    for (batch,), number in zip(loader.from_sample(0), range(60), strict=False):
        assert torch.equal(loader.global_batch(4 * number)[0].ids, batch.ids)


@pytest.mark.parametrize("samples_seen", [0, 9, 20, 46])
@pytest.mark.parametrize(("world_size", "accumulation"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_denominators_share_the_valid_positions_of_the_whole_global_batch(samples_seen, world_size, accumulation):
    _, _, batches = global_rows(25, 3, accumulation, world_size, samples_seen)
    valid = sum(int(batch.mask.sum()) for batch in batches)
    for batch in batches:
        assert batch.denominator.shape == () and batch.denominator.dtype == torch.float32
        assert batch.denominator.item() == pytest.approx(valid / (world_size * accumulation), rel=1e-7)


def test_length_is_that_of_the_data_set_and_the_global_batch_counts_everything():
    loader = make(100, batch_size=4, accumulation=3, world_size=2)
    assert len(loader) == 100 and loader.global_batch_size == 24


@examples(100)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 60), st.integers(1, 5))
def test_ranks_share_a_global_batch_in_micro_batches_within_the_limit(world_size, share, batch_size, accumulation):
    total = share * world_size
    accumulation = 1 if batch_size < total else accumulation  # both at once say what a step is
    sizes = micro_batch_sizes(total, min(batch_size, total), accumulation, world_size)
    assert sum(sizes) == share and min(sizes) >= 1
    assert max(sizes) <= batch_size and max(sizes) - min(sizes) <= 1
    assert len(sizes) == min(share, max(accumulation, -(-share // min(batch_size, total))))  # no more than it takes


@examples(50)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(1, 30), st.integers(0, 200))
def test_every_sample_weighs_the_same_in_micro_batches_of_any_size(world_size, share, batch_size, samples_seen):
    """The mean over ranks and micro-batches of their losses is the mean over the valid positions of the batch."""
    whole = make(70, world_size * share).global_batch(samples_seen)[0]
    found, total = [], 0.0
    for rank in range(world_size):
        loader = Loader(
            Numbers(70), batch_size=batch_size, rank=rank, world_size=world_size, global_batch_size=world_size * share
        )
        batches = loader.global_batch(samples_seen)
        assert len(batches) == loader.accumulation and loader.batch_size == max(map(len, batches)) <= batch_size
        found += batches
        total += sum((b.x[..., 0] * b.mask).sum() / b.denominator for b in batches) / loader.accumulation / world_size
    torch.testing.assert_close(total, (whole.x[..., 0] * whole.mask).sum() / whole.mask.sum(), rtol=1e-5, atol=1e-5)
    positions, ids = torch.cat([b.positions for b in found]), torch.cat([b.ids for b in found])
    assert torch.equal(ids[positions.argsort()], whole.ids)


@pytest.mark.parametrize(("total", "world_size"), [(64, 3), (64, 24), (7, 2), (97, 10), (4, 9), (1_000_003, 1000)])
def test_ranks_that_cannot_share_a_global_batch_are_told_numbers_that_can(total, world_size):
    with pytest.raises(ConfigError, match=naming("data.global_batch_size", total, f"{world_size} ranks")) as caught:
        micro_batch_sizes(total, total, 1, world_size)
    start, change = str(caught.value).split("; start ")[1].split(", or set ")
    for count in map(int, re.findall(r"(\d+) rank", start)):
        assert sum(micro_batch_sizes(total, total, 1, count)) * count == total
    for other in map(int, re.findall(r"\d+", change)):
        assert (
            sum(micro_batch_sizes(other, other, 1, world_size)) * world_size == other
            and abs(other - total) < world_size
        )


def test_sizes_that_disagree_with_a_global_batch_are_told_sizes_that_agree():
    assert micro_batch_sizes(64, 16, 2, 2) == [16, 16]
    product = "batch_size 16 x accumulation 2 x 1 rank = 32"
    with pytest.raises(ConfigError, match=naming("data.global_batch_size", "is 64", product, "train.accumulation", 4)):
        micro_batch_sizes(64, 16, 2, 1)
    assert micro_batch_sizes(64, 16, 1, 1) == [16] * 4
    assert micro_batch_sizes(32, 16, 2, 1) == [16] * 2


@pytest.mark.promise("H2")
def test_a_data_set_smaller_than_a_global_batch_is_refused_by_its_name():
    with pytest.raises(
        ConfigError, match=naming("data.global_batch_size", "global_batch_size 64", 63, "Lower global_batch_size")
    ):
        Loader(Numbers(63), batch_size=8, global_batch_size=64)
    Loader(Numbers(64), batch_size=8, global_batch_size=64)


@pytest.mark.promise("H2")
def test_a_data_set_smaller_than_a_batch_is_refused_with_the_arithmetic():
    product = "batch_size 256 x accumulation 2 x 4 ranks = 2048"
    with pytest.raises(ConfigError, match=naming("data.batch_size", product, 1000, "Lower batch_size")):
        make(1000, batch_size=256, accumulation=2, world_size=4)
    make(2048, batch_size=256, accumulation=2, world_size=4)


def test_batches_go_to_the_device_that_is_asked_for():
    loader = Loader(Numbers(8), batch_size=4, accumulation=1, seed=0, rank=0, world_size=1, device="meta")
    batch = loader.global_batch(0)[0]
    assert {t.device.type for t in (batch.x, batch.mask, batch.ids, batch.positions, batch.denominator)} == {"meta"}
