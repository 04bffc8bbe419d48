"""An attempt: cameras that cannot be looked at are refused, and rows of other data are judged by their loss."""

import json
from dataclasses import replace

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior_studio.attempt.attempt import Attempt, refuse_unread
from dp_prior_studio.attempt.short_training import measured_times
from dp_prior_studio.inspection.inspect import inspect
from tests.data.frames.recordings import pictures, write_lerobot
from tests.messages import naming, told, told_each
from tests.plugins.dp_prior_studio.attempt.layouts import CAMERA, aloha, npz


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


def test_a_camera_that_could_not_be_looked_at_is_refused(place, monkeypatch):
    pytest.importorskip("h5py")
    data = aloha(place / "data")
    look = "dp_prior_studio.inspection.recorded_episodes.look"
    monkeypatch.setattr(look, lambda survey, cameras: ([], [], [f"{CAMERA}: no pillow"]))
    with pytest.raises(DataError, match=naming(CAMERA, "no pillow")):
        Attempt(str(data), place / "out", 1, lambda line: None).make()
    assert not (place / "out").exists()


def test_pictures_that_the_proposal_would_lack_are_refused_and_labels_are_not(place):
    random = np.random.default_rng(0)
    steps = {"state": random.random((30, 3)), "action": random.random((30, 2))}
    for number, height in enumerate((48, 60, 48)):
        frames = random.integers(0, 255, (30, height, 64, 3), np.uint8)
        np.savez(place / f"data/{number}.npz", **steps, front=frames)
    floats = random.random((30, 24, 24, 3), np.float32)
    ends = {"episode_ends": [10, 20, 30]}
    np.savez(place / "floats.npz", **steps, **ends, front=floats)
    np.savez(place / "first.npz", **steps, **ends, front=floats.transpose(0, 3, 1, 2))
    for name in ("data", "floats.npz", "first.npz"):
        with pytest.raises(DataError, match=naming("front", "docs/own_data.md")):
            Attempt(name, place / "out", 1, lambda line: None).make()
        assert not (place / "out").exists()
    np.savez(place / "labels.npz", **steps, **ends, mask=floats, latents=random.random((30, 2000)))
    refuse_unread(inspect("labels.npz"))


@pytest.mark.parametrize("lost", ["all videos", "one of two videos"])
def test_a_camera_without_any_video_is_left_out_and_told_and_one_that_lacks_some_is_no_such_camera(place, lost):
    for package in ("pyarrow", "av"):
        pytest.importorskip(package)
    frames = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), np.uint8)
    data = write_lerobot(place / "data/set", frames, [20, 20], "v2.1", "video")
    videos = sorted(data.rglob("*.mp4"))
    assert len(videos) == 2
    for video in videos if lost == "all videos" else videos[:1]:
        video.unlink()
    if lost == "all videos":
        assert told_each(refuse_unread(inspect(str(data))), "image")
    else:
        with pytest.raises(DataError, match=naming("image", "docs/own_data.md")):
            refuse_unread(inspect(str(data)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embeddings", "images"])
def test_images_and_embeddings_are_judged_by_their_loss(kind, place):
    random = np.random.default_rng(0)
    if kind == "embeddings":
        for name in ("img_emb", "text_emb"):
            (place / "data" / name).mkdir()
            np.save(place / "data" / name / f"{name}_0.npy", random.normal(size=(64, 16)).astype(np.float32))
    else:
        image = pytest.importorskip("PIL.Image")
        for number, pixels in enumerate(pictures(40, 16, 16)):
            image.fromarray(pixels).save(place / "data" / f"{number}.png")
    lines = []
    outcome = Attempt("data", place / "out", 1, lines.append).make()
    assert outcome.status == "finished"
    judgement = json.loads((place / "out/judgement.json").read_text())
    assert not judgement["scaled"] and len(judgement["losses"]) > 1
    assert told("\n".join(lines), "verdict") and (place / "out/report.html").is_file()


@pytest.mark.slow
@pytest.mark.long  # a busy machine may pass the limit of seconds before the first step
def test_a_training_that_is_slower_than_measured_ends_at_the_limit_and_goes_on(place, monkeypatch):
    data = npz(place / "data")

    def first_measured(config, report):
        return replace(measured_times(config, report), step_s=1e-3, evaluation_s=1e-3)

    monkeypatch.setattr("dp_prior_studio.attempt.attempt.measured_times", first_measured)
    outcome = Attempt(str(data), place / "out", 25, lambda line: None).make()
    assert outcome.status == "stopped" and outcome.samples_seen > 0
    judgement = json.loads((place / "out/judgement.json").read_text())
    assert judgement["scaled"] and (place / "out/report.html").is_file(), "judged by the limit"
    short = json.loads((place / "out/short.json").read_text())
    samples = short["train"]["samples"] = outcome.samples_seen + short["data"]["global_batch_size"]
    (place / "out/short.json").write_text(json.dumps(short))
    outcome = Attempt(str(data), place / "out", 60, lambda line: None).make()
    assert outcome.status == "finished" and outcome.samples_seen == samples
    assert json.loads((place / "out/judgement.json").read_text())["checkpoint"] != judgement["checkpoint"]
