"""Demonstrations that no format reads are called what they are, and the page's lines make of them what is read."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior_foreign.recognition import kind_of, known_kind, record_of
from dp_prior_studio.inspection.inspect import inspect
from tests.messages import naming

PAGE = Path(__file__).parents[3] / "docs/own_data.md"
LENGTHS = (3, 12)  # names without zeros sort 10 before 2


def signals(steps):
    rows = np.arange(steps, dtype=np.float32)[:, None]
    front = np.broadcast_to(rows[..., None, None], (steps, 8, 9, 3)).astype(np.uint8)
    return {
        "state": rows + np.arange(4, dtype=np.float32),
        "action": rows + np.arange(2, dtype=np.float32),
        "front": front,
    }


def write_arrays_apart(folder, arrays):
    for key, values in arrays.items():
        np.save(folder / f"{key}.npy", values)


def write_steps_apart(folder, arrays):
    for step in range(len(arrays["action"])):
        np.savez(folder / f"step_{step}.npz", **{key: values[step] for key, values in arrays.items()})


def write_table(folder, arrays):
    image = pytest.importorskip("PIL.Image", reason="NOT CHECKED: the image extra is not installed")
    for step, frame in enumerate(arrays["front"]):
        image.fromarray(frame).save(folder / f"{step}.jpg", quality=95)
    rows = np.column_stack([np.arange(len(arrays["action"])), arrays["state"][:, :2], arrays["action"]])
    np.savetxt(folder / "states.csv", rows, delimiter=",", header="t,x,y,to_x,to_y", comments="")


def write_pickle(folder, arrays):
    folder.with_suffix(".pkl").write_bytes(pickle.dumps(arrays))


def recordings(root, write):
    for number, steps in enumerate(LENGTHS):
        (root / f"recordings/ep{number}").mkdir(parents=True)
        write(root / f"recordings/ep{number}", signals(steps))
    return root / "recordings"


@pytest.mark.parametrize(
    ("write", "named"),
    [
        (write_arrays_apart, ("recordings", "ep0", "action.npy (3, 2)", "front.npy (3, 8, 9, 3)", ".npz")),
        (write_steps_apart, ("recordings", "step", "ep0/step_0.npz", "state (4,)", "action (2,)", ".npz")),
    ],
)
def test_arrays_and_steps_one_by_one_are_called_what_they_are(write, named, tmp_path):
    place = recordings(tmp_path, write)
    for folder, names in ((place, named), (place / "ep0", ("ep0", *named[-3:]))):
        assert known_kind(folder) is None
        for ask in (kind_of, lambda path: inspect(str(path))):
            with pytest.raises(DataError, match=naming(*names, "docs/own_data.md#other-files")):
                ask(folder)


def run_lines(number):
    """Run one of the blocks of the page's section."""
    section = PAGE.read_text(encoding="utf-8").partition("### Other files")[2].partition("\n## ")[0]
    exec(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[number], {})


@pytest.mark.parametrize(
    ("number", "write"), [(0, write_arrays_apart), (1, write_steps_apart), (2, write_table), (4, write_pickle)]
)
def test_the_lines_of_the_page_make_of_them_what_is_read(number, write, tmp_path, monkeypatch):
    recordings(tmp_path, write)
    monkeypatch.chdir(tmp_path)
    run_lines(number)
    assert kind_of(Path("joined")) == "episode_files"
    store = record_of("episode_files", Path("joined")).create()
    expected = [signals(steps) for steps in LENGTHS]
    assert store.episode_ends.tolist() == np.cumsum(LENGTHS).tolist() and list(store.cameras()) == ["front"]
    state = np.concatenate([one["state"] for one in expected])[:, : store.keys()["state"][0]]
    assert np.array_equal(store.read("state"), state)
    assert np.array_equal(store.read("action"), np.concatenate([one["action"] for one in expected]))


def test_a_table_of_all_episodes_becomes_one_for_each_by_the_lines_of_the_page(tmp_path, monkeypatch):
    pytest.importorskip("pandas", reason="NOT CHECKED: pandas is not installed")
    rows = np.concatenate([np.column_stack([np.full(n, n), *signals(n)["action"].T]) for n in LENGTHS])
    np.savetxt(tmp_path / "recordings.csv", rows, delimiter=",", header="episode,action_0,action_1", comments="")
    monkeypatch.chdir(tmp_path)
    run_lines(3)
    store = record_of(kind_of(Path("joined")), Path("joined")).create()
    assert store.episode_ends.tolist() == np.cumsum(LENGTHS).tolist() and store.keys() == {"action": (2,)}
    assert np.array_equal(store.read("action"), rows[:, 1:])


def test_arrays_of_all_episodes_are_told_that_they_may_be_one_file(tmp_path):
    for name, values in {"states": np.ones((9, 4)), "actions": np.ones((9, 2)), "episode_ends": [4, 9]}.items():
        np.save(tmp_path / f"{name}.npy", values)
    with pytest.raises(DataError, match=naming("actions.npy (9, 2)", "episode_ends", ".npz", "#other-files")):
        inspect(str(tmp_path))
    np.savez(tmp_path / "d.npz", **{file.stem: np.load(file) for file in tmp_path.glob("*.npy")})
    assert inspect(str(tmp_path / "d.npz"))[0].survey.store.episode_ends.tolist() == [4, 9]


def test_episodes_of_one_number_per_step_are_no_steps(tmp_path):
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", action=np.zeros(20), state=np.ones((20, 3)), place=np.ones(3))
    assert known_kind(tmp_path) == "episode_files"


def test_embeddings_are_no_arrays_of_an_episode(tmp_path):
    for name in ("img_emb", "text_emb"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", np.ones((4, 3), np.float32))
    (found,) = inspect(str(tmp_path))
    assert {rows.name for rows in found.rows} == {"image", "text"}


def write_hdf5(file, arrays):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the hdf5 extra is not installed")
    with h5py.File(file, "w") as stored:
        for key, values in arrays.items():
            stored[key] = values


@pytest.mark.parametrize("sizes", [(4, 2), (7, 7)])
def test_groups_of_one_step_each_are_called_what_they_are(sizes, tmp_path):
    state, action = (np.ones(size) for size in sizes)
    steps = {f"step_{step}/obs/qpos": state for step in range(12)} | {
        f"step_{step}/action": action for step in range(12)
    }
    for number in range(2):
        write_hdf5(tmp_path / f"episode_{number}.hdf5", steps)
    for place in (tmp_path, tmp_path / "episode_0.hdf5"):
        assert known_kind(place) is None
        parts = ("step_0", "episode_0.hdf5", f"obs/qpos ({sizes[0]},)", f"action ({sizes[1]},)", "#other-files")
        with pytest.raises(DataError, match=naming(*parts)):
            inspect(str(place))


def test_groups_of_steps_in_groups_of_episodes_are_called_what_they_are(tmp_path):
    groups = [f"episode_{episode}/step_{step}" for episode in range(3) for step in range(12)]
    write_hdf5(tmp_path / "all.h5", {f"{group}/{key}": np.ones(7) for group in groups for key in ("qpos", "action")})
    for place in (tmp_path, tmp_path / "all.h5"):
        with pytest.raises(DataError, match=naming("all.h5", "episode_0/step_0", "action (7,)", "#other-files")):
            inspect(str(place))


def test_groups_of_one_episode_each_are_no_steps(tmp_path):
    arrays = {f"ep_{number}/{key}": np.ones((5, 2)) for number in range(3) for key in ("action", "state")}
    for width, name in enumerate(("many.hdf5", "single.hdf5")):
        write_hdf5(tmp_path / name, {key: values[:, : 2 - width] for key, values in arrays.items()})
        assert inspect(str(tmp_path / name))[0].survey.store.episode_ends.tolist() == [5, 10, 15]
    write_hdf5(tmp_path / "flat.hdf5", {key: values[:, 0] for key, values in arrays.items()})
    assert inspect(str(tmp_path / "flat.hdf5"))[0].survey.store.episode_ends.tolist() == [5, 10, 15]


def recorded_apart(by_side):
    """Arrays of two episodes, whose parts lie under several parents: two arms, or observations and actions."""
    arrays = {f"left/demo_{number}/{key}": np.full((4, 2), number) for number in range(2) for key in ("qpos", "action")}
    arrays |= {key.replace("left", "right"): values + 10 for key, values in arrays.items()}
    if not by_side:
        arrays = {
            key: np.full((4, 2), number) for number in range(2) for key in (f"obs/demo_{number}", f"act/{number}")
        }
    return arrays


@pytest.mark.parametrize("by_side", [True, False])
def test_an_episode_of_several_groups_is_read_after_the_moves_that_the_refusal_names(by_side, tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the hdf5 extra is not installed")
    write_hdf5(tmp_path / "apart.hdf5", recorded_apart(by_side))
    with pytest.raises(DataError, match=naming("docs/data.md#layouts")) as caught:
        inspect(str(tmp_path / "apart.hdf5"))
    moves = re.findall(r"file\.move\('([^']+)', '([^']+)'\)", str(caught.value))
    assert len(moves) == 2
    with h5py.File(tmp_path / "apart.hdf5", "a") as file:
        for source, target in moves:
            for number in "01":
                file.move(source[:-1] + number, target.replace("traj_0", f"traj_{number}"))
    steps = {} if by_side else {"steps": "obs"}
    settings = [f"{name}={value}" for name, value in steps.items()]
    store = record_of("hdf5_groups", tmp_path / "apart.hdf5", settings).create()
    expected = {"left/qpos", "left/action", "right/qpos", "right/action"} if by_side else {"obs", "act"}
    assert {*store.keys()} == expected and store.episode_ends.tolist() == [4, 8]
    for key in expected:
        offset = 10 if key.startswith("right") else 0
        assert np.array_equal(store.read(key)[:, 0], np.repeat([offset, offset + 1], 4))


def write_jpegs(folder, count=3):
    image = pytest.importorskip("PIL.Image", reason="NOT CHECKED: the image extra is not installed")
    folder.mkdir(parents=True)
    for step in range(count):
        image.fromarray(np.full((8, 8, 3), step, np.uint8)).save(folder / f"{step:06d}.jpg")


def teleoperated(folder):
    """As xr_teleoperate records."""
    rows = [{"idx": 0, "states": {"left_arm": {"qpos": [0.0] * 7}}, "actions": {"left_arm": {"qpos": [0.0] * 7}}}]
    for number in range(2):
        write_jpegs(folder / f"episode_{number:04d}/colors")
        (folder / f"episode_{number:04d}/data.json").write_text(json.dumps({"info": {"version": "1.0"}, "data": rows}))
    return "episode_0000/data.json", "episode_0000/colors/00000"


def bridged(folder):
    """As the raw files of Bridge."""
    for number in range(2):
        episode = folder / f"kitchen/00/2021-01-01/raw/traj_group0/traj{number}"
        write_jpegs(episode / "images0")
        (episode / "policy_out.pkl").write_bytes(pickle.dumps([{"actions": np.zeros(7)}]))
    return "traj0/policy_out.pkl", "traj0/images0/00000"


@pytest.mark.parametrize("record", [teleoperated, bridged])
def test_pictures_of_steps_beside_actions_are_no_set_of_images(record, tmp_path):
    named = record(tmp_path / "set")
    assert known_kind(tmp_path / "set") is None
    with pytest.raises(DataError) as caught:
        inspect(str(tmp_path / "set"))
    for part in (*named, "#other-files"):
        assert part in str(caught.value)


def test_a_set_of_images_with_a_table_of_actions_as_labels_stays_one(tmp_path):
    for name in ("run", "sit"):
        write_jpegs(tmp_path / "set" / name, 4)
    (tmp_path / "set/labels.json").write_text(json.dumps([{"file": "run/000000.jpg", "action": "run"}]))
    (inspection,) = inspect(str(tmp_path / "set"))
    assert type(inspection).__name__ and "images" in str(inspection.data)
