"""Data sets from one format to another and back, read by this package and by the packages they are for."""

import itertools
import json
import os
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.files.temporary import is_temporary
from dp_prior_foreign.convert import convert
from tests.data.formats.conftest import LENGTHS, TASKS, N, arrays
from tests.data.frames.recordings import ends_of, pictures, write_lerobot, write_robomimic
from tests.messages import naming, told, told_each

RECORDED = Path(__file__).parents[3].parent / "shared" / "data"
RECORDS = {
    "zarr": ZarrStoreConfig,
    "npz": NpzStoreConfig,
    "lerobot": LeRobotStoreConfig,
    "robomimic": RobomimicStoreConfig,
}
EXTRAS = {"zarr": "zarr", "npz": "numpy", "lerobot": "pyarrow", "robomimic": "h5py"}
ENDINGS = {"npz": ".npz", "robomimic": ".hdf5"}
TARGETS = list(RECORDS)
HALF = [pytest.param(target, marks=[pytest.mark.slow] * (number % 2)) for number, target in enumerate(TARGETS)]
RING = [*zip(TARGETS, TARGETS[1:] + TARGETS[:1], strict=True)]  # each once as the first and once as the second
REST = [pair for pair in itertools.product(TARGETS, TARGETS) if pair not in RING]


def place(tmp_path, target, name="out"):
    pytest.importorskip(EXTRAS[target])
    return tmp_path / f"{name}{ENDINGS.get(target, '')}"


def read(path, target):
    return RECORDS[target].model_validate({"path": path}).create()


def frames(store, key):
    source = store.frames(key, store.episode_ends)
    return np.concatenate([block for part in source.parts for block in source.read(part, 0)])


def assert_holds(store, expected, camera="front"):
    assert store.episode_ends.tolist() == ends_of(LENGTHS).tolist()
    for key, values in expected.items():
        found = store.read(key)
        assert found.dtype == values.dtype and found.shape == values.shape, key
        assert found.tobytes() == np.ascontiguousarray(values).tobytes(), key
    assert np.array_equal(frames(store, camera), pictures(N))


@pytest.mark.parametrize("target", TARGETS)
def test_float_pictures_are_written_as_uint8_and_the_line_says_so(target, tmp_path):
    """Diffusion Policy's published Push-T pictures are float32 from 0 to 255."""
    other = np.random.default_rng(0).normal(size=(N, 9, 3, 3)).astype(np.float32)
    numbers = {"actions": arrays()["actions"], "rotations": other, "episode_ends": ends_of(LENGTHS)}
    np.savez(tmp_path / "floats.npz", front=pictures(N).astype(np.float32), **numbers)
    path = place(tmp_path, target)
    line = convert(tmp_path / "floats.npz", path, target, fps=10)
    assert "front: was float32 and is uint8" in line
    assert_holds(read(path, target), {"actions": arrays()["actions"], "rotations": other})


@pytest.mark.parametrize(("first", "second"), [*RING, *(pytest.param(*pair, marks=pytest.mark.slow) for pair in REST)])
def test_every_bit_of_numbers_and_frames_survives_any_two_conversions(source, tmp_path, first, second):
    one, other, back = place(tmp_path, first, "one"), place(tmp_path, second, "other"), tmp_path / "back.npz"
    convert(source, one, first)
    convert(one, other, second)
    line = convert(other, back, "npz")
    assert line.startswith(f"wrote 3 episodes, {N} steps of ") and line.endswith(f"to {back}")
    assert_holds(read(one, first), arrays())
    assert_holds(read(other, second), arrays())
    assert_holds(read(back, "npz"), arrays())
    with zipfile.ZipFile(back) as archive:
        assert json.loads(archive.read("meta.json")) == {"fps": 10, "tasks": TASKS, "names": {"actions": ["x", "y"]}}


def test_npz_is_read_by_numpy(source, tmp_path):
    convert(source, tmp_path / "d.npz", "npz")
    with np.load(tmp_path / "d.npz", allow_pickle=False) as found:
        assert all(np.array_equal(found[key], values) for key, values in arrays().items())
        assert np.array_equal(found["front"], pictures(N))
        assert found["episode_ends"].tolist() == ends_of(LENGTHS).tolist()


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_video_becomes_the_pixels_that_training_sees(tmp_path, version):
    pytest.importorskip("av")
    write_lerobot(tmp_path / "d", pictures(N), LENGTHS, version, "video")
    there = read(tmp_path / "d", "lerobot")
    camera = next(key for key in there.keys() if there.dtype(key) == "video")  # noqa: SIM118
    convert(tmp_path / "d", place(tmp_path, "zarr"), "zarr")
    assert np.array_equal(frames(read(tmp_path / "out", "zarr"), camera), frames(there, camera))


def test_robomimic_keeps_its_paths_in_zarr_and_has_points_for_lerobot(tmp_path):
    pytest.importorskip("h5py")
    write_robomimic(tmp_path / "d.hdf5", pictures(N), LENGTHS)
    convert(tmp_path / "d.hdf5", place(tmp_path, "zarr"), "zarr")
    assert np.array_equal(frames(read(tmp_path / "out", "zarr"), "obs/image"), pictures(N))
    convert(tmp_path / "out", place(tmp_path, "lerobot", "l"), "lerobot", fps=20, renames={"actions": "action"})
    assert {"obs.image", "action", "states"} <= set(read(tmp_path / "l", "lerobot").keys())
    assert read(tmp_path / "l", "lerobot").describe()["fps"] == 20


def test_paths_may_begin_with_the_home_directory(source, tmp_path, monkeypatch):
    """A shell expands no `~` in quotes; a folder of that name in the working directory would be a trap."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(source.parent))
    said = CliRunner().invoke(main, ["convert", f"~/{source.name}", "~/out/new.npz", "--to", "npz"])
    assert said.exit_code == 0 and told(said.output, source.parent / "out" / "new.npz")
    assert NpzStoreConfig(path=Path("~/out/new.npz")).create().keys() and not [*Path().iterdir()]


def test_the_command_names_renames_and_leaves_out(source, tmp_path):
    pytest.importorskip("zarr")
    done = command(
        source, tmp_path / "d", "--to", "zarr", "--rename", "state=agent", "--leave-out", "zeros", "--fps", 5
    )
    assert done.exit_code == 0 and "agent" in done.output and "zeros" not in done.output
    found = read(tmp_path / "d", "zarr")
    assert "agent" in found.keys() and not {"state", "zeros"} & set(found.keys())  # noqa: SIM118
    assert found.metadata()["fps"] == 5
    other = tmp_path / "other.npz"
    np.savez(other, actions=arrays()["actions"], ends=ends_of(LENGTHS))
    done = command(other, tmp_path / "again", "--to", "zarr", "--from", "npz", "--set", "episode_ends=ends")
    assert done.exit_code == 0, done.output


def command(*arguments):
    return CliRunner().invoke(main, ["convert", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--to", "lerobot", "--fps", "10", "--rename", "state=index"], ("'index'", "column")),
        (["--to", "lerobot", "--rename", "state=a/b", "--rename", "zeros=a.b"], ("/", "differ only")),
        (["--to", "zarr", "--rename", "state=actions"], ("two keys", "'actions'")),
        (["--to", "zarr", "--rename", "state"], ("'state'", "THEIRS=OURS")),
        (["--to", "zarr", "--rename", "=agent"], ("'=agent'", "THEIRS=OURS")),
        (["--to", "zarr", "--leave-out", "sate"], ("'sate'", "rename", "'state'")),
        (["--to", "npz"], (".npz",)),
        (["--to", "zarr", "--from", "tape"], ("'tape'",)),
        (["--to", "robomimic"], ("robomimic", ".hdf5")),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_one_clear_error_and_leaves_nothing(source, tmp_path, arguments, problem):
    pytest.importorskip("zarr")
    pytest.importorskip("pyarrow")
    done = command(source, tmp_path / "out", *arguments)
    assert done.exit_code in (64, 65) and told(done.output, *problem)
    assert not (tmp_path / "out").exists() and not [each for each in tmp_path.iterdir() if is_temporary(each)]


@pytest.mark.parametrize(
    ("settings", "span"),
    [({"only": ["1-9"]}, "1-9"), ({"leave_out": [0, "2-3"]}, "2-3"), ({"only": ["0-0", "2-5"]}, "2-5")],
)
def test_ranges_beyond_the_episodes_are_refused_and_leave_nothing(source, tmp_path, settings, span):
    last = len(LENGTHS) - 1
    with pytest.raises(ConfigError, match=naming("--episodes", span, f"0 to {last}")):
        convert(source, tmp_path / "new.npz", "npz", choice=ChoiceConfig.from_json(json.dumps(settings)))
    assert not (tmp_path / "new.npz").exists()
    convert(source, tmp_path / "new.npz", "npz", choice=ChoiceConfig(only=[f"1-{last}"]))


def test_metadata_that_are_no_object_are_refused(source, tmp_path):
    h5py = pytest.importorskip("h5py")
    convert(source, tmp_path / "d.hdf5", "robomimic")
    for text, problem in (("[1]", ("'[1]'", "JSON object")), ("{x", ("dp_prior of data",))):
        with h5py.File(tmp_path / "d.hdf5", "a") as file:
            file["data"].attrs["dp_prior"] = text
        done = command(tmp_path / "d.hdf5", tmp_path / "out.npz", "--to", "npz")
        assert done.exit_code == 65 and told(done.output, *problem)


@pytest.mark.parametrize(
    "foreign",
    [
        *(pytest.param(one, marks=pytest.mark.slow) for one in ({"names": ["x", "y"]}, {"tasks": 7}, {"fps": "ten"})),
        {"names": {"actions": 2}},
        {"tasks": [1]},
    ],
)
def test_attributes_of_other_programs_are_not_taken_for_ours(source, tmp_path, foreign):
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("pyarrow")
    convert(source, tmp_path / "d.zarr", "zarr")
    zarr.open_group(tmp_path / "d.zarr/meta").attrs.update(foreign)
    left_out = ["task_index"] if "tasks" in foreign else []
    convert(tmp_path / "d.zarr", tmp_path / "out", "lerobot", fps=5, left_out=left_out)
    found = LeRobotStoreConfig(path=tmp_path / "out").create()
    assert found.describe()["fps"] == 5 and list(found.texts().values()) == ([""] if "tasks" in foreign else TASKS)


def test_sources_that_lack_something_are_refused_by_name(source, tmp_path):
    pytest.importorskip("pyarrow")
    np.savez(tmp_path / "bare.npz", actions=arrays()["actions"], episode_ends=ends_of(LENGTHS))
    (tmp_path / "text").write_text("x")
    for refused, *named in (
        (command(tmp_path / "bare.npz", tmp_path / "out", "--to", "lerobot"), "--fps"),
        (command(tmp_path / "none", tmp_path / "out", "--to", "npz"), tmp_path / "none"),
        (command(tmp_path / "text", tmp_path / "out.npz", "--to", "npz"), tmp_path / "text", ".npz", ".mcap"),
        (command(tmp_path, tmp_path / "x.npz", "--to", "npz"), tmp_path, tmp_path / "bare.npz"),
    ):
        assert refused.exit_code == 65 and told(refused.output, *named), refused.output
    names = np.array(["a"] * N)
    np.savez(tmp_path / "odd.npz", names=names, few=np.zeros(3), episode_ends=ends_of(LENGTHS))
    done = command(tmp_path / "odd.npz", tmp_path / "out.npz", "--to", "npz")
    assert told(done.output, "'names'", "str32", "--leave-out")
    done = command(tmp_path / "odd.npz", tmp_path / "out.npz", "--to", "npz", "--leave-out", "names")
    assert "has 3 rows, the episodes 14" in done.output
    assert not (tmp_path / "out.npz").exists()
    (tmp_path / "out.npz").write_text("mine")
    assert told(command(source, tmp_path / "out.npz", "--to", "npz").output, tmp_path / "out.npz", "exists")
    inside = command(source, tmp_path / "out.npz/a/b.npz", "--to", "npz")
    assert inside.exit_code == 64 and told(inside.output, "out.npz exists", "name another")
    assert (tmp_path / "out.npz").read_text() == "mine"


@pytest.mark.parametrize("how", [{"left_out": ["task_index"]}, {"renames": {"task_index": "old"}}])
def test_lerobot_has_no_instructions_without_their_numbers(source, tmp_path, how):
    """Every step would have the first of them."""
    pytest.importorskip("pyarrow")
    convert(source, tmp_path / "lerobot", "lerobot", fps=5)
    convert(source, tmp_path / "without.npz", "npz", **how)
    for first, changes in ((source, how), (tmp_path / "lerobot", how), (tmp_path / "without.npz", {})):
        found = tmp_path / f"from_{first.stem}"
        said = convert(first, found, "lerobot", fps=5, **changes)
        assert told(said, "tasks", f"{len(TASKS)} instructions", "'task_index'", "not written")
        assert LeRobotStoreConfig(path=found).create().texts() == {0: ""}


@pytest.mark.parametrize("kind", ["npz", "zarr"])
def test_rows_that_belong_to_no_episode_are_told(tmp_path, kind):
    """As a recorder leaves them that was stopped before it wrote the end of its last episode."""
    whole = ends_of(LENGTHS)
    np.savez(tmp_path / "s.npz", state=np.arange(N), action=np.arange(N), episode_ends=whole[:-1])
    if kind == "zarr":
        zarr = pytest.importorskip("zarr")
        np.savez(tmp_path / "s.npz", state=np.arange(N), action=np.arange(N), episode_ends=whole)
        convert(tmp_path / "s.npz", tmp_path / "s", "zarr")
        zarr.open_group(tmp_path / "s")["meta/episode_ends"].resize(len(whole) - 1)
    source = tmp_path / ("s" if kind == "zarr" else "s.npz")
    said = convert(source, tmp_path / "out.npz", "npz")
    assert told(said, "state", "action", f"{LENGTHS[-1]} rows", f"row {whole[-2]}", "not written")
    assert "not written" not in convert(tmp_path / "out.npz", tmp_path / "again.npz", "npz")


@pytest.mark.parametrize("values", [np.array(["a"] * N), np.arange(N).astype("datetime64[s]")])
def test_types_that_zarr_writes_as_objects_are_no_numbers(values, tmp_path):
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(tmp_path / "data.zarr", mode="w", zarr_format=3)
    root.create_array("meta/episode_ends", data=ends_of(LENGTHS))
    root.create_array("data/actions", data=arrays()["actions"])
    root.create_array("data/odd", data=values)
    done = command(tmp_path / "data.zarr", tmp_path / "out.npz", "--to", "npz")
    assert told(done.output, "'odd'", "--leave-out")
    assert "2 numbers" in CliRunner().invoke(main, ["inspect", str(tmp_path / "data.zarr")]).output


@pytest.mark.parametrize("target", HALF)
def test_a_conversion_that_dies_leaves_no_data_set(source, tmp_path, target):
    path = place(tmp_path, target)
    child = os.fork()
    if child == 0:
        from dp_prior.files import durable

        def die(*_):
            os._exit(9)

        durable.sync_file = die
        convert(source, path, target)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert not path.exists()
    convert(source, path, target)
    assert_holds(read(path, target), arrays())


def write_large_frames(path, lengths):
    """Episodes with frames of 0.6 MB, which are written one by one."""
    count = sum(lengths)
    np.savez(path, actions=np.zeros((count, 2)), episode_ends=ends_of(lengths))
    archive = zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED)
    with archive, archive.open("front.npy", "w") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, 400, 500, 3)}
        np.lib.format.write_array_header_1_0(stream, header)
        for row in range(count):
            stream.write(bytes([row % 256]) * (400 * 500 * 3))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_frames_are_not_held_in_memory(tmp_path, target):
    few = write_large_frames(tmp_path / "few.npz", [10] * 6)
    many = write_large_frames(tmp_path / "many.npz", [10] * 60)  # 360 MB
    child = os.fork()
    if child == 0:
        convert(
            few, place(tmp_path, target, "before"), target, fps=10
        )  # libraries and a video's encoder take memory too
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        convert(many, place(tmp_path, target), target, fps=10)
        os._exit(min(255, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 100  # MB


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "pusht/lerobot_v30",
        "lingzu_open50_v30/lerobot",
        "gr00t_gr1_picknplace/lerobot",
    ],
)
def test_recorded_sets_keep_their_numbers_and_tasks(tmp_path, name):
    path = RECORDED / name
    if not path.is_dir():
        pytest.skip(f"no recorded data at {path}")
    pytest.importorskip("zarr")
    there = read(path, "lerobot")
    cameras = [key for key in there.keys() if there.dtype(key) == "video"]  # noqa: SIM118
    convert(path, tmp_path / "z", "zarr", left_out=cameras)
    convert(tmp_path / "z", tmp_path / "l", "lerobot")
    back = read(tmp_path / "l", "lerobot")
    assert np.array_equal(back.episode_ends, there.episode_ends)
    for key in set(there.keys()) - set(cameras) - {"timestamp", "episode_index", "index", "frame_index"}:
        assert there.read(key).tobytes() == back.read(key).tobytes(), key
    assert back.describe()["fps"] == there.describe()["fps"] and back.describe()["names"] == there.describe()["names"]


@pytest.mark.parametrize("target", HALF)
def test_the_robot_is_kept_through_every_format_and_can_be_named(source, tmp_path, target):
    pytest.importorskip("pyarrow")
    named, through, back = tmp_path / "named", place(tmp_path, target), tmp_path / "back"
    assert command(source, named, "--to", "lerobot", "--robot-type", "so101_follower").exit_code == 0
    convert(named, through, target, renames={"front": "front"})
    assert read(through, target).metadata()["robot_type"] == "so101_follower"
    convert(through, back, "lerobot")
    assert json.loads((back / "meta/info.json").read_text())["robot_type"] == "so101_follower"
    convert(through, tmp_path / "other", "lerobot", robot_type="koch")
    assert json.loads((tmp_path / "other/meta/info.json").read_text())["robot_type"] == "koch"


@pytest.mark.parametrize("odd", [1, 3])
def test_all_keys_that_change_their_shape_are_named_at_once(odd, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for number in range(2):
            demo = file.create_group(f"data/demo_{number}")
            demo["actions"], demo["obs/state"] = np.zeros((5, 2)), np.zeros((5, 3))
            for key in range(odd):
                demo[f"obs/odd_{key}"] = np.zeros((5, 2 + number))
    with pytest.raises(DataError) as caught:
        convert(tmp_path / "d.hdf5", tmp_path / "out.npz", "npz")
    assert told_each(caught.value.problems, *((f"obs/odd_{key}", "demo_1", "(5, 3)") for key in range(odd)))
    assert (odd == 1) or "--leave-out" in caught.value.advice
    assert not (tmp_path / "out.npz").exists()
    convert(tmp_path / "d.hdf5", tmp_path / "out.npz", "npz", left_out=[f"obs/odd_{key}" for key in range(odd)])
