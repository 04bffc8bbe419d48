import os
import shutil

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior_streams.part_cache import NoRoomError
from dp_prior_streams.parts import MIXED_PARTS, PartArray
from tests.extras import needs
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.damages import DAMAGES, rot
from tests.plugins.dp_prior_streams.recorded_sets import opened, streamed
from tests.plugins.dp_prior_streams.web_store import served

needs("pyarrow", "lerobot")


@pytest.fixture
def data(small_set, tmp_path):
    return streamed(small_set, tmp_path / "cache")


def test_the_rows_of_an_array_are_those_of_memory_in_any_order(small_set, data):
    from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig

    whole = LeRobotStoreConfig(path=small_set).create().read("observation.state")
    array = PartArray(data._parts, "state", whole.shape[1:])
    rows = np.random.default_rng(0).integers(0, len(whole), 500)
    assert len(array) == len(whole) and array.shape == whole.shape
    assert np.array_equal(array[rows], whole[rows]) and array[rows].dtype == np.float32
    assert np.array_equal(np.concatenate(list(array.pieces())), whole)


def test_a_part_takes_no_more_bytes_than_it_says(data):
    cache = data._parts.store.cache
    for part in range(len(data._parts.plan.ends)):
        folder = cache.path(data._parts.numbers.name(part))
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert 0.5 * data._parts.numbers.n_bytes(part) < size <= data._parts.numbers.n_bytes(part)
    assert data._parts.least_bytes() > (MIXED_PARTS + 1) * size * 0.8


def test_a_part_that_was_removed_is_brought_again_and_closed_where_it_was_open(data):
    parts, cache = data._parts, data._parts.store.cache
    before, expected_names = np.array(parts.group(0)["state"]), [parts.numbers.name(part) for part in range(12)]
    for name in expected_names[:3]:
        shutil.rmtree(cache.path(name))
    assert not parts.has(0) and expected_names[0] in parts._opened
    assert np.array_equal(parts.group(0)["state"], before) and parts.has(0)
    assert set(parts._opened) <= {path.name for path in (cache.folder / "parts").iterdir()}


def test_without_room_a_part_ahead_waits_and_a_part_that_is_read_removes_those_needed(data):
    parts, cache = data._parts, data._parts.store.cache
    names = [parts.numbers.name(part) for part in range(12)]
    for name in names[1:]:
        shutil.rmtree(cache.path(name))
    parts._opened.clear()
    cache._touched.clear()
    cache._budget = cache.permanent_bytes() + parts.numbers.n_bytes(1) + parts.numbers.source_bytes(1) + 1000
    parts.store.needed = frozenset(names[:1])
    with pytest.raises(NoRoomError):
        parts.bring(1, names[:1])
    assert parts.has(0)
    parts.group(1)
    assert parts.has(1) and not parts.has(0)
    cache._budget = cache.permanent_bytes() + 1000
    with pytest.raises(ConfigError, match=naming("disk_gb")):
        parts.group(2)


def test_other_keys_and_strides_have_other_numbers_in_the_cache(small_set, data, tmp_path):
    digests = {data._parts.numbers.digest}
    for settings in ({"stride": 2}, {"obs": {"state": {"key": "observation.state", "slice": [0, 3]}}}):
        digests.add(streamed(small_set, tmp_path / "cache", **settings)._parts.numbers.digest)
    digests.add(streamed(small_set, tmp_path / "cache")._parts.numbers.digest)
    assert len(digests) == 3


def test_damaged_numbers_are_told_with_their_place(tmp_path):
    import pyarrow.parquet as pq

    from tests.plugins.dp_prior_streams.recorded_sets import write_v3

    folder = write_v3(tmp_path / "set", files=3, episodes_per_file=2)
    file = folder / "data/chunk-000/file-001.parquet"
    table = pq.read_table(file)
    actions = np.stack(table.column("action").to_numpy())
    actions[7, 2] = np.nan
    pq.write_table(table.set_column(1, "action", [list(actions)]), file)
    with pytest.raises(DataError) as expected:
        opened({"type": "lerobot", "path": str(folder)})
    with pytest.raises(DataError, match=naming("action", "dimension 2", "frame 7")) as caught:
        streamed(folder, tmp_path / "cache")
    assert caught.value.problems[-1] == expected.value.problems[-1]


def test_observations_that_differ_in_case_alone_have_files_that_do_not(small_set, tmp_path):
    names = {"State": {"key": "observation.state"}, "state": {"key": "action"}}
    data = streamed(small_set, tmp_path / "cache", obs=names)
    numbers = data._parts.group(0)
    assert (numbers["State"].shape[1], numbers["state"].shape[1]) == (64, 3)
    assert np.array_equal(numbers["state"], numbers["x"])
    folder = data._parts.store.cache.path(data._parts.numbers.name(0))
    files = [path.name.lower() for path in folder.glob("*.npy")]
    assert len({*files}) == len(files) and "state.npy" not in files and "x.npy" in files
    plain = streamed(small_set, tmp_path / "cache", obs={"state": {"key": "action"}})
    folder = plain._parts.store.cache.path(plain._parts.numbers.name(0))
    assert (folder / "state.npy").is_file()


@pytest.mark.parametrize("damage", DAMAGES)
def test_numbers_that_change_while_they_are_open_are_made_again(data, damage, caplog):
    parts, path = data._parts, data._parts.store.cache.path(data._parts.numbers.name(0))
    rows = np.arange(30)
    before = parts.rows(0, "state", rows).copy()
    DAMAGES[damage](path / "state.npy")
    assert np.array_equal(parts.rows(0, "state", rows), before) and np.array_equal(
        parts.group(0)["state"][rows], before
    )
    assert [told(line, path) for line in caplog.messages] == [True]


def test_numbers_that_change_while_they_are_read_are_read_again(data):
    parts, cache = data._parts, data._parts.store.cache
    path, name = cache.path(parts.numbers.name(0)) / "state.npy", parts.numbers.file_names["state"]
    expected, calls = np.array(parts.group(0)["state"]), []

    def take(arrays):
        if len(calls) < 2:
            DAMAGES["a flipped bit"](path)
        calls.append(np.array(arrays[name]))
        return calls[-1]

    assert np.array_equal(parts.read(parts.numbers, 0, parts.numbers.open, take), expected)
    assert [np.array_equal(call, expected) for call in calls] == [False, False, True]

    def disturb(arrays):
        os.utime(path)

    with pytest.raises(UnreadableError, match=naming(path.parent, "data.episodes.cache")):
        parts.read(parts.numbers, 0, parts.numbers.open, disturb)


def test_a_header_that_a_disk_damaged_is_made_again_and_bad_numbers_once(data, monkeypatch):
    parts, cache = data._parts, data._parts.store.cache
    path, before = cache.path(parts.numbers.name(3)), np.array(parts.group(3)["state"])
    for place in (3, 20, 40):  # in the header; NumPy has errors of several types
        parts._opened.clear()
        rot(path / "state.npy", path / "sizes.json", place=place)
        cache._sealed.clear()
        assert np.array_equal(parts.group(3)["state"], before)
    shutil.rmtree(path)
    calls = []
    monkeypatch.setattr(parts.numbers, "fill", lambda *place: (calls.append(place), int("x")))
    with pytest.raises(ValueError, match=naming("'x'")):
        parts.group(3)
    assert len(calls) == 1


@pytest.mark.parametrize("is_always", [False, True])
def test_bytes_that_cannot_be_read_are_fetched_once_more(small_set, tmp_path, is_always):
    name, answers = "data/chunk-000/file-003.parquet", []
    with served(small_set) as web:
        data = streamed(web.url, tmp_path / "before")
        expected = np.array(data._parts.group(3)["state"])

        def fault(number, file):
            if file == name:
                answers.append(file)
                return "zeros" if is_always or len(answers) == 1 else None
            return None

        web.fault = fault
        shutil.rmtree(tmp_path / "before")
        if is_always:
            with pytest.raises(DataError, match=naming(f"{web.url}/{name}")):
                streamed(web.url, tmp_path / "cache")
        else:
            again = streamed(web.url, tmp_path / "cache")
            assert np.array_equal(again._parts.group(3)["state"], expected) and again.fingerprint == data.fingerprint
        assert len(answers) == 2
