"""Strips of a camera: the frames that were recorded, and whether the camera was dark or hung."""

import json

import numpy as np
import pytest
import torch

from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.recorded.camera import ImageConfig
from dp_prior_studio.inspection import cameras
from dp_prior_studio.inspection.cameras import look
from dp_prior_studio.inspection.inspect import inspect
from dp_prior_studio.inspection.survey import survey
from dp_prior_studio.pages.data_page import summary
from tests.data.frames.recordings import KEY, png, write_lerobot
from tests.messages import told
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz
from tests.tiny_camera import camera_run

pytest.importorskip("PIL")

FRONT = ImageConfig(key="front", size=(8, 12))


def seen_of(tmp_path, change=lambda frames: frames):
    """A survey of 4 episodes with a camera whose frames are the number of the step, and those frames by episode."""
    episodes = clean(n=4)
    for episode in episodes:
        numbers = 50 + np.arange(len(episode["action"]), dtype=np.uint8)
        episode["front"] = change(np.broadcast_to(numbers[:, None, None, None], (len(numbers), 8, 12, 3)).copy())
    return survey(NpzStoreConfig(path=str(write_npz(tmp_path / "d.npz", episodes))).create()), episodes


def test_stills_are_the_frames_of_their_numbers_from_first_to_last(tmp_path):
    seen, episodes = seen_of(tmp_path)
    strips, findings, gaps = look(seen, {"front": FRONT})
    assert (findings, gaps) == ([], []) and [strip.episode for strip in strips] == [0, 1, 2]
    for strip in strips:
        frames = episodes[strip.episode]["front"]
        assert strip.size == (8, 12) and strip.frames[0] == 0 and strip.frames[-1] == len(frames) - 1
        np.testing.assert_array_equal(strip.stills, frames[strip.frames])
        assert strip.brightness == pytest.approx(frames[:, ::4, ::4].mean())
        assert strip.frozen[1] == 1 and strip.picture.startswith("data:image/jpeg")


def test_a_clip_is_evenly_spread_over_the_first_episode(tmp_path, monkeypatch):
    monkeypatch.setattr(cameras, "CLIP_FRAMES", 20)
    seen, episodes = seen_of(tmp_path)
    first, *others = look(seen, {"front": FRONT})[0]
    assert not any(len(strip.clip) for strip in others)
    assert 1 < len(first.clip) <= 20
    np.testing.assert_array_equal(first.clip, episodes[0]["front"][:: first.stride])


def test_the_region_is_framed_and_told_also_of_two_cameras_of_one_key(tmp_path):
    seen, episodes = seen_of(tmp_path)
    strips, findings, _ = look(seen, {"front": ImageConfig(key="front", size=(8, 12), region=(0.25, 0.5, 1, 0.75))})
    frames, inside = episodes[0]["front"], np.zeros((8, 12), bool)
    inside[2:8, 6:9] = True
    inside[3:7, 7] = False  # what is left is the line
    for pictures, whole in (
        (strips[0].stills, frames[strips[0].frames]),
        (strips[0].clip, frames[:: strips[0].stride]),
    ):
        np.testing.assert_array_equal(pictures, np.where(inside[..., None], cameras.FRAMED, whole))
    assert strips[0].seen == "sees rows 2 to 7 and columns 6 to 8 of 8 x 12" and findings == []
    assert strips[0].brightness == pytest.approx(frames[:, ::4, ::4].mean())
    _, lost, _ = look(seen, {"front": ImageConfig(key="front", size=(8, 12), region=(0, 0, 0.01, 1))})
    assert lost[0].severity == "error" and "0 rows" in lost[0].text and "8 x 12" in lost[0].text

    two = {
        "front": {"key": "front", "size": [8, 12]},
        "near": {"key": "front", "size": [8, 12], "region": [0, 0, 1, 0.5]},
    }
    data = {"episodes": {"type": "npz", "path": str(tmp_path / "d.npz")}, "images": two, "action": {"key": "action"}}
    (tmp_path / "config.json").write_text(json.dumps(camera_run(tmp_path / "run", data=data, task__encoders={})))
    (found,) = inspect(str(tmp_path / "config.json"))
    lines = [line for line in summary([found]) if line.startswith("camera")]
    assert len(lines) == 2 and "policy" not in lines[0] and told(lines[1], "near", "8 x 12", "columns 0 to 5 of 8 x 12")


@pytest.mark.parametrize("turn", ["right", "up_down"])
def test_pictures_are_shown_turned_as_the_policy_sees_them(tmp_path, turn):
    seen, episodes = seen_of(tmp_path)
    record = ImageConfig(key="front", size=(8, 12), turn=turn, bgr=True)
    strips, findings, _ = look(seen, {"front": record})
    frames = torch.from_numpy(episodes[0]["front"][strips[0].frames])
    np.testing.assert_array_equal(strips[0].stills, record.resize.turned(frames).numpy())
    assert findings == [] and told(strips[0].seen, turn, "bgr")
    framed, _, _ = look(seen, {"front": record.model_copy(update={"region": (0.25, 0.5, 1, 0.75)})})
    line = (framed[0].stills == cameras.FRAMED).all(-1)
    (rows, columns), inside = framed[0].stills.shape[1:3], np.zeros(framed[0].stills.shape[1:3], bool)
    inside[rows // 4 :, columns // 2 : columns * 3 // 4] = True
    inside[rows // 4 + 1 : -1, columns // 2 + 1 : columns * 3 // 4 - 1] = False
    assert (line == inside).all()


def test_a_camera_that_hangs_while_the_robot_moves_is_named_with_its_first_frame(tmp_path):
    def hang(frames):
        frames[20:45] = frames[20]
        return frames

    strips, findings, _ = look(seen_of(tmp_path, hang)[0], {"front": FRONT})
    assert strips[0].frozen == (20, 25)
    assert [(one.severity, one.episode, one.frame) for one in findings] == [("warning", n, 20) for n in (0, 1, 2)]


def test_a_dark_camera_is_named_with_its_brightness(tmp_path):
    (strip, _, _), (found,), _ = look(seen_of(tmp_path, lambda frames: frames % 10)[0], {"front": FRONT})
    assert found.severity == "warning" and strip.brightness < 6
    assert told(found.text, "front", "dark", "3 of 3 episodes", f"{strip.brightness:.1f} of 255")


def test_a_dark_episode_among_others_says_how_many_were_not_looked_at(tmp_path):
    dark = iter([True, False, False, False])
    seen, _ = seen_of(tmp_path, lambda frames: frames % 10 if next(dark) else frames)
    _, (found,), _ = look(seen, {"front": FRONT})
    assert told(found.text, "1 of 3 episodes", "of the 1") and found.episode == 0


@pytest.mark.parametrize("stated", [ImageConfig(key="state", size=(8, 12)), None])
def test_a_key_that_is_no_camera_is_an_error_only_where_a_configuration_names_it(tmp_path, stated):
    strips, (finding,), gaps = look(seen_of(tmp_path)[0], {"state": stated})
    assert strips == [] and gaps == [] and finding.severity == ("warning" if stated is None else "error")
    assert finding.text.startswith("state: ")


def test_a_damaged_picture_is_told_with_its_file_and_row(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    frames = np.random.default_rng(0).integers(0, 256, (6, 24, 32, 3), dtype=np.uint8)
    write_lerobot(tmp_path / "set", frames, [3, 3], "v2.1", "image")
    file = tmp_path / "set/data/chunk-000/episode_000001.parquet"
    table = pq.read_table(file)
    rows = table.column(KEY).to_pylist()
    rows[2]["bytes"] = b""
    pq.write_table(table.set_column(table.column_names.index(KEY), KEY, [rows]), file)
    seen = survey(LeRobotStoreConfig(path=tmp_path / "set").create())
    for stated in (ImageConfig(key=KEY, size=(24, 32)), None):
        _, findings, gaps = look(seen, {KEY: stated})
        (line,) = [*gaps, *(one.text for one in findings)]
        assert told(line, "data/chunk-000/episode_000001.parquet", "row 2", "empty")


def test_three_episodes_are_looked_at_whatever_the_parts_are(tmp_path):
    """One array is one part, and its first episode was all that was seen of it."""
    rng, ends = np.random.default_rng(0), 20 * np.arange(1, 7)
    frames = rng.integers(0, 255, (120, 8, 8, 3)).astype(np.uint8)
    frames[40:60], frames[80:100] = frames[40], 0  # frozen and dark: episodes 2 and 4
    state = rng.normal(size=(120, 2)).astype(np.float32)
    np.savez(tmp_path / "d.npz", state=state, action=state, img=frames, episode_ends=ends)
    found = inspect(str(tmp_path / "d.npz"))[0]
    assert [strip.episode for strip in found.strips] == [0, 2, 4]
    assert {(one.episode, "dark" in one.text) for one in found.findings if "img" in one.text} == {
        (2, False), (4, True), (4, False),
    }  # fmt: skip
    assert found.leave_out == [2, 4]


@pytest.mark.parametrize("stored", ["array", "padded", "variable"])
def test_a_camera_of_another_rate_is_left_out_with_a_warning_and_the_remedy(tmp_path, stored):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    random, frames = np.random.default_rng(0), np.zeros((12, 24, 24, 3), np.uint8)
    encoded = np.frombuffer(png(frames[0]), np.uint8)
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.hdf5", "w") as file:
            file["robot/joint_pos"], file["action"] = random.normal(size=(40, 7)), random.normal(size=(40, 7))
            file["cam/t"] = np.arange(12) / 30
            if stored == "variable":
                rows = file.create_dataset("cam/rgb", (12,), dtype=h5py.vlen_dtype(np.uint8))
                for row in range(12):
                    rows[row] = encoded
            else:
                file["cam/rgb"] = frames if stored == "array" else np.tile(encoded, (12, 1))
    (inspection,) = inspect(str(tmp_path))
    (warning,) = [finding for finding in inspection.findings if finding.severity == "warning"]
    assert told(warning.text, "cam/rgb", "(12,", "40 steps", "docs/data.md#layouts")
    with h5py.File(tmp_path / "0.hdf5", "a") as file:
        file["robot/time"] = np.arange(40) / 100
    (inspection,) = inspect(str(tmp_path))
    (warning,) = [finding for finding in inspection.findings if finding.severity == "warning"]
    assert told(warning.text, '"clock": "robot/time"', '"clocks": {"cam/rgb": "cam/t"}')


def test_a_damaged_picture_is_a_warning_that_first_settings_lack_the_camera(tmp_path):
    h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
    random = np.random.default_rng(0)
    pictures = [png(frame) for frame in random.integers(0, 255, (20, 24, 24, 3), np.uint8)]
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.hdf5", "w") as file:
            file["state"], file["action"] = random.normal(size=(20, 7)), random.normal(size=(20, 7))
            rows = file.create_dataset("rgb", (20,), dtype=h5py.vlen_dtype(np.uint8))
            for row, picture in enumerate(pictures):
                rows[row] = np.frombuffer(picture[: 100 if (number, row) == (1, 8) else None], np.uint8)
    (inspection,) = inspect(str(tmp_path))
    assert any(told(finding.text, "rgb", "1.hdf5", "row 8") for finding in inspection.findings)
    assert inspection.gaps == []


def test_episodes_deep_in_their_file_are_not_looked_at(tmp_path, monkeypatch):
    seen, episodes = seen_of(tmp_path)
    monkeypatch.setattr(cameras, "MOST_SKIPPED", len(episodes[0]["action"]))
    assert [strip.episode for strip in look(seen, {"front": FRONT})[0]] == [0, 1]


@pytest.mark.parametrize("lost", [[1], [0, 1, 2, 3]])
def test_a_copy_without_any_video_lacks_the_camera_rather_than_episodes(tmp_path, lost):
    for package in ("av", "pyarrow"):
        pytest.importorskip(package)
    frames = np.random.default_rng(0).integers(0, 256, (12, 24, 32, 3), dtype=np.uint8)
    write_lerobot(tmp_path / "set", frames, [3, 3, 3, 3], "v2.1", "video")
    for episode in lost:
        (tmp_path / f"set/videos/chunk-000/{KEY}/episode_{episode:06d}.mp4").unlink()
    seen = survey(LeRobotStoreConfig(path=tmp_path / "set").create())
    _, findings, gaps = look(seen, {KEY: None})
    if len(lost) == 1:
        assert [finding.leave_out for finding in findings] == [[1]] and not gaps
        assert told(findings[0].text, "1 of 4", "1 of 4 episodes", "episode_000001.mp4")
    else:
        assert findings == [] and told(gaps[0], f"'{KEY}'", "episode 0", "episode_000000.mp4")
