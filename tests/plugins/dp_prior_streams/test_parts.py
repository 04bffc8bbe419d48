import shutil

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior_streams.part_cache import NoRoomError
from dp_prior_streams.parts import MIXED_PARTS, PartArray
from tests.extras import needs
from tests.messages import naming
from tests.plugins.dp_prior_streams.recorded_sets import opened, streamed

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
    cache._budget = cache.kept_bytes() + parts.numbers.n_bytes(1) + parts.numbers.source_bytes(1) + 1000
    parts.store.needed = frozenset(names[:1])
    with pytest.raises(NoRoomError):
        parts.bring(1, names[:1])
    assert parts.has(0)
    parts.group(1)
    assert parts.has(1) and not parts.has(0)
    cache._budget = cache.kept_bytes() + 1000
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

    from dp_prior.data.errors import DataError
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
