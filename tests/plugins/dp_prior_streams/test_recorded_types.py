import numpy as np
import pytest

from tests.extras import needs
from tests.plugins.dp_prior_streams.recorded_sets import (
    TYPES,
    add_types,
    batches_of,
    like_streamed,
    streamed,
    write_v3,
)

needs("pyarrow", "lerobot")


@pytest.fixture(scope="module")
def typed_set(tmp_path_factory):
    """Four tables with a column of every type."""
    return add_types(write_v3(tmp_path_factory.mktemp("streams") / "set", files=4, episodes_per_file=3))


def keys_of_all_types():
    obs = {f"key{number}": {"key": f"of{number}"} for number in range(len(TYPES))}
    obs |= {"some": {"key": "of1", "slice": [1, 3]}, "scalar": {"key": "task_index"}}
    return obs | {"alike": {"key": ["of2", "of2"]}, "of_several": {"key": ["of7", "of1", "of11"]}}


def test_parts_hold_numbers_of_every_type_in_at_most_four_bytes_and_give_the_samples_of_memory(typed_set, tmp_path):
    settings = {"obs": keys_of_all_types(), "action": {"key": "of3", "ahead": 2}, "stride": 2}
    data = streamed(typed_set, tmp_path / "cache", **settings)
    memory = like_streamed(typed_set, data, **settings)
    assert data.spec == memory.spec and data.warnings() == memory.warnings()
    assert batches_of(data, data.order(0)) == batches_of(memory, data.part_order(0))
    for key, statistics in memory.statistics().items():
        assert np.array_equal(data.statistics()[key].q99, statistics.q99), key
    numbers, cache = data._parts.numbers, data._parts.store.cache
    for part in range(len(data._parts.plan.ends)):
        folder = cache.path(numbers.name(part))
        stored = {key: array.dtype for key, array in numbers.open(folder).items() if not key.endswith(".tasks")}
        for number, dtype in enumerate(TYPES):
            wide = np.dtype("<f4") if np.dtype(dtype).itemsize > 4 else np.dtype(dtype).newbyteorder("<")
            assert stored.pop(f"key{number}") == wide, dtype
        narrow = {"some": np.int8, "alike": np.uint8, "x": np.int16}
        assert stored == {**narrow, "scalar": np.float32, "of_several": np.float32}
        assert sum(file.stat().st_size for file in folder.iterdir()) <= numbers.n_bytes(part)
    assert all(array.dtype == np.float32 for key, array in data._parts.group(0).items() if key in settings["obs"])


def test_the_fingerprint_and_the_names_in_the_cache_do_not_depend_on_the_types_of_files(typed_set, tmp_path):
    """Parts of float32, as older versions wrote them, are those of the same name."""
    settings = {"obs": keys_of_all_types(), "action": {"key": "of3"}}
    first = streamed(typed_set, tmp_path / "cache", **settings)
    folder = first._parts.store.cache.path(first._parts.numbers.name(0))
    before = {key: array.copy() for key, array in first._parts.group(0).items()}
    for key, name in first._parts.numbers.file_names.items():
        np.save(folder / f"{name}.npy", before[key], allow_pickle=False)
    (folder / "sizes.json").write_text("{}")
    second = streamed(typed_set, tmp_path / "cache", **settings)
    assert second.fingerprint == first.fingerprint
    assert all(np.array_equal(second._parts.group(0)[key], array) for key, array in before.items())
    assert second._parts.numbers.open(folder)["key1"].dtype == np.int8
