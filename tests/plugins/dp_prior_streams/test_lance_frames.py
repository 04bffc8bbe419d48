import json
import shutil

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.colours import COLOURS
from tests.extras import needs
from tests.messages import naming

needs("lance", "lance")
needs("av", "video")

from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig  # noqa: E402
from dp_prior_streams.lance_record import LanceConfig  # noqa: E402
from tests.plugins.dp_prior_streams.lance_sets import write_lance  # noqa: E402
from tests.plugins.dp_prior_streams.recorded_sets import CAMERA, add_videos, write_v3  # noqa: E402


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """A data set with videos, which no test changes, and the same in Lance tables."""
    folder = tmp_path_factory.mktemp("lance")
    source = add_videos(write_v3(folder / "v3", files=4, episodes_per_file=2), episodes_per_file=3)
    return source, write_lance(source, folder / "lance")


def frames_of(store, key, numbers=None):
    source = store.frames(key, store.episode_ends, COLOURS, numbers)
    return [np.concatenate([*source.read(part, 0)]) for part in source.parts]


def test_frames_are_those_of_the_videos(sets):
    expected = frames_of(LeRobotStoreConfig(path=sets[0]).create(), CAMERA)
    frames = frames_of(LanceConfig(path=sets[1]).create(), CAMERA)
    assert len(frames) == len(expected) == 3
    assert all(map(np.array_equal, frames, expected))


def test_videos_without_a_chosen_episode_are_not_read(sets, monkeypatch):
    from dp_prior_streams.lance_tables import LanceTables

    rows, save = [], LanceTables.save
    monkeypatch.setattr(LanceTables, "save", lambda self, *args: (rows.append(args[2]), save(self, *args)))
    store, numbers = LanceConfig(path=sets[1]).create(), np.array([3, 5])
    frames = frames_of(store, CAMERA, numbers)
    assert {*rows} == {1}
    expected = frames_of(LeRobotStoreConfig(path=sets[0]).create(), CAMERA, numbers)
    assert all(map(np.array_equal, frames, expected))


def test_a_missing_and_a_damaged_video_are_named_by_their_place(sets, tmp_path):
    source = shutil.copytree(sets[0], tmp_path / "v3")
    video = source / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    video.write_bytes(video.read_bytes()[:-2000])
    store = LanceConfig(path=write_lance(source, tmp_path / "damaged")).create()
    with pytest.raises(DataError, match=naming("videos.lance", f"videos/{CAMERA}/chunk-000/file-001.mp4")):
        frames_of(store, CAMERA)
    video.unlink()
    store = LanceConfig(path=write_lance(source, tmp_path / "missing")).create()
    with pytest.raises(DataError, match=naming("videos.lance", f"videos/{CAMERA}/chunk-000/file-001.mp4")):
        frames_of(store, CAMERA)


def test_pictures_in_the_table_are_read(tmp_path):
    from tests.data.frames.recordings import pictures, write_lerobot

    lengths = [90, 7, 12, 8]
    source = write_lerobot(tmp_path / "v3", pictures(sum(lengths), 16, 16), lengths, "v3.0", "image")
    target = write_lance(source, tmp_path / "lance")
    info = json.loads((source / "meta/info.json").read_text())
    (key,) = (key for key, feature in info["features"].items() if feature["dtype"] == "image")
    for numbers in (None, np.array([0, 2])):
        expected = frames_of(LeRobotStoreConfig(path=source).create(), key, numbers)
        frames = frames_of(LanceConfig(path=target).create(), key, numbers)
        assert np.array_equal(np.concatenate(frames), np.concatenate(expected))


def test_a_row_without_the_bytes_of_a_picture_is_named(tmp_path):
    import lance
    import pyarrow as pa

    from tests.data.frames.recordings import pictures, write_lerobot

    lengths = [9, 7]
    source = write_lerobot(tmp_path / "v3", pictures(sum(lengths), 16, 16), lengths, "v3.0", "image")
    target = write_lance(source, tmp_path / "lance")
    info = json.loads((source / "meta/info.json").read_text())
    (key,) = (key for key, feature in info["features"].items() if feature["dtype"] == "image")
    column, place = key.replace(".", "_"), str(target / "frames.lance")
    table = lance.dataset(place).to_table()
    cells = table.column(column).to_pylist()
    cells[11]["bytes"] = None
    changed = pa.array(cells, table.schema.field(column).type)
    table = table.set_column(table.column_names.index(column), column, changed)
    lance.write_dataset(table, place, mode="overwrite", data_storage_version="2.2")
    with pytest.raises(DataError, match=naming("frames.lance", repr(key), "row 11")):
        frames_of(LanceConfig(path=target).create(), key)
