"""Files beside recorded episodes have a line with what to do about them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from dp_prior.run.config import TrainConfig
from dp_prior_foreign.recognition import kind_of, record_of
from dp_prior_studio.inspection.beside_episodes import files_beside, videos_of_episodes
from dp_prior_studio.inspection.inspect import inspect, write_config
from tests.messages import told
from tests.plugins.dp_prior_studio.inspection.layouts import LAYOUTS

N = 3


def test_videos_beside_the_data_set_have_a_note_with_what_to_write(tmp_path):
    state = np.zeros((6, 2))
    np.savez(tmp_path / "d.npz", state=state, action=state, episode_ends=[3, 6])
    for name in ("0/0.mp4", "0/1.mp4", "1/0.mp4"):
        (tmp_path / "videos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "videos" / name).touch()
    notes = [each.text for each in inspect(str(tmp_path / "d.npz"))[0].findings if "videos" in each.text]
    for note, name in zip(notes, ("0.mp4", "1.mp4"), strict=True):
        assert told(note, "data.images", f'"folder": "{tmp_path}/videos"', f'"file": "{name}"', "--write-config")


def test_a_folder_of_videos_for_each_camera_is_not_taken_for_episodes(tmp_path):
    state = np.zeros((9, 2))
    np.savez(tmp_path / "d.npz", state=state, action=state, episode_ends=[3, 6, 9])
    for camera in ("front", "wrist"):
        (tmp_path / "videos" / camera).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "videos" / camera / f"{number}.mp4").touch()
    notes = [each.text for each in inspect(str(tmp_path / "d.npz"))[0].findings if "videos" in each.text]
    for note, camera in zip(notes, ("front", "wrist"), strict=True):
        assert told(note, "data.images", f'"folder": "{tmp_path}/videos/{camera}"') and '"file"' not in note


def notes_of(place):
    return [finding.text for finding in inspect(str(place))[0].findings]


@pytest.mark.parametrize("depth", [1, 2])
def test_videos_in_the_folder_of_each_episode_have_a_line_that_can_be_written(tmp_path, depth):
    av = pytest.importorskip("av", reason="NOT CHECKED: the extra video is not installed")
    rows = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
    for number in range(4):
        day = f"day_{number // 2}/" if depth == 2 else ""
        folder = tmp_path / f"rec/{day}take_{number}"
        (folder / "recordings").mkdir(parents=True)
        np.savez(folder / "trajectory.npz", state=rows, action=rows[:, :2])
        with av.open(str(folder / "recordings/front.mp4"), "w") as container:
            stream = container.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for shade in range(12):
                picture = np.full((48, 64, 3), 20 * shade, np.uint8)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(stream.encode())
    inspections = inspect(str(tmp_path / "rec"))
    assert inspections[0].survey.count == 4
    (note,) = [finding.text for finding in inspections[0].findings if "front.mp4" in finding.text]
    if depth == 2:
        assert told(note, "4 of 4 episodes", str(tmp_path / "rec/day_0"))
        return
    write_config(inspections, tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    content["data"]["images"] = {"front": json.loads(note[note.index("{") :])}
    content["task"]["encoders"] = {"front": {"type": "resnet", "width": 16, "blocks": [1], "stem": "patch"}}
    data = TrainConfig.from_json(json.dumps(content)).data
    assert [*data.images["front"].source(data.episodes.create(), inspections[0].survey.chosen).size] == [48, 64]


def test_slices_and_rotations_of_modality_json_are_named(tmp_path):
    place = LAYOUTS["groot"](tmp_path, np.random.default_rng(0)).place
    turned = {"start": 3, "end": 7, "rotation_type": "quaternion"}
    content = {"state": {"rotation": turned}, "action": {"gripper": {"start": 6, "end": 7, "absolute": False}}}
    (place / "meta/modality.json").write_text(json.dumps(content))
    (note,) = [text for text in notes_of(place) if "modality" in text]
    assert told(note, "state.rotation [3:7]", "rotations", "observation.state [3:7]", "action.gripper is relative")
    for broken in ("[]", "{", json.dumps({"state": [1], "action": {"x": 3}})):
        (place / "meta/modality.json").write_text(broken)
        notes_of(place)


def test_failures_in_the_file_beside_trajectories_are_left_out_by_a_line(tmp_path):
    place = LAYOUTS["maniskill"](tmp_path, np.random.default_rng(0)).place
    entries = [{"episode_id": number, "success": number != 2} for number in range(4)]
    place.with_suffix(".json").write_text(json.dumps({"episodes": entries}))
    (note,) = [text for text in notes_of(place) if "trajectory.json" in text]
    assert told(note, "1 failed", '"choice": {"leave_out": [2]}')


@pytest.mark.parametrize("where", ["instructions", "../instructions", "../task_info"])
def test_folders_of_instructions_are_named(tmp_path, where):
    (tmp_path / "set").mkdir()
    place = LAYOUTS["aloha"](tmp_path / "set", np.random.default_rng(0)).place
    (place / where).mkdir()
    for number in range(N):
        (place / where / f"episode{number}.json").write_text("{}")
    assert any(told(text, where.removeprefix("../"), "3 .json files", "data.language") for text in notes_of(place))


def test_several_instructions_are_a_warning_with_the_lines_that_read_them(tmp_path):
    place = LAYOUTS["groot"](tmp_path, np.random.default_rng(0)).place
    (warning,) = [finding for finding in inspect(str(place))[0].findings if "2 instructions" in finding.text]
    assert warning.severity == "warning" and told(warning.text, '"language"', "--model hashed", "--key instruction")
    (tmp_path / "alone").mkdir()
    alone = LAYOUTS["lerobot"](tmp_path / "alone", np.random.default_rng(0)).place
    assert not any("instructions" in text for text in notes_of(alone))


@pytest.mark.slow
def test_frames_upside_down_by_the_convention_of_the_file_are_told(tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    place = LAYOUTS["libero"](tmp_path, np.random.default_rng(0)).place
    with h5py.File(place, "a") as file:
        file["data"].attrs["macros_image_convention"] = "opencv"
    assert not any("upside" in text for text in notes_of(place))
    with h5py.File(place, "a") as file:
        file["data"].attrs["macros_image_convention"] = "opengl"
    assert any(told(text, "macros_image_convention", "opengl", "up_down") for text in notes_of(place))
    write_config(inspect(str(place)), tmp_path / "mine.json")
    config = TrainConfig.from_json_path(tmp_path / "mine.json")
    assert {image.turn for image in config.data.images.values()} == {"up_down"}
    with h5py.File(place, "a") as file:
        file["data"].attrs["macros_image_convention"] = "opencv"
    assert not any("upside" in text for text in notes_of(place))
    write_config(inspect(str(place)), tmp_path / "upright.json")
    upright = TrainConfig.from_json_path(tmp_path / "upright.json").data.images.values()
    assert {image.turn for image in upright} == {None}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tables_that_end_within_a_line_beside_others_are_named(tmp_path, encoding):
    """The last number of such a table may be another one; a recorder that never ends its last line is no fault."""
    place = LAYOUTS["spreadsheet"](tmp_path, np.random.default_rng(0)).place
    tables = sorted(place.glob("*.csv"))
    for table in tables:
        table.write_text(table.read_text(), encoding=encoding)
    assert not any("line break" in text for text in notes_of(place))
    for number, table in enumerate(tables, 1):
        table.write_text(table.read_text(encoding=encoding)[:-3], encoding=encoding)
        torn = [text for text in notes_of(place) if "line break" in text]
        assert len(torn) == (number < len(tables))
        assert all(told(text, f"{number} of {len(tables)}", table.name) for text in torn)


def test_episodes_of_which_nothing_is_known_have_not_failed(tmp_path):
    place = LAYOUTS["maniskill"](tmp_path, np.random.default_rng(0)).place
    entries = [{}, {"success": None}, {"success": False}, {"success": True}]
    place.with_suffix(".json").write_text(json.dumps({"episodes": entries}))
    (note,) = [text for text in files_beside(record_of(kind_of(place), place).create(), 4) if "trajectory.json" in text]
    assert told(note, "1 failed", '"choice": {"leave_out": [2]}')


@pytest.mark.parametrize(("count", "words"), [(4, ("--write-config", '"file": "front.mp4"')), (3, ("camera", "one"))])
def test_a_video_that_some_episodes_lack_is_no_camera(tmp_path, count, words):
    folders = [tmp_path / f"take_{number}" for number in range(4)]
    for number, folder in enumerate(folders):
        folder.mkdir()
        if number < count:
            (folder / "front.mp4").touch()
    files = [folder / "rows.npz" for folder in folders]
    store = SimpleNamespace(path=tmp_path, keys=lambda: ["state"], files=lambda keys: files)
    (line,) = videos_of_episodes(store, 4)
    assert told(line, "front.mp4", f"{count} of 4 episodes", *words) and ("data.images" in line) == (count == 4)
