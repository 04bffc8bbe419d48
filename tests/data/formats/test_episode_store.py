"""Laws that every format keeps, ours and one that knows only what `EpisodeStore` asks for."""

import json
import math
import re
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior_foreign.recording import Recording
from tests.data.frames.recordings import ends_of, pictures
from tests.data.frames.sources import gathered
from tests.messages import naming, told, told_each

LENGTHS = [5, 1, 8, 3]
ENDS, N = ends_of(LENGTHS), sum(LENGTHS)
TEXTS = ["push the T", "pull the T ✓"]


def arrays():
    rng = np.random.default_rng(0)
    return {
        "actions": rng.normal(size=(N, 2)).astype(np.float32),
        "state": rng.normal(size=(N, 3)),
        "grip": rng.integers(0, 200, (N, 1)).astype(np.uint8),
        "task_index": np.repeat([[0], [1], [0], [1]], LENGTHS, axis=0),
    }


class PlainStore(EpisodeStore):
    """Arrays in a folder, with no more than a format must say."""

    format = "plain"

    def __init__(self, path):
        self.path, self.episode_ends = path, np.load(path / "ends.npy")

    def keys(self):
        return {file.stem: self.read(file.stem).shape[1:] for file in self.path.glob("*.npy") if file.stem != "ends"}

    def dtype(self, key):
        return self.read(key).dtype.name

    def read(self, key):
        return np.load(self.path / f"{key}.npy", allow_pickle=False)

    def stored_metadata(self):
        return json.loads((self.path / "said.json").read_text())


class PlainStoreConfig(EpisodeStoreRecord):
    """A folder of arrays."""

    type: Literal["plain"] = "plain"

    path: Path
    """The folder."""

    def create(self):
        return PlainStore(self.path)

    def write(self, recording):
        self.path.mkdir()
        frames = {name: np.concatenate(list(recording.frames(name))) for name in recording.cameras}
        numbers = {name: recording.read(name) for name in recording.keys}
        for name, values in {"ends": recording.ends, **numbers, **frames}.items():
            np.save(self.path / f"{name}.npy", values)
        (self.path / "said.json").write_text(json.dumps(recording.metadata))


FORMATS = {
    "zarr": (ZarrStoreConfig, "zarr", ""),
    "npz": (NpzStoreConfig, "numpy", ".npz"),
    "lerobot": (LeRobotStoreConfig, "pyarrow", ""),
    "robomimic": (RobomimicStoreConfig, "h5py", ".hdf5"),
    "plain": (PlainStoreConfig, "numpy", ""),
}


@pytest.fixture(scope="module", params=FORMATS)
def store(request, tmp_path_factory):
    """The same episodes, with a camera and instructions, written and opened in every format."""
    record, package, ending = FORMATS[request.param]
    pytest.importorskip(package)
    place = tmp_path_factory.mktemp("store")
    np.savez(place / "source.npz", **arrays(), front=pictures(N), episode_ends=ENDS)
    source = NpzStoreConfig(path=place / "source.npz").create()
    source.stored_metadata = lambda: {"fps": 10, "tasks": TEXTS, "names": {"actions": ["x", "y"]}}
    written = record(path=place / f"data{ending}")
    written.write(Recording.of(source, renames={}, left_out=(), fps=None))
    return written.create()


def test_nothing_asks_which_format_it_has():
    package = Path(__file__).parents[3] / "dp_prior"
    asking = re.compile(r"isinstance\([^)]*(Zarr|Npz|LeRobot|Robomimic)Store|case \(?(Zarr|Npz|LeRobot|Robomimic)Store")
    assert [file for file in package.rglob("*.py") if asking.search(file.read_text(encoding="utf-8"))] == []


def test_what_is_written_is_read(store):
    assert store.checked_ends()[1] == [] and store.checked_ends()[0].tolist() == ENDS.tolist()
    for key, values in arrays().items():
        found = store.read(key)
        assert found.dtype == values.dtype and found.tobytes() == values.tobytes(), key
        assert store.dtype(key) == values.dtype.name and store.keys()[key] == values.shape[1:], key
    assert store.metadata()["fps"] == 10 and store.metadata()["names"]["actions"] == ["x", "y"]
    assert store.texts() == dict(enumerate(TEXTS))


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.sets(st.integers(0, len(LENGTHS) - 1), min_size=1), key=st.sampled_from(sorted(arrays())))
def test_episodes_are_slices_of_all_rows(store, numbers, key):
    whole = store.read(key)
    expected = np.concatenate([whole[ENDS[number] - LENGTHS[number] : ENDS[number]] for number in sorted(numbers)])
    found = store.episodes(key, ENDS, np.array(sorted(numbers)))
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_episodes_of_a_key_with_too_few_rows_are_refused(tmp_path):
    np.save(tmp_path / "ends.npy", ENDS)
    np.save(tmp_path / "state.npy", np.zeros((N - 1, 2)))
    for numbers in ([0], [0, 1, 2, 3]):
        with pytest.raises(DataError, match=naming(f"{N - 1} rows", f"{N} steps")):
            PlainStore(tmp_path).episodes("state", ENDS, np.array(numbers))


def test_frames_are_the_pictures_of_all_rows_whichever_parts_they_are_read_in(store):
    source = store.frames("front", ENDS)
    np.testing.assert_array_equal(gathered(source), pictures(N))
    assert sorted(episode for part in source.parts for episode in part.episodes) == list(range(len(LENGTHS)))
    for part in source.parts:
        rest = [block.copy() for block in source.read(part, 1)]
        whole = np.concatenate([block.copy() for block in source.read(part, 0)])
        np.testing.assert_array_equal(np.concatenate([whole[:0], *rest]), whole[1:])
    assert all(path.is_relative_to(source.root) and path.is_file() for path in source.files())


def test_cameras_and_numbers_are_told_apart_and_counted_columns_named(store):
    numbers = {key for key in store.keys() if store.is_number(key)}  # noqa: SIM118
    assert numbers - {*store.counted, *store.cameras()} == arrays().keys()
    assert [*store.cameras()] == ["front"] and store.cameras()["front"] == store.keys()["front"]
    assert store.frame_files("front", ENDS) == []


def test_what_a_data_set_says_about_itself_is_the_same_every_time(store):
    described = json.dumps(store.describe())
    assert json.loads(described)["path"] == str(store.path) and json.dumps(store.describe()) == described
    described = json.dumps(store.frames("front", ENDS).describe())
    assert json.dumps(store.frames("front", ENDS).describe()) == described


def test_files_are_those_of_the_data_set_and_rows_are_located_in_them(store):
    files = store.files(["actions", "state"])
    assert files and all(file.is_file() and file.is_relative_to(store.path) for file in files)
    assert all(store.locate("state", row).startswith(str(store.path)) for row in range(N))


def test_frames_of_no_episodes_or_of_an_unknown_key_are_refused(store):
    with pytest.raises(DataError, match=naming("'fron'", "'front'")):
        store.frames("fron", ENDS)
    with pytest.raises(DataError, match=naming("no episodes")):
        store.frames("front", ends_of([]))
    with pytest.raises(DataError):
        store.frames("state", ENDS)


def test_metadata_of_another_form_are_left_out_and_none_at_all_refused(tmp_path):
    np.save(tmp_path / "ends.npy", ENDS)
    store = PlainStore(tmp_path)
    (tmp_path / "said.json").write_text(json.dumps({"fps": "fast", "tasks": 3, "names": [1], "robot_type": 4}))
    assert store.metadata() == {"fps": None, "tasks": [], "names": {}, "robot_type": None} and store.texts() == {}
    for fps in ("10", 0, -3, math.inf, [10]):
        (tmp_path / "said.json").write_text(json.dumps({"fps": fps}))
        assert store.metadata()["fps"] is None and told(store.rate_fault(), str(tmp_path), repr(fps), "above 0")
    for fps in (None, 10, 0.5):
        (tmp_path / "said.json").write_text(json.dumps({"fps": fps}))
        assert store.metadata()["fps"] == fps and store.rate_fault() is None
    (tmp_path / "said.json").write_text("[1]")
    with pytest.raises(DataError, match=naming("'[1]'", "JSON")):
        store.metadata()


def test_an_episode_without_a_row_is_a_fault(tmp_path):
    np.save(tmp_path / "ends.npy", np.array([3, 3, 7]))
    ends, faults = PlainStore(tmp_path).checked_ends()
    assert ends.tolist() == [3, 3, 7] and told_each(faults, ("episode 1", "row 3", "np.cumsum(lengths)"))
    np.save(tmp_path / "ends.npy", np.array([0, 3, 2]))
    assert told_each(PlainStore(tmp_path).checked_ends()[1], ("episode 0", "row 0"), ("episode 2", "row 2", "row 3"))


def test_planes_of_sixteen_pixels_on_are_depth(tmp_path):
    np.save(tmp_path / "ends.npy", np.array([2]))
    shapes = {"a": (16, 16), "b": (15, 16), "c": (16, 15), "d": (1, 16, 16), "e": (16, 16, 1), "f": (16, 16, 2)}
    for name, shape in shapes.items():
        np.save(tmp_path / f"{name}.npy", np.zeros((2, *shape), np.uint16))
    assert PlainStore(tmp_path).depths() == {name: shapes[name] for name in "ade"}
