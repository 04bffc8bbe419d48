"""Laws of streamed data sets: the samples of memory, from any place, on any number of ranks, after any kill."""

import gc
import os
import shutil
import sys
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import ChangedError, DataError, UnreachableError
from dp_prior.data.samples.loader import Loader
from dp_prior_streams import remote_files
from dp_prior_streams.parts import OPEN
from tests.extras import needs
from tests.messages import naming, told
from tests.open_files import open_below
from tests.plugins.dp_prior_streams.damages import DAMAGES
from tests.plugins.dp_prior_streams.recorded_sets import batches_of, like_streamed, streamed, tables_of, write_v3
from tests.plugins.dp_prior_streams.web_store import served
from tests.s3_server import s3_bucket, upload_folder

needs("pyarrow", "lerobot")

FIFTH = 0.2


def gigabytes(folder, share):
    """A share of the tables, in GB, and the metadata."""
    metadata = sum(file.stat().st_size for file in (folder / "meta").rglob("*.parquet"))
    return (tables_of(folder) * share + 2 * metadata) / 1e9


def small(url, cache, folder, **settings):
    """The small set with room for a half of it."""
    return streamed(url, cache, gigabytes(folder, 0.8), **settings)


def emptied(data):
    """Remove all parts from the cache."""
    cache = data._parts.store.cache
    for path in (cache.folder / "parts").iterdir():
        shutil.rmtree(path)
    data._parts._opened.clear()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_S", 0.01)


@pytest.fixture(scope="module")
def memory(small_set, tmp_path_factory):
    """The small set in memory, the order of its streamed twin, and digests of an epoch and a half."""
    data = streamed(small_set, tmp_path_factory.mktemp("streams") / "cache")
    in_memory = like_streamed(small_set, data)
    count = len(in_memory.train) * 3 // 64
    return in_memory, data.part_order(0), batches_of(in_memory, data.part_order(0), count)


@pytest.mark.slow
def test_an_epoch_through_a_fifth_of_the_set_is_that_of_memory_and_fetches_each_part_once(numbers_set, tmp_path):
    total, peaks, done = tables_of(numbers_set), [], threading.Event()
    with served(numbers_set) as web:
        data = streamed(web.url, tmp_path / "cache", gigabytes(numbers_set, FIFTH))
        in_memory = like_streamed(numbers_set, data)
        web.sent.clear()

        def watch():
            while not done.wait(0.002):
                peaks.append(data._parts.store.cache.used())

        watcher = threading.Thread(target=watch)
        watcher.start()
        streams = batches_of(data, data.order(0))
        done.set()
        watcher.join()
        assert streams == batches_of(in_memory, data.part_order(0))
        assert web.bytes_sent("data/") <= 1.1 * total
        assert len(peaks) > 4 and max(peaks) <= gigabytes(numbers_set, FIFTH) * 1e9
        assert web.bytes_sent("meta/") == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="NOT CHECKED: reads /proc")
def test_memory_and_open_files_do_not_grow_from_epoch_to_epoch(numbers_set, tmp_path):
    """Each epoch reads the whole set through a fifth of it, so that nothing of a part that was left may stay.
    A part has three arrays."""
    data = streamed(numbers_set, tmp_path / "cache", gigabytes(numbers_set, FIFTH))
    samples = data.training_samples()
    loader = Loader(samples, batch_size=32, seed=0, rank=0, world_size=1, order=data.order(0))
    batches, sizes, maps, files = loader.from_sample(0), [], [], []
    tracemalloc.start()
    try:
        for _ in range(4):
            for _ in range(len(loader) // 32):
                next(batches)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
            maps.append(Path("/proc/self/maps").read_text().count(str(tmp_path / "cache")))
            files.append(len(open_below(tmp_path / "cache")))
    finally:
        tracemalloc.stop()
        batches.close()
    assert max(sizes[2:]) - sizes[1] < tables_of(numbers_set) / 4, sizes
    assert max(maps) <= 3 * OPEN and max(files[2:]) <= files[1] + OPEN, (maps, files)


@pytest.fixture(params=["disk", "memory", "loopback", "s3"])
def url(request, small_set, monkeypatch):
    """The small set at a place of each kind."""
    if request.param == "disk":
        yield str(small_set)
    elif request.param == "memory":
        import fsspec

        files = {path.relative_to(small_set).as_posix(): path for path in small_set.rglob("*") if path.is_file()}
        fsspec.filesystem("memory").pipe({f"/small_set/{name}": path.read_bytes() for name, path in files.items()})
        yield "memory://small_set"
    elif request.param == "loopback":
        with served(small_set) as web:
            yield web.url
    else:
        pytest.importorskip("s3fs", reason="NOT CHECKED: needs s3fs")
        with s3_bucket(monkeypatch) as client:
            yield upload_folder(client, small_set, "small_set")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_samples_are_those_of_memory_on_any_number_of_ranks_from_any_sample(
    small_set, tmp_path, memory, url, ranks
):
    in_memory, order, _ = memory
    for rank in range(ranks):  # as separate processes do, each opens the shared cache
        data = small(url, tmp_path / "cache", small_set)
        count = len(in_memory.train) // 32  # from the middle of an epoch into the next one
        start = count // 2 * 32
        expected = batches_of(in_memory, order, count, start, rank, ranks)
        assert batches_of(data, data.order(0), count, start, rank, ranks) == expected


def test_ranks_that_read_at_the_same_time_share_a_cache(small_set, tmp_path, memory):
    """With room for all parts, so that a rank that lags behind finds those that the other one has fetched."""
    in_memory, order, _ = memory
    found, room = {}, gigabytes(small_set, 2)
    with served(small_set) as web:
        emptied(streamed(web.url, tmp_path / "cache", room))
        web.sent.clear()

        def train(rank):
            data = streamed(web.url, tmp_path / "cache", room)
            found[rank] = batches_of(data, data.order(0), None, 0, rank, 2)

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found[rank] for rank in range(2)] == [
            batches_of(in_memory, order, None, 0, rank, 2) for rank in range(2)
        ]
        assert 0.8 * tables_of(small_set) <= web.bytes_sent("data/") <= 1.1 * tables_of(small_set)


def test_a_second_start_reads_no_numbers(small_set, tmp_path):
    with served(small_set) as web:
        first = small(web.url, tmp_path / "cache", small_set)
        emptied(first)
        web.sent.clear()
        second = small(web.url, tmp_path / "cache", small_set)
        assert web.sent.total() == 0
    assert second.fingerprint == first.fingerprint and second.spec == first.spec
    assert second.statistics()["state"].q99.tolist() == first.statistics()["state"].q99.tolist()


def test_statistics_that_were_damaged_in_the_cache_are_taken_again_with_a_line(small_set, tmp_path, caplog):
    first = streamed(small_set, tmp_path / "cache")
    [path] = (tmp_path / "cache").glob("*/statistics/*.json")
    content = path.read_bytes()
    DAMAGES["a flipped bit"](path)
    second = streamed(small_set, tmp_path / "cache")
    assert path.read_bytes() == content and second.fingerprint == first.fingerprint
    assert [told(line, path.name) for line in caplog.messages] == [True]


def test_statistics_spec_and_warnings_are_those_of_memory(small_set, tmp_path, memory):
    data, in_memory = small(small_set, tmp_path / "cache", small_set), memory[0]
    assert data.spec == in_memory.spec and data.counts == in_memory.counts and data.warnings() == in_memory.warnings()
    for key, statistics in in_memory.statistics().items():
        for field in ("count", "min", "max", "q01", "q99", "mean", "std"):
            values, expected = (np.asarray(getattr(one, field)) for one in (data.statistics()[key], statistics))
            assert np.allclose(values, expected, rtol=1e-12, atol=1e-14), (key, field)


def test_failing_answers_are_survived_and_the_samples_stay(small_set, tmp_path, memory):
    faults = [503, None, "cut", None, "reset", None, None]
    with served(small_set) as web:
        web.fault = lambda number, name: faults[number % len(faults)]
        data = small(web.url, tmp_path / "cache", small_set)
        assert batches_of(data, data.order(0), len(memory[2])) == memory[2]


@pytest.mark.parametrize("is_before", [True, False], ids=["while a process trains", "between two starts"])
def test_a_changed_object_is_refused_and_never_trained_on(small_set, tmp_path, is_before):
    folder = shutil.copytree(small_set, tmp_path / "set")
    data = small(folder, tmp_path / "cache", folder)
    file = folder / "data/chunk-000/file-005.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    emptied(data)
    if not is_before:
        data = small(folder, tmp_path / "cache", folder)
    with pytest.raises(ChangedError, match=naming("data/chunk-000/file-005.parquet")):
        batches_of(data, data.order(0))


def test_a_place_that_went_away_ends_with_one_line(small_set, tmp_path):
    with served(small_set) as web:
        data = small(web.url, tmp_path / "cache", small_set)
        web.fault = lambda number, name: 503
        with pytest.raises(UnreachableError, match=naming(web.url)):
            batches_of(data, data.order(0))


def test_validation_is_by_whole_parts_so_that_training_does_not_fetch_it(numbers_set, tmp_path):
    data = streamed(numbers_set, tmp_path / "cache")
    plan = data._parts.plan
    parts = {part: set(plan.part_of(data._newest[part]).tolist()) for part in ("train", "val")}
    assert len(parts["val"]) == 6 and not parts["train"] & parts["val"]


@pytest.mark.parametrize("disk_gb", [1e-5, 1e-6, 1e-9])
@pytest.mark.parametrize("settings", [{}, {"choice": {"where": {"task_index": 1}}}], ids=["all", "chosen"])
def test_a_budget_without_room_for_the_parts_that_are_mixed_is_refused(small_set, tmp_path, disk_gb, settings):
    """Also where the metadata alone take more; the number that is told would do at once."""
    with served(small_set) as web:
        with pytest.raises(ConfigError, match=naming("data.episodes", "disk_gb", f"{disk_gb:g}")) as caught:
            streamed(web.url, tmp_path / "cache", disk_gb, **settings)
        least = float(str(caught.value).rsplit(" or more", 1)[0].rsplit(" ", 1)[1])
        assert web.bytes_sent("data/") == 0
        data = streamed(web.url, tmp_path / "cache", least, **settings)
        assert len(batches_of(data, data.order(0), 3)) == 3
        assert data._parts.store.cache.used() <= least * 1e9


def test_a_lowered_budget_frees_the_parts_that_were_used_longest_ago(small_set, tmp_path):
    data = streamed(small_set, tmp_path / "cache")
    cache = data._parts.store.cache
    names = [data._parts.numbers.name(part) for part in range(12)]
    for number, name in enumerate(names):
        os.utime(cache.path(name), (number, number))
    with pytest.raises(ConfigError, match=naming("disk_gb")):
        streamed(small_set, tmp_path / "cache", 1e-5)
    assert all(cache.path(name).exists() for name in names)  # a budget that is refused removes nothing
    lowered = streamed(small_set, tmp_path / "cache", gigabytes(small_set, 0.8))
    remaining = [cache.path(name).exists() for name in names]
    assert lowered._parts.store.cache.used() <= gigabytes(small_set, 0.8) * 1e9
    assert remaining == sorted(remaining) and 4 < sum(remaining) < 12
    in_memory = like_streamed(small_set, data)
    assert batches_of(lowered, lowered.order(0)) == batches_of(in_memory, data.part_order(0))


def test_the_summary_counts_one_part_and_several(small_set, tmp_path):
    for files, expected in ((1, "1 part through"), (2, "2 parts through")):
        folder = write_v3(tmp_path / f"set{files}", files=files, episodes_per_file=6)
        assert f"streamed in {expected}" in streamed(folder, tmp_path / "cache").summary()


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": {"key": "task_index", "values": {"0": 1, "1": 2}}},
        {"previous_action": "before"},
        {"mirror": {"state": {}, "action": {}}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_settings_that_need_all_numbers_in_memory_are_refused_by_name(small_set, tmp_path, settings):
    with pytest.raises((ConfigError, DataError), match=naming(next(iter(settings)))):
        small(small_set, tmp_path / "cache", small_set, **settings)


def test_chosen_episodes_stride_and_later_actions_are_those_of_memory(small_set, tmp_path):
    settings = {
        "choice": {"leave_out": [3, "7-9"]},
        "stride": 2,
        "action": {"key": ["action", "observation.state"], "slice": [1, 20], "ahead": 1},
    }
    data = streamed(small_set, tmp_path / "cache", gigabytes(small_set, 1.2), **settings)
    in_memory = like_streamed(small_set, data, **settings)
    assert data.spec == in_memory.spec
    assert batches_of(data, data.order(0)) == batches_of(in_memory, data.part_order(0))


def test_a_choice_by_a_column_is_that_of_memory(small_set, tmp_path):
    settings = {"choice": {"where": {"task_index": 1}}}
    with served(small_set) as web:
        data = streamed(web.url, tmp_path / "cache", **settings)
        in_memory = like_streamed(small_set, data, **settings)
        assert data.split_ids["train"] and all(number % 2 for number in data.split_ids["train"])
        assert batches_of(data, data.order(0), 5) == batches_of(in_memory, data.part_order(0), 5)


CHOICES = {
    "named numbers of joined columns": {"obs": {"a": {"key": "action", "slice": [0, 2]}, "b": {"key": "task_index"}}},
    "an instruction": {"choice": {"where": {"task_index": [1]}}, "language": {"prompt": {}}},
    "a few episodes": {"choice": {"only": ["2-9", 13, 21]}, "language": {"prompt": {}}, "stride": 2},
    "fractions": {"split": {"train": 0.5, "val": 0.25, "test": 0.25, "seed": 3}},
    "lists of episodes": {"split": {"parts": {"train": ["0-5", 20], "val": [7, 8], "test": [22]}}},
    "few to train on": {"split": {"train": 0.8, "val": 0.2, "max_train_episodes": 5}},
}


@pytest.mark.parametrize("name", CHOICES)
def test_whatever_is_chosen_is_that_of_memory(small_set, tmp_path, name):
    from tests.data.recorded.test_language import embed

    settings = dict(CHOICES[name])
    if "language" in settings:
        settings["language"] = {"prompt": {"folder": embed(tmp_path / "embedded", texts=("do 0", "do 1"))}}
    data = streamed(small_set, tmp_path / "cache", **settings)
    settings.pop("split", None)
    in_memory = like_streamed(small_set, data, **settings)
    assert data.spec == in_memory.spec and data.split_ids == in_memory.split_ids
    assert sorted(data.warnings()) == sorted(in_memory.warnings())
    assert batches_of(data, data.order(0)) == batches_of(in_memory, data.part_order(0))


@pytest.mark.parametrize("has_language", [False, True])
def test_of_chosen_episodes_the_tables_alone_arrive_and_once(small_set, tmp_path, has_language):
    """Of all episodes the numbers of instructions are read with the other numbers, and those of a choice alike."""
    from tests.data.recorded.test_language import embed

    language = {"prompt": {"folder": embed(tmp_path / "embedded", texts=("do 0", "do 1"))}}
    settings = {"choice": {"only": ["4-9"]}} | ({"language": language} if has_language else {})
    tables = {f"data/chunk-000/file-{number:03d}.parquet" for number in (2, 3, 4)}
    with served(small_set) as web:
        for _ in range(2):
            data = streamed(web.url, tmp_path / "cache", **settings)
            batches_of(data, data.order(0))
        sent = {name: count for name, count in web.sent.items() if name.startswith("data/")}
    assert sent == {name: (small_set / name).stat().st_size for name in tables}


def test_the_newest_commit_of_the_hub_stays_and_a_named_one_is_kept(tmp_path, small_set):
    from types import SimpleNamespace

    import fsspec

    class Hub(fsspec.AbstractFileSystem):
        """The files of a folder, as the client of the Hub names them."""

        protocol, cachable = "hf", False
        commit = "a" * 40

        def __init__(self, **options):
            super().__init__(**options)
            self._api = SimpleNamespace(repo_info=lambda repo, **named: SimpleNamespace(sha=self._commit(**named)))

        def _commit(self, repo_type, revision):
            return self.commit if revision == "main" else revision

        @classmethod
        def _strip_protocol(cls, path):
            return path.removeprefix("hf://")

        def resolve_path(self, path):
            name, _, revision = path.removeprefix("datasets/").partition("@")
            resolved = {"repo_type": "dataset", "repo_id": name, "path_in_repo": "", "revision": revision or "main"}
            return SimpleNamespace(**resolved)

        def find(self, path, **options):
            files = [file for file in small_set.rglob("*") if file.is_file()]
            return {f"{path}/{file.relative_to(small_set)}": {"size": file.stat().st_size} for file in files}

        def cat_file(self, path, start=None, end=None, **options):
            assert path.split("/")[2].partition("@")[2] in ("a" * 40, "b" * 40)
            return (small_set / path.split("/", 3)[3]).read_bytes()[start:end]

        def info(self, path, **options):
            return {"size": (small_set / path.split("/", 3)[3]).stat().st_size}

    fsspec.register_implementation("hf", Hub, clobber=True)
    try:
        data = streamed("hf://datasets/me/name", tmp_path / "cache")
        assert data._parts.store.remote.url == f"hf://datasets/me/name@{'a' * 40}"
        Hub.commit = "c" * 40
        emptied(data)
        data = streamed("hf://datasets/me/name", tmp_path / "cache")
        assert len(batches_of(data, data.order(0), 3)) == 3
        assert data._parts.store.remote.url.endswith("a" * 40)
        named = streamed(f"hf://datasets/me/name@{'b' * 40}", tmp_path / "cache")
        assert named._parts.store.remote.url.endswith("b" * 40) and named.fingerprint == data.fingerprint
    finally:
        from huggingface_hub import HfFileSystem

        fsspec.register_implementation("hf", HfFileSystem, clobber=True)
