"""The film of a trial shows the frames of its requests in their time, and is never in the way of an answer."""

import logging

import numpy as np
import pytest

from dp_prior.tensors.pixels import video_writer
from dp_prior.tensors.pixels.video_files import opened_video, rgb_frames
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from dp_prior_client.onboard.tick_log import Tick
from dp_prior_lab.trial_film import FPS, LONGEST_PAUSE_S, FilmedLog
from tests.extras import needs

needs("av", "video")

READS = ObsSpec(
    {
        "front": Reads((None, None, 3), "uint8", kind="image"),
        "grey": Reads((24, 32, 1), "uint8", kind="image"),
        "state": Reads((2,), "float32"),
    }
)


def tick(time, level, step=0, **frames):
    frames = frames or {
        "front": np.full((48, 64, 3), level, np.uint8),
        "grey": np.full((24, 32, 1), 255 - level, np.uint8),
    }
    return Tick(time, 0, step, {"state": np.zeros(2, np.float32), **frames}, np.zeros(2, np.float32))


def pictures(path):
    convert = rgb_frames()
    with opened_video(path) as (container, stream):
        return np.stack([convert(frame).copy() for frame in container.decode(stream)])


def filmed(place, ticks):
    with FilmedLog(place / "ticks", place / "film.mp4") as log:
        recorder = log.recorder(READS)
        for entry in ticks:
            recorder.note(entry)
    return place / "film.mp4"


def test_each_frame_stays_until_the_time_of_the_next_one(tmp_path):
    times, levels = [100.0, 100.5, 100.8, 130.0], [40, 80, 120, 160]
    film = filmed(tmp_path, map(tick, times, levels, range(4)))
    shown = pictures(film)
    front = shown[:, 8:40, 8:56].mean((1, 2, 3))
    counts = [5, 3, round(LONGEST_PAUSE_S * FPS), 1]
    np.testing.assert_allclose(front, np.repeat(levels, counts), atol=6)
    grey = shown[:, 4:20, 72:96].mean((1, 2, 3))
    np.testing.assert_allclose(grey, np.repeat(255 - np.array(levels), counts), atol=6)
    assert len(list((tmp_path / "ticks").glob("episode_*.npz"))) == 1, "the log is kept all the same"


def test_large_frames_are_reduced_and_requests_without_a_frame_are_not_filmed(tmp_path):
    large = np.full((480, 640, 3), 90, np.uint8)
    film = filmed(tmp_path, [tick(1.0, 0, front=large), tick(1.2, 0, 1, text=np.zeros(3, np.float32))])
    assert pictures(film).shape[1:3] == (240, 320)


def test_without_cameras_and_without_pyav_there_is_no_film_and_the_trial_goes_on(tmp_path, monkeypatch, caplog):
    assert not filmed(tmp_path / "blind", [tick(1.0, 0, text=np.zeros(3, np.float32))]).exists()

    def missing():
        raise ImportError("av is not installed: pip install dp_prior[video]")

    monkeypatch.setattr(video_writer, "import_av", missing)
    with caplog.at_level(logging.WARNING):
        film = filmed(tmp_path / "bare", [tick(1.0 + step, 50, step) for step in range(100)])
    assert not film.exists() and len([record for record in caplog.records if str(film) in record.getMessage()]) == 1


def test_a_camera_that_changes_its_size_is_shown_in_the_first_one(tmp_path):
    smaller = {"front": np.zeros((10, 12, 3), np.uint8), "grey": np.zeros((24, 32, 1), np.uint8)}
    ticks = [tick(1.0, 50), tick(1.1, 50, 1, **smaller), tick(1.2, 50, 2)]
    assert pictures(filmed(tmp_path, ticks)).shape[:3] == (3, 48, 100)
    assert len(list((tmp_path / "ticks").glob("episode_*.npz"))) == 1


@pytest.mark.parametrize("n_closes", [1, 2])
def test_it_is_closed_as_often_as_one_likes(tmp_path, n_closes):
    log = FilmedLog(tmp_path / "ticks", tmp_path / "film.mp4")
    log.recorder(READS).note(tick(1.0, 60))
    for _ in range(n_closes):
        log.close()
    assert len(pictures(tmp_path / "film.mp4")) == 1
