"""Cameras become videos of the right frames at the right times, and stay pictures where videos cannot be."""

import json

import numpy as np
import pytest

from dp_prior.tensors.pixels.video_files import opened_video
from dp_prior_foreign.convert import convert
from dp_prior_foreign.writers.camera_videos import place_of
from tests.data.formats.conftest import LENGTHS, N, arrays
from tests.data.frames.recordings import ends_of, pictures
from tests.extras import needs
from tests.messages import told
from tests.plugins.dp_prior_foreign.test_convert import command, read

needs("av", "video")
needs("pyarrow", "lerobot")


@pytest.fixture
def filmed(tmp_path):
    """Frames large enough for a video: a pattern that moves, so that each frame is nearest to itself."""
    np.savez(tmp_path / "d.npz", actions=arrays()["actions"], front=moving(N), episode_ends=ends_of(LENGTHS))
    return tmp_path / "d.npz"


def moving(n, height=64, width=82):
    y, x = np.mgrid[:height, :width]
    waves = [(np.sin((x + 4 * i) / 9), np.cos((y - 3 * i) / 7), np.sin((x + y + 5 * i) / 11)) for i in range(n)]
    return (128 + 100 * np.stack([np.stack(wave, -1) for wave in waves])).astype(np.uint8)


@pytest.mark.parametrize("fps", [10, 30000 / 1001])
@pytest.mark.parametrize("most", [200 << 20, 0])
def test_cameras_become_videos_whose_frames_stand_at_the_times_of_their_steps(filmed, tmp_path, fps, most, monkeypatch):
    import pyarrow.parquet as pq

    monkeypatch.setattr("dp_prior_foreign.writers.camera_videos.VIDEO_BYTES", most)
    assert told(convert(filmed, tmp_path / "d", "lerobot", fps=fps), "front", "video", "--pictures")
    store = read(tmp_path / "d", "lerobot")
    frames = store.frames("front", store.episode_ends)
    found = np.concatenate([block for part in frames.parts for block in frames.read(part, 0)]).astype(int)
    errors = np.array([[np.abs(one - other).mean() for other in moving(N).astype(int)] for one in found])
    assert (errors.argmin(1) == np.arange(N)).all() and errors.min(1).max() < 8
    rows = pq.read_table(tmp_path / "d/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for row in rows:
        number = row["videos/front/file_index"]
        begin, end = (round(row[f"videos/front/{edge}_timestamp"] * fps, 6) for edge in ("from", "to"))
        assert end - begin == row["length"] and number == (0 if most else row["episode_index"])
        with opened_video(tmp_path / f"d/videos/front/chunk-000/file-{number:03d}.mp4") as (container, stream):
            times = [frame.pts * stream.time_base for frame in container.decode(stream)]
        assert max(abs(float(time) - i / fps) for i, time in enumerate(times)) < 1e-9
    columns = pq.read_schema(tmp_path / "d/data/chunk-000/file-000.parquet").names
    assert "front" not in columns


def test_pictures_and_small_or_fast_frames_keep_every_pixel(filmed, tmp_path):
    assert "video" not in convert(filmed, tmp_path / "d", "lerobot", fps=10, pictures=True)
    store = read(tmp_path / "d", "lerobot")
    frames = store.frames("front", store.episode_ends)
    assert np.array_equal(np.concatenate([*frames.read(frames.parts[0], 0)]), moving(N))
    info = json.loads((tmp_path / "d/meta/info.json").read_text())
    assert info["video_path"] is None and info["features"]["front"]["dtype"] == "image"
    np.savez(tmp_path / "s.npz", actions=arrays()["actions"], front=pictures(N, 63, 80), episode_ends=ends_of(LENGTHS))
    assert "video" not in convert(tmp_path / "s.npz", tmp_path / "s", "lerobot", fps=10)
    assert not (tmp_path / "s/videos").exists()
    assert "video" not in convert(filmed, tmp_path / "f", "lerobot", fps=241)


def test_pictures_are_for_formats_that_have_videos_and_a_missing_encoder_is_named(filmed, tmp_path, monkeypatch):
    done = command(filmed, tmp_path / "x.npz", "--to", "npz", "--pictures")
    assert done.exit_code == 64 and "--pictures" in done.output and "lerobot" in done.output
    monkeypatch.setattr("av.codecs_available", {"libx264"})
    done = command(filmed, tmp_path / "x", "--to", "lerobot", "--fps", "10")
    assert done.exit_code == 65 and "libsvtav1" in done.output and "--pictures" in done.output
    assert command(filmed, tmp_path / "x", "--to", "lerobot", "--fps", "10", "--pictures").exit_code == 0


def test_a_chunk_holds_a_thousand_files():
    places = [tuple(place_of(number).values()) for number in (0, 999, 1000, 2001)]
    assert places == [(0, 0), (0, 999), (1, 0), (2, 1)] and [*place_of(0)] == ["chunk_index", "file_index"]
