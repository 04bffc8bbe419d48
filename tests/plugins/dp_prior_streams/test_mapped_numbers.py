import errno
import json
import os
import shutil

import numpy as np
import pytest
import torch

from dp_prior.data.errors import ChangedError, DataError, UnreadableError, UnwritableError
from dp_prior.data.frames.layout import CACHE_FILE
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_streams import mapped_numbers, sealed_folder
from dp_prior_streams.mapped_trajectories import MappedTrajectories
from dp_prior_streams.sealed_folder import SIZES
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.damages import DAMAGES, rot
from tests.plugins.dp_prior_streams.recorded_sets import TYPES, batches_of, config_of, created, extreme_numbers


def test_the_numbers_are_written_once_and_again_when_they_are_damaged(tmp_path, monkeypatch):
    config, calls = config_of("npz", tmp_path), []
    read = mapped_numbers.read_selected
    monkeypatch.setattr(mapped_numbers, "read_selected", lambda *args: (calls.append(args), read(*args))[1])
    first = created(config, MappedTrajectories)
    created(config, MappedTrajectories)
    assert len(calls) == 1
    file = first._numbers.directory / "state.numbers"
    file.write_bytes(file.read_bytes()[:-4])
    assert created(config, MappedTrajectories).fingerprint == first.fingerprint and len(calls) == 2
    shutil.rmtree(first._numbers.directory)
    first._numbers.directory.with_name(f"{first._numbers.directory.name}.incomplete").mkdir()
    created(config, MappedTrajectories)
    created(config.model_copy(update={"stride": 2}), MappedTrajectories)
    assert len(calls) == 4
    names = [path.name for path in (tmp_path / ".dp_prior_frames").iterdir()]
    assert len([name for name in names if not name.endswith(".lock")]) == 2


def test_the_problems_of_all_groups_are_one_report(tmp_path, in_groups):
    config = config_of("zarr", tmp_path)
    state = pytest.importorskip("zarr").open_array(tmp_path / "set.zarr/data/state")
    state[40, 1] = state[590, 1] = np.nan
    with pytest.raises(DataError) as error:
        created(config, MappedTrajectories)
    assert told(str(error.value), "obs.state", "episode 1", "frame 10", "nan")
    assert told(str(error.value), "obs.state", "episode 19", "frame 20", "nan")
    assert not [path for path in (tmp_path / ".dp_prior_frames").iterdir() if path.suffix != ".lock"]


def test_a_full_disk_is_told_before_anything_is_read(tmp_path, monkeypatch):
    config = config_of("npz", tmp_path)
    monkeypatch.setattr(mapped_numbers.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 100))
    with pytest.raises(UnwritableError, match=naming("12,000 bytes", "data.frame_cache", "split.max_rows")):
        created(config, MappedTrajectories)


def test_numbers_move_to_an_accelerator_as_those_in_memory(tmp_path):
    config = config_of("npz", tmp_path)
    expected, data = created(config), created(config, MappedTrajectories)
    for key, column in data.train.columns.items():
        assert column.n_bytes == expected.train.columns[key].n_bytes and column.to("cpu") is column
        assert torch.equal(column.in_memory("cpu").values, expected.train.columns[key].values)


def test_observations_that_differ_in_case_alone_have_files_that_do_not(tmp_path):
    names = {"State": {"key": "state"}, "state": {"key": "action"}, "con": {"key": "action"}}
    config = config_of("npz", tmp_path, obs=names)
    expected, data = created(config), created(config, MappedTrajectories)
    for key in names:
        assert torch.equal(data.train.columns[key].in_memory("cpu").values, expected.train.columns[key].values)
    files = [path.name.lower() for path in data._numbers.directory.glob("*.numbers")]
    assert len({*files}) == len(files) == 4 and not {"con.numbers", "state.numbers"}.intersection(files)


def set_of_all_types(kind, folder, rows=600, types=TYPES):
    """Observations and an action in every type, some of them chosen, joined, reordered or of a later step."""
    random = np.random.default_rng(0)
    arrays = {f"of{number}": extreme_numbers(dtype, rows, random) for number, dtype in enumerate(types)}
    arrays["scalar"] = np.arange(rows, dtype=np.uint8)
    arrays["picture"] = random.integers(0, 255, (rows, 2, 4), np.uint8)
    ends = np.arange(30, rows + 1, 30)
    if kind == "npz":
        np.savez(folder / "types.npz", **arrays, episode_ends=ends)
    else:
        root = pytest.importorskip("zarr").open_group(folder / "types.zarr", mode="w")
        for name, values in arrays.items():
            root.create_array(f"data/{name}", data=values, chunks=(100, *values.shape[1:]))
        root.create_array("meta/episode_ends", data=ends)
    obs = {f"key{number}": {"key": f"of{number}"} for number in range(len(types))}
    obs |= {"some": {"key": "of1", "slice": [1, 3]}, "scalar": {"key": "scalar"}, "picture": {"key": "picture"}}
    obs |= {"alike": {"key": ["picture", "scalar"]}, "of_several": {"key": ["of7", "scalar", "of11"]}}
    document = {"type": "trajectories", "device": "cpu", "obs": obs, "action": {"key": "of3", "ahead": 2}}
    document |= {"episodes": {"type": kind, "path": str(folder / f"types.{kind}")}, "previous_action": "before"}
    return TrajectoriesConfig.from_json(json.dumps(document), source="data")


@pytest.mark.parametrize("kind", ["npz", "zarr"])
def test_numbers_of_every_type_take_four_bytes_or_fewer_and_give_the_samples_of_memory(kind, tmp_path, in_groups):
    config = set_of_all_types(kind, tmp_path)
    expected, data = created(config), created(config, MappedTrajectories)
    assert data.fingerprint == expected.fingerprint and data.spec == expected.spec
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))
    for key, statistics in expected.statistics().items():
        assert np.array_equal(data.statistics()[key].q99, statistics.q99), key
    assert kind == "npz" or data._numbers.plan.group_ends[0] < len(data._numbers.arrays["x"])
    stored = {key: array.stored.dtype for key, array in data._numbers.arrays.items()}
    for number, dtype in enumerate(TYPES):
        is_wide = np.dtype(dtype).itemsize > 4
        assert stored.pop(f"key{number}") == np.dtype("<f4" if is_wide else dtype).newbyteorder("<"), dtype
    integers = {"some": np.int8, "scalar": np.uint8, "picture": np.uint8, "alike": np.uint8, "x": np.int16}
    assert stored == {**integers, "of_several": np.float32}
    rows = len(data._numbers.arrays["x"])
    for key, array in data._numbers.arrays.items():
        n_bytes = rows * array.stored[0].nbytes
        assert (data._numbers.directory / f"{key}.numbers").stat().st_size == n_bytes


def test_episodes_that_hold_a_key_in_several_types_are_stored_as_float32(tmp_path, in_groups, monkeypatch):
    config = config_of("zarr", tmp_path, rows=6000)
    expected, read = created(config), mapped_numbers.RememberedChoice.read

    def reading(self, store, key):
        values = read(self, store, key)
        is_last = self.numbers[-1] == len(self.recorded) - 1
        self.recorded_values[key] = values.astype(np.float64 if is_last else np.float32)
        return self.recorded_values[key]

    monkeypatch.setattr(mapped_numbers.RememberedChoice, "read", reading)
    data = created(config, MappedTrajectories)
    assert {array.stored.dtype for array in data._numbers.arrays.values()} == {np.dtype(np.float32)}
    assert data._numbers.plan.group_ends[0] < len(data._numbers.arrays["x"])
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("moment", ["between two runs", "while a run reads"])
def test_mapped_numbers_of_the_same_size_that_changed_are_made_again(tmp_path, damage, moment, caplog):
    config = config_of("npz", tmp_path)
    expected, data = created(config), created(config, MappedTrajectories)
    DAMAGES[damage](data._numbers.directory / "state.numbers")
    if moment == "between two runs":
        data = created(config, MappedTrajectories)
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))
    assert data.fingerprint == expected.fingerprint
    assert [told(line, data._numbers.directory) for line in caplog.messages] == [True]


@pytest.mark.parametrize("verify", ["sizes", "hashes"])
def test_a_bit_that_the_disk_flipped_in_mapped_numbers_is_seen_by_hashes(tmp_path, verify):
    config = config_of("npz", tmp_path)
    expected, directory = created(config), created(config, MappedTrajectories)._numbers.directory
    rot(directory / "state.numbers", directory / SIZES)
    data = created(config.model_copy(update={"verify": verify}), MappedTrajectories)
    is_equal = batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))
    assert is_equal == (verify == "hashes")
    rot(directory / CACHE_FILE, directory / SIZES)
    data = created(config, MappedTrajectories)  # the index cannot be read
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))


def test_mapped_numbers_of_an_older_version_are_made_again(tmp_path):
    config = config_of("npz", tmp_path)
    expected, directory = created(config), created(config, MappedTrajectories)._numbers.directory
    (directory / SIZES).unlink()
    data = created(config, MappedTrajectories)
    assert (directory / SIZES).is_file() and data._numbers.directory == directory
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))


@pytest.mark.parametrize("is_hidden", [False, True], ids=["its time changed", "its time was set back"])
def test_numbers_cannot_be_made_again_from_a_data_set_that_changed_in_the_run(tmp_path, is_hidden):
    config = config_of("npz", tmp_path)
    data = created(config, MappedTrajectories)
    source, status = tmp_path / "set.npz", (tmp_path / "set.npz").stat()
    with np.load(source) as file:
        arrays = dict(file)
    arrays["state"][5] += 1
    np.savez(source, **arrays)
    if is_hidden:
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    rows = data.train.columns["state"].rows
    before = rows(torch.arange(9)).clone()  # as they were mapped, whatever the data set is now
    DAMAGES["a flipped bit"](data._numbers.directory / "state.numbers")
    with pytest.raises(ChangedError, match=naming(data._numbers.directory)):
        rows(torch.arange(9))
    assert len(before) == 9


def test_a_complete_folder_of_mapped_numbers_needs_no_lock(tmp_path, monkeypatch):
    config = config_of("npz", tmp_path)
    expected, first = created(config), created(config, MappedTrajectories)

    def refuse(*place):
        raise PermissionError

    monkeypatch.setattr(mapped_numbers, "build_lock", refuse)
    monkeypatch.setattr(sealed_folder, "replace_file", refuse)
    os.utime(first._numbers.directory / "state.numbers", (1, 1))  # as a copy for all users has
    data = created(config, MappedTrajectories)
    assert batches_of(data, data.order(0)) == batches_of(expected, expected.order(0))


def test_mapped_numbers_of_a_user_who_shares_none_are_neither_removed_nor_called_a_full_disk(tmp_path, monkeypatch):
    config = config_of("npz", tmp_path)
    directory = created(config, MappedTrajectories)._numbers.directory

    def refused(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(sealed_folder, "_stamp", refused)
    with pytest.raises(UnreadableError, match=naming(directory, os.strerror(errno.EACCES))):
        created(config, MappedTrajectories)
    assert (directory / "state.numbers").is_file()


def test_a_folder_for_mapped_numbers_that_cannot_be_made_is_named_with_its_setting(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableError, match=naming(tmp_path / "file", "data.frame_cache")):
        created(config_of("npz", tmp_path, frame_cache=str(tmp_path / "file")), MappedTrajectories)
