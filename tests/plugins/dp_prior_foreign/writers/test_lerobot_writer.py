"""What is written is what LeRobot's own class reads."""

import json

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior_foreign.convert import convert
from tests.data.formats.conftest import LENGTHS, TASKS, N, arrays
from tests.data.frames.recordings import ends_of, pictures, write_lerobot
from tests.messages import naming, told
from tests.plugins.dp_prior_foreign.test_convert import command, read


def test_lerobot_metadata_say_what_its_own_class_needs(source, tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    convert(source, tmp_path / "d", "lerobot")
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_frames"], info["total_tasks"]) == ("v3.0", 10, N, 2)
    assert info["features"]["actions"] == {"dtype": "float32", "shape": [2], "names": ["x", "y"]}
    tasks = pandas.read_parquet(tmp_path / "d/meta/tasks.parquet")
    assert tasks.index.tolist() == TASKS and tasks["task_index"].tolist() == [0, 1]
    episodes = pandas.read_parquet(tmp_path / "d/meta/episodes/chunk-000/file-000.parquet")
    assert [list(each) for each in episodes["tasks"]] == [[TASKS[0]], [TASKS[1]], [TASKS[0]]]
    assert episodes["dataset_to_index"].tolist() == ends_of(LENGTHS).tolist()
    rows = pandas.read_parquet(tmp_path / "d/data/chunk-000/file-000.parquet")
    assert rows["frame_index"].tolist() == [i for length in LENGTHS for i in range(length)]
    assert rows["index"].tolist() == list(range(N))
    np.testing.assert_array_equal(rows["timestamp"], (rows["frame_index"] / 10).astype(np.float32))
    stats = json.loads((tmp_path / "d/meta/stats.json").read_text())
    np.testing.assert_allclose(stats["state"]["mean"], arrays()["state"].mean(0), atol=1e-12)
    pixels = pictures(N) / 255
    for name, value in {
        "min": pixels.min((0, 1, 2)),
        "mean": pixels.mean((0, 1, 2)),
        "std": pixels.std((0, 1, 2)),
    }.items():
        np.testing.assert_allclose(np.ravel(stats["front"][name]), value, atol=1e-9)


def test_each_episode_has_its_statistics_however_many_are_listed_at_once(source, tmp_path, monkeypatch):
    """LeRobot loads no list of episodes whose files have different columns, so it could not append without them."""
    pq = pytest.importorskip("pyarrow.parquet")
    convert(source, tmp_path / "one", "lerobot")
    monkeypatch.setattr("dp_prior_foreign.writers.lerobot_writer.LISTED_AT_ONCE", 2)
    convert(source, tmp_path / "two", "lerobot")
    listings = [pq.read_table(tmp_path / name / "meta/episodes/chunk-000/file-000.parquet") for name in ("one", "two")]
    assert listings[0].equals(listings[1]) and str(listings[0].schema) == str(listings[1].schema)
    rows, frames = listings[0].to_pylist(), pictures(N)
    for row, begin, end in zip(rows, [0, *ends_of(LENGTHS)], ends_of(LENGTHS), strict=False):
        assert row["stats/state/max"] == arrays()["state"][begin:end].max(0).tolist()
        assert row["stats/front/count"] == [end - begin]
        np.testing.assert_allclose(np.ravel(row["stats/front/mean"]), frames[begin:end].mean((0, 1, 2)) / 255)
    stats = json.loads((tmp_path / "one/meta/stats.json").read_text())
    assert {f"stats/{key}/{name}" for key, one in stats.items() for name in one} == {
        name for name in rows[0] if name.startswith("stats/")
    }


@pytest.mark.slow
def test_lerobot_s_own_class_reads_what_was_written(source, tmp_path, run_python_with_peers):
    convert(source, tmp_path / "d", "lerobot")
    found = run_python_with_peers(
        """
        import sys, numpy as np
        from benchmarks import peers
        peers.enter()
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
        data = LeRobotDataset("me/d", root=sys.argv[1])
        rows = [data[i] for i in range(len(data))]
        np.savez(sys.argv[2], tasks=[row["task"] for row in rows], **{
            key: np.stack([np.asarray(row[key]) for row in rows]) for key in rows[0] if key != "task"})
        """,
        tmp_path / "d",
        tmp_path / "read.npz",
    )
    assert found == ""
    read_there = np.load(tmp_path / "read.npz")
    for key, values in arrays().items():
        assert np.array_equal(read_there[key].reshape(values.shape), values.astype(read_there[key].dtype)), key
    assert np.array_equal(np.round(read_there["front"] * 255).astype(np.uint8), pictures(N).transpose(0, 3, 1, 2))
    assert read_there["tasks"].tolist() == [TASKS[i] for i in arrays()["task_index"][:, 0]]


@pytest.mark.parametrize(
    ("odd", "named"),
    [
        ({"force": np.zeros((N, 0), np.float32)}, ("'force'", "(0,)")),
        ({"force": np.zeros((N, 2, 0), np.float32)}, ("'force'", "(2, 0)")),
        ({"task_index": np.zeros((N, 2), np.int64)}, ("task_index", "0 tasks")),
        ({"task_index": np.full(N, 0.5)}, ("task_index", "0 tasks")),
        ({"task_index": np.full(N, np.nan)}, ("task_index", "0 tasks")),
        ({"task_index": np.full(N, -1)}, ("task_index", "0 tasks")),
    ],
)
def test_what_lerobot_cannot_hold_is_refused(odd, named, tmp_path):
    pytest.importorskip("pyarrow")
    np.savez(tmp_path / "odd.npz", actions=arrays()["actions"], episode_ends=ends_of(LENGTHS), **odd)
    done = command(tmp_path / "odd.npz", tmp_path / "out", "--to", "lerobot", "--fps", "10")
    assert done.exit_code == 65 and told(done.output, *named, "--leave-out")


def test_numbers_of_the_other_byte_order_become_those_of_this_machine_in_lerobot(tmp_path):
    pytest.importorskip("pyarrow")
    actions = arrays()["actions"]
    swapped = actions.astype(actions.dtype.newbyteorder(">"))
    np.savez(tmp_path / "d.npz", actions=swapped, episode_ends=ends_of(LENGTHS))
    convert(tmp_path / "d.npz", tmp_path / "out", "lerobot", fps=5)
    assert read(tmp_path / "out", "lerobot").read("actions").tobytes() == actions.tobytes()


def test_depth_is_refused_unless_its_pictures_hold_whole_millimetres(tmp_path):
    for package in ("pyarrow", "av", "PIL"):
        pytest.importorskip(package)
    codes = np.random.default_rng(0).integers(0, 4096, (5, 24, 32)).astype(np.uint16)
    depth, gray = {"shape": [24, 32, 1], "info": {"is_depth_map": True}}, {"codec": "ffv1", "pix_fmt": "gray12le"}
    for kind, how in (("image", {}), ("video", {**gray, "options": {}})):
        recorded = write_lerobot(tmp_path / kind, codes, [2, 3], "v3.0", kind, info=depth, **how)
        if kind == "image":
            convert(recorded, tmp_path / "out", "lerobot", renames={"action": "actions"})
            continue
        with pytest.raises(DataError, match=naming("image", "millimetres", "npz, zarr", "--leave-out")):
            convert(recorded, tmp_path / "again", "lerobot", renames={"action": "actions"})


@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (2, 3, 4), (1, 5)])
def test_numbers_of_several_axes_come_back_from_lists_of_lists(tmp_path, shape):
    parquet = pytest.importorskip("pyarrow.parquet")
    values = np.random.default_rng(0).normal(size=(N, *shape))
    np.savez(tmp_path / "d.npz", actions=arrays()["actions"], odd=values, episode_ends=ends_of(LENGTHS))
    convert(tmp_path / "d.npz", tmp_path / "out", "lerobot", fps=5)
    np.testing.assert_array_equal(read(tmp_path / "out", "lerobot").read("odd"), values)
    assert parquet.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")["odd"].to_pylist() == values.tolist()


def test_cameras_whose_folders_are_one_where_case_is_ignored_are_refused_before_anything_is_written(tmp_path):
    for package in ("pyarrow", "PIL"):
        pytest.importorskip(package)
    frames = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), np.uint8)
    cameras = {"Front": frames, "front": frames}
    np.savez(tmp_path / "d.npz", actions=np.zeros((4, 2), "f4"), episode_ends=[2, 4], **cameras)
    with pytest.raises(DataError, match=naming("Front", "front", "--rename")):
        convert(tmp_path / "d.npz", tmp_path / "out", "lerobot", fps=5)
    assert not (tmp_path / "out").exists()


def test_a_camera_whose_folder_windows_refuses_is_written_and_told(tmp_path):
    for package in ("pyarrow", "av"):
        pytest.importorskip(package)
    frames = np.random.default_rng(0).integers(0, 256, (4, 64, 64, 3), np.uint8)
    np.savez(tmp_path / "d.npz", actions=np.zeros((4, 2), "f4"), episode_ends=[2, 4], **{"cam:0": frames})
    lines = convert(tmp_path / "d.npz", tmp_path / "out", "lerobot", fps=5)
    assert told(lines, "cam:0", "--rename") and (tmp_path / "out/videos/cam:0").is_dir()
    lines = convert(tmp_path / "d.npz", tmp_path / "again", "lerobot", fps=5, renames={"cam:0": "cam_0"})
    assert not told(lines, "--rename")
