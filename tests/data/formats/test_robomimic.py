import json

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats import hdf5_groups
from dp_prior.data.formats.choice import ChoiceConfig
from dp_prior.data.formats.robomimic import ENVIRONMENT, METADATA, RobomimicStoreConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_foreign.recognition import record_of
from dp_prior_foreign.recording import Recording
from dp_prior_studio.inspection.survey import survey
from tests import forks
from tests.data.formats.episodes_apart import encoded
from tests.data.frames.recordings import pictures, write_robomimic
from tests.data.frames.sources import gathered
from tests.data.recorded.trajectories import fetch_all
from tests.messages import naming, told, told_each

h5py = pytest.importorskip("h5py", reason="NOT CHECKED: h5py is not installed")

LENGTHS = [3, 7, 1, 4, 2, 5, 1, 1, 6, 2, 3, 8]


@pytest.fixture
def path(tmp_path):
    path = write_robomimic(tmp_path / "demo.hdf5", pictures(sum(LENGTHS)), LENGTHS)
    with h5py.File(path, "a") as file:
        file["mask/train"] = np.array([b"demo_10", b"demo_2", b"demo_0"])
        file["mask/none"] = np.array([], dtype="S8")
        file["mask/odd"] = np.array([b"demo_0", b"demo_77"])
    return path


def opened(path, **fields):
    return RobomimicStoreConfig(path=path, **fields).create()


def test_demonstrations_come_in_the_order_of_their_numbers(path):
    store = opened(path)
    np.testing.assert_array_equal(store.episode_ends, np.cumsum(LENGTHS))
    np.testing.assert_array_equal(store.read("actions")[:, 0], np.arange(sum(LENGTHS)))
    np.testing.assert_array_equal(store.read("obs/image"), pictures(sum(LENGTHS)))


def test_demonstrations_with_the_same_number_are_all_read(path):
    with h5py.File(path, "a") as file:
        file.copy("data/demo_2", "data/demo_02")
    found = opened(path)
    assert {"demo_2", "demo_02"} < set(found.demonstrations) and len(found.episode_ends) == len(found.demonstrations)


def test_keys_are_the_paths_below_a_demonstration_that_have_one_row_per_step(path):
    with h5py.File(path, "a") as file:
        file["data/demo_0/model"] = np.zeros(9)
    store = opened(path)
    assert store.keys() == {"actions": (2,), "obs/image": (24, 32, 3), "states": (1,)}
    assert store.dtype("obs/image") == "uint8" and store.dtype("actions") == "float32"
    assert store.locate("actions", 3) == f"{path}/data/demo_1[actions]"
    assert store.files(["actions"]) == [path]
    assert store.describe() == {"format": "robomimic HDF5", "path": str(path), "filter": None}


def test_arrays_are_known_by_every_name(path):
    with h5py.File(path, "a") as file:
        for demonstration in file["data"].values():
            demonstration["abs_actions"] = demonstration["actions"]  # a hard link
            demonstration["soft"] = h5py.SoftLink("actions")
            demonstration["lost"] = h5py.SoftLink("none")
            demonstration["elsewhere"] = h5py.ExternalLink("other.hdf5", "/data")
    store = opened(path)
    assert list(store.keys()) == ["abs_actions", "actions", "obs/image", "soft", "states"]
    for key in ("abs_actions", "soft"):
        np.testing.assert_array_equal(store.read(key), store.read("actions"))


def test_what_is_neither_a_demonstration_nor_a_list_has_a_line(path):
    with h5py.File(path, "a") as file:
        file["data/demo_3_bad/x"], file["notes"], file["mask/far"] = 1, 2, h5py.ExternalLink("b.hdf5", "/x")
    found = opened(path, filter="train").unread()
    assert list(found) == ["mask/none", "mask/odd", "mask/train", "data/demo_3_bad", "mask/far", "notes"]
    assert told(found["data/demo_3_bad"], "data/demo_0", "mask/")


def test_a_survey_looks_through_each_demonstration_once(path, monkeypatch):
    looked, found = hdf5_groups.datasets, []
    monkeypatch.setattr(hdf5_groups, "datasets", lambda group: found.append(group.name) or looked(group))
    store = opened(path)
    assert survey(store).signals
    assert sorted(found) == sorted(f"/data/{name}" for name in store.demonstrations)


def test_a_filter_selects_demonstrations_and_keeps_their_order(path):
    store = opened(path, filter="train")
    assert store.demonstrations == ["demo_0", "demo_2", "demo_10"]
    first = np.cumsum(LENGTHS) - LENGTHS
    rows = np.concatenate([np.arange(first[n], first[n] + LENGTHS[n]) for n in (0, 2, 10)])
    np.testing.assert_array_equal(store.read("states")[:, 0], rows)


def test_blocks_put_together_are_the_rows_whatever_their_size(path):
    store = opened(path)
    expected = store.read("actions")
    for first, stop, step in ((0, 43, 2), (5, 31, 100), (9, 10, 1), (10, 10, 3)):
        blocks = list(store._blocks("actions", first, stop, step))
        assert all(0 < len(block) <= step for block in blocks)
        np.testing.assert_array_equal(np.concatenate([expected[:0], *blocks]), expected[first:stop])


@pytest.mark.parametrize(
    "filter, message",
    [
        ("valid", ("demo.hdf5", "mask/valid", "none", "odd", "train")),
        ("none", ("mask/none", "demo.hdf5")),
        ("odd", ("mask/odd", "demo_77", "data/")),
    ],
)
def test_a_filter_that_selects_nothing_or_the_unknown_is_refused(path, filter, message):
    with pytest.raises(DataError, match=naming(*message)):
        opened(path, filter=filter)


def test_damage_is_named(path):
    with h5py.File(path, "a") as file:
        file["data/demo_3"].attrs["num_samples"] = 9
        del file["data/demo_5/actions"]
    store = opened(path)
    _, problems = ChoiceConfig().of(store)
    assert told_each(problems[:2], ("data/demo_3", "4 actions", "num_samples", 9), ("data/demo_5", "'actions'"))
    assert told(problems[-1], '"leave_out": [3, 5]')
    chosen, problems = ChoiceConfig(leave_out=(3, 5)).of(store)
    assert not problems and len(chosen.read(store, "actions")) == sum(LENGTHS) - LENGTHS[3] - LENGTHS[5]


def test_a_file_without_any_actions_of_that_name_is_told_what_reads_it(path):
    with h5py.File(path, "a") as file:
        for demonstration in file["data"].values():
            demonstration.move("actions", "action_dict/gripper")
    with pytest.raises(DataError, match=naming("data/demo_0", "'actions'", "hdf5_groups", "data/demo_*", "action.key")):
        opened(path)
    store = record_of("hdf5_groups", path, ["groups=data/demo_*"]).create()
    assert store.keys()["action_dict/gripper"] == (2,) and store.episode_ends.tolist() == np.cumsum(LENGTHS).tolist()


def test_demonstrations_that_are_not_alike_are_listed(path):
    with h5py.File(path, "a") as file:
        del file["data/demo_1/states"]
        del file["data/demo_2/states"]
        file["data/demo_2/states"] = np.zeros((1, 5), np.float32)
    store = opened(path)
    with pytest.raises(DataError, match=naming("data/demo_1", "'states'", "data/demo_0", '"leave_out": [1]')) as error:
        store.read("states")
    assert (
        "data/demo_2[states] holds float32 of shape (1, 5); expected float32 of shape (1, 1)" in error.value.problems[0]
    )


def test_what_was_declared_and_never_written_is_no_zeros(path):
    with h5py.File(path, "a") as file:
        for number, length in enumerate(LENGTHS):
            group = file[f"data/demo_{number}"]
            chunked = group.create_dataset("chunked", (length, 2), "f4", chunks=(1, 2))
            flat = group.create_dataset("flat", (length, 2), "f4")
            if number != 4:
                chunked[:] = flat[:] = 1
    with pytest.raises(DataError, match=naming("data/demo_4[chunked]", "0 of 2 chunks")):
        opened(path).read("chunked")
    with pytest.raises(DataError, match=naming("data/demo_4[flat]", "0 of 16 bytes")):
        opened(path).read("flat")


FUZZ = """
import sys
from pathlib import Path
import numpy as np
from dp_prior_foreign.recognition import record_of
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.errors import DataError
path, whole, generator = Path(sys.argv[1]), Path(sys.argv[1]).read_bytes(), np.random.default_rng(0)
refused = 0
for _ in range(400):
    data = bytearray(whole)
    for place in generator.integers(0, min(len(data), 20000), generator.integers(1, 9)):
        data[place] = generator.integers(256)
    path.write_bytes(data[: generator.integers(len(data))] if generator.integers(4) == 0 else data)
    try:
        store = RobomimicStoreConfig(path=path).create()
        for key in store.keys():
            assert len(store.read(key)) == store.episode_ends[-1]
    except DataError:
        refused += 1
print(refused)
"""


@pytest.mark.slow
def test_damaged_files_are_read_or_refused(path):
    """In a process of its own, since the library is C."""
    output = forks.call(["-c", FUZZ, path])
    assert output.returncode == 0, output.stderr
    assert int(output.stdout) > 20


def test_texts_of_each_step_are_read(path):
    with h5py.File(path, "a") as file:
        for number, length in enumerate(LENGTHS):
            file[f"data/demo_{number}/words"] = np.array([f"lift {number}".encode()] * length)
            file[f"data/demo_{number}/any_length"] = [f"lift {number}"] * length
    store = opened(path)
    assert not store.is_number("words") and not store.is_number("any_length")
    assert store.dtype("any_length") == "string"  # no Python objects, which are never decoded
    texts = [f"lift {number}".encode() for number in range(len(LENGTHS))]
    np.testing.assert_array_equal(store.read("words"), np.repeat(texts, LENGTHS))
    np.testing.assert_array_equal(store.read("any_length"), np.repeat(texts, LENGTHS))


def test_a_conversion_tells_how_to_leave_out_demonstrations_without_steps(path):
    with h5py.File(path, "a") as file:
        del file["data/demo_4/actions"]
        file["data/demo_4/actions"] = np.zeros((0, 2), np.float32)
        del file["data/demo_4"].attrs["num_samples"]
    taken = {"renames": {}, "left_out": (), "fps": None}
    with pytest.raises(DataError, match=naming("demo_4", "--without 4")) as caught:
        Recording.of(opened(path), **taken)
    assert "--leave-out" not in str(caught.value)  # no camera is at fault
    found = Recording.of(opened(path), choice=ChoiceConfig(leave_out=[4]), **taken)
    assert int(found.ends[-1]) == sum(LENGTHS) - LENGTHS[4]


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(DataError, match=naming("data.episodes.path", "a.hdf5")):
        opened(tmp_path / "a.hdf5")
    with pytest.raises(DataError, match=naming("folder", ".hdf5", "data.episodes.path")):
        opened(tmp_path)
    (tmp_path / "a.hdf5").write_bytes(b"no HDF5" * 100)
    with pytest.raises(DataError, match=naming("a.hdf5", "signature")):
        opened(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["x"] = 1
    with pytest.raises(DataError, match=naming("b.hdf5", "data/demo_0", "robomimic")):
        opened(tmp_path / "b.hdf5")


def test_a_file_cut_short_is_refused(path):
    data = path.read_bytes()
    for share in (0.99, 0.5, 0.1):
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError, match=naming("demo.hdf5", "truncated")):
            opened(path).read("obs/image")


def test_a_data_set_is_described_in_json_and_trained_on(path):
    record = {
        "episodes": {"type": "robomimic", "path": str(path)},
        "obs": {"state": {"key": "states"}},
        "action": {"key": "actions"},
    }
    data = TrajectoriesConfig.from_json(json.dumps(record)).create(horizon=4, n_obs_steps=2, n_action_steps=2)
    assert data.spec.x_shape == (4, 2) and data.spec.cond_shapes == {"state": (2, 1)}
    with pytest.raises(ConfigError, match=naming("filters", "'filter'")):
        RobomimicStoreConfig.from_json(json.dumps({"path": "x", "filters": "train"}))


def test_the_actions_of_robomimic_1_5_are_chosen_by_name_and_joined_in_order(tmp_path):
    """Its files hold one action in several forms: `actions`, `actions_abs`, and the parts of both in `action_dict`."""
    path, random = tmp_path / "d.hdf5", np.random.default_rng(0)
    widths = {"abs_pos": 3, "abs_rot_6d": 6, "gripper": 1, "rel_pos": 3}
    parts = {key: random.normal(size=(12, width)).astype(np.float32) for key, width in widths.items()}
    whole = np.concatenate([parts["abs_pos"], parts["abs_rot_6d"], parts["gripper"]], axis=1)
    with h5py.File(path, "w") as file:
        for number in range(3):
            rows, group = slice(4 * number, 4 * number + 4), file.create_group(f"data/demo_{number}")
            group["actions"], group["actions_abs"] = -whole[rows], whole[rows]
            group["obs/robot0_eef_pos"] = parts["abs_pos"][rows]
            for key, values in parts.items():
                group[f"action_dict/{key}"] = values[rows]
    keys = opened(path).keys()
    assert {f"action_dict/{key}": (width,) for key, width in widths.items()}.items() <= keys.items()

    def learned(action):
        record = {"episodes": {"type": "robomimic", "path": str(path)}, "obs": {"pos": {"key": "obs/robot0_eef_pos"}}}
        chosen = json.dumps({**record, "action": action, "split": {"train": 1, "val": 0}})
        data = TrajectoriesConfig.from_json(chosen).create(horizon=2, n_obs_steps=1, n_action_steps=1)
        return fetch_all(data.train).x[:, 0].numpy()

    absolute = learned({"key": "actions_abs"})
    joined = {"key": [f"action_dict/{key}" for key in ("abs_pos", "abs_rot_6d", "gripper")]}
    np.testing.assert_array_equal(learned(joined), absolute)
    np.testing.assert_array_equal(learned({"key": "actions"}), -absolute)
    np.testing.assert_array_equal(learned(joined | {"slice": [2, 5]}), absolute[:, 2:5])


def test_floats_of_any_width_are_joined(tmp_path):
    """Demonstrations that two programs recorded."""
    path = tmp_path / "d.hdf5"
    values = [np.random.default_rng(number).normal(size=(4, 3)) for number in range(3)]
    with h5py.File(path, "w") as file:
        for number, (rows, dtype) in enumerate(zip(values, ("f4", "f8", "f2"), strict=True)):
            file[f"data/demo_{number}/actions"] = rows.astype(dtype)
    store = RobomimicStoreConfig(path=path).create()
    expected = [rows.astype(dtype) for rows, dtype in zip(values, ("f4", "f8", "f2"), strict=True)]
    np.testing.assert_array_equal(store.read("actions"), np.concatenate(expected))
    np.testing.assert_array_equal(
        store.episodes("actions", store.episode_ends, np.array([0, 2])), np.concatenate([expected[0], expected[2]])
    )


@pytest.mark.parametrize("how", ["rows", "texts"])
def test_pictures_in_rows_are_a_camera(path, how):
    pytest.importorskip("PIL")
    stop = 0
    with h5py.File(path, "a") as file:
        for number, length in enumerate(LENGTHS):
            stop += length
            file[f"data/demo_{number}/obs/png"] = encoded(pictures(sum(LENGTHS))[stop - length : stop], how)
    store = opened(path)
    assert store.cameras() == {"obs/image": (24, 32, 3), "obs/png": (24, 32, 3)}
    np.testing.assert_array_equal(gathered(store.frames("obs/png", store.episode_ends)), pictures(sum(LENGTHS)))


def test_a_last_observation_that_no_action_follows_is_left_out(path):
    with h5py.File(path, "a") as file:
        for number, length in enumerate(LENGTHS):
            file[f"data/demo_{number}/obs/clock"] = np.arange(length + 1)
    np.testing.assert_array_equal(opened(path).read("obs/clock"), np.concatenate([np.arange(n) for n in LENGTHS]))


@pytest.mark.parametrize(
    "told",
    [
        "{",
        '"Lift"',
        '{"env_name": "Lift"}',
        '{"env_name": 3, "type": 1, "env_kwargs": {}}',
        '{"env_name": "A", "type": 3}',
    ],
)
def test_the_simulation_is_told_if_it_is_robosuite(path, told):
    assert RobomimicStoreConfig(path=path).create().environment() is None
    env = {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20}}
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = json.dumps(env)
    store = RobomimicStoreConfig(path=path).create()
    assert store.environment() == {"type": "robosuite", "task": "Lift", "make_arguments": {"control_freq": 20}}
    assert store.metadata()["fps"] == 20
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = told
    assert store.environment() is None and store.metadata()["fps"] is None


@pytest.mark.promise("K15")
@pytest.mark.parametrize(
    "value", ["x", np.arange(9), "many", 51, [50.0, 50.0], np.array(["50"] * 3, "S2"), float("nan")]
)
def test_num_samples_that_is_no_number_of_actions_is_told(value, tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(2):
            group = file.create_group(f"data/demo_{number}")
            group["actions"], group["obs/state"] = np.ones((50, 2)), np.ones((50, 2))
            group.attrs["num_samples"] = 50
        attributes = file["data/demo_1"].attrs
        if isinstance(value, str) and value == "many":  # texts of which each is the same object of the file
            attributes.create("num_samples", ["x" * 1000] * 1000, dtype=h5py.string_dtype())
        else:
            attributes["num_samples"] = value
    _, problems = opened(tmp_path / "a.hdf5").checked_ends()
    assert told_each(problems[:1], ("data/demo_1", "num_samples"))


@pytest.mark.promise("K15")
@pytest.mark.parametrize(
    "value",
    ["[" * 30_000 + "]" * 30_000, '{"env_name": 3}', "{", "[1]", "null", 7, [1, 2], b"\xff",
     '{"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": "often"}}'],
)  # fmt: skip
@pytest.mark.parametrize("name", [ENVIRONMENT, METADATA])
def test_attributes_of_any_kind_are_read_or_told(name, value, tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.ones((5, 2))
        file["data"].attrs[name] = np.bytes_(value) if isinstance(value, bytes) else value
    store = RobomimicStoreConfig(path=tmp_path / "a.hdf5").create()
    for answer in (store.environment, store.stored_metadata, store.rate_fault):
        try:
            answer()
        except DataError as error:
            assert told(str(error), "a.hdf5")
