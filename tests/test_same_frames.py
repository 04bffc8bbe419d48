"""The frames of the same episodes, as arrays, encoded rows, pictures and videos, are the same ones wherever they are
read: training, `dp-prior inspect` and `dp-prior convert`."""

import io
import json

import numpy as np
import pytest
import torch

from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior_foreign.convert import convert
from dp_prior_foreign.recognition import kind_of
from dp_prior_studio.inspection.inspect import inspect
from tests.data.frames.recordings import (
    ends_of,
    png,
    write_folder,
    write_lerobot,
    write_robomimic,
    write_video,
    write_zarr,
)
from tests.data.frames.sources import gathered
from tests.extras import needs
from tests.tiny_camera import camera_run

for package, extra in {"av": "video", "h5py": "hdf5", "PIL": "image", "pyarrow": "lerobot", "zarr": "zarr"}.items():
    needs(package, extra)

LENGTHS = [12, 9, 15]
SIZE = (48, 64)
BOUND = 12
"""Levels by which a lossy picture may differ from what was recorded; another order of channels, another orientation or
another row differs by far more."""


def scene():
    """(36, 48, 64, 3) uint8: smooth, not symmetric, with more red than blue, and with another green at every step."""
    y, x = np.mgrid[0:1:48j, 0:1:64j]
    green = np.arange(sum(LENGTHS)) * 53 % 211
    return np.stack([np.stack([100 + 140 * y, g + 20 * x, 80 * x], axis=2) for g in green]).astype(np.uint8)


FRAMES = scene()


def jpeg(frame):
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(frame).save(stream, "JPEG", quality=95, subsampling=0)
    return stream.getvalue()


def rows_of(files, how):
    """Files of bytes as rows of one length, as texts of one length, or of each its own length."""
    import h5py

    if how == "own":
        return np.array([np.frombuffer(file, np.uint8) for file in files], dtype=h5py.vlen_dtype(np.uint8))
    if how == "texts":
        return np.array(files, dtype=f"S{max(map(len, files))}")
    rows = np.zeros((len(files), max(map(len, files)) + 7), np.uint8)
    for row, file in zip(rows, files, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    return rows


def write_hdf5_files(path, encode, how):
    import h5py

    path.mkdir()
    for number, (frames, length) in enumerate(zip(np.split(FRAMES, ends_of(LENGTHS)[:-1]), LENGTHS, strict=True)):
        with h5py.File(path / f"episode_{number}.hdf5", "w") as file:
            file["action"], file["qpos"] = np.random.default_rng(number).normal(size=(2, length, 2))
            file["image"] = frames if encode is None else rows_of([encode(frame) for frame in frames], how)
    return path


def write_npz(path, **arrays):
    np.savez(path, action=NUMBERS, episode_ends=ends_of(LENGTHS), **arrays)
    return path


def videos(path, per_row=1, **how):
    for number, frames in enumerate(np.split(FRAMES, ends_of(LENGTHS)[:-1])):
        write_video(path / f"{number}/0.mp4", frames.repeat(per_row, axis=0), **how)


LOSSY = {"codec": "libx264", "pix_fmt": "yuv420p", "options": {"crf": "10"}}
NUMBERS = np.arange(len(FRAMES), dtype=np.float32)[:, None]
INSIDE = {  # the layout -> how it is written, the camera's key, and whether its frames are exact
    "npz": (lambda path: write_npz(path / "d.npz", image=FRAMES), "image", True),
    "zarr": (lambda path: write_zarr(path / "d.zarr", FRAMES, LENGTHS, **{"data/action": NUMBERS}), "image", True),
    "robomimic": (lambda path: write_robomimic(path / "d.hdf5", FRAMES, LENGTHS), "obs/image", True),
    "arrays": (lambda path: write_hdf5_files(path / "d", None, None), "image", True),
    "padded png": (lambda path: write_hdf5_files(path / "d", png, "padded"), "image", True),
    "text png": (lambda path: write_hdf5_files(path / "d", png, "texts"), "image", True),
    "padded jpeg": (lambda path: write_hdf5_files(path / "d", jpeg, "padded"), "image", False),
    "text jpeg": (lambda path: write_hdf5_files(path / "d", jpeg, "texts"), "image", False),
    "own jpeg": (lambda path: write_hdf5_files(path / "d", jpeg, "own"), "image", False),
    "lerobot png": (lambda path: write_lerobot(path / "d", FRAMES, LENGTHS, "v3.0", "image"), "image", True),
    "lerobot v2.1": (lambda path: write_lerobot(path / "d", FRAMES, LENGTHS, "v2.1", "video"), "image", True),
    "lerobot v3.0": (lambda path: write_lerobot(path / "d", FRAMES, LENGTHS, "v3.0", "video", **LOSSY), "image", False),
}
BESIDE = {  # the layout -> how it is written, further fields of the camera, and whether its frames are exact
    "pictures": (lambda path: write_folder(path, FRAMES, LENGTHS, "picture"), {}, True),
    "videos": (lambda path: write_folder(path, FRAMES, LENGTHS, "video"), {}, True),
    "real robot": (videos, {"file": "0.mp4"}, True),
    "real robot, lossy": (lambda path: videos(path, **LOSSY), {"file": "0.mp4"}, False),
    "real robot, 30 Hz": (lambda path: videos(path, 3, fps=30), {"file": "0.mp4", "frames_per_row": 3}, True),
}


TELLING = {"zarr", "robomimic", "padded png", "text jpeg", "lerobot v2.1", "videos", "real robot, 30 Hz"}
"""Which run by default: each kind of file, and each way in which frames are stored, is in one of them."""
ALL = [pytest.param(name, marks=[pytest.mark.slow] * (name not in TELLING)) for name in (*INSIDE, *BESIDE)]


@pytest.fixture(params=ALL)
def layout(request, tmp_path):
    """Where the data set lies, `data` of a configuration, and whether frames are exact."""
    if request.param in BESIDE:
        write, camera, is_exact = BESIDE[request.param]
        write(tmp_path / "front")
        path, camera = write_npz(tmp_path / "d.npz"), {"folder": str(tmp_path / "front"), **camera}
    else:
        write, key, is_exact = INSIDE[request.param]
        path, camera = write(tmp_path), {"key": key}
    kind = kind_of(path)
    data = {
        "episodes": {"type": kind, "path": str(path)},
        "images": {"front": {**camera, "size": list(SIZE)}},
        "action": {"key": "actions" if kind == "robomimic" else "action"},
    }
    return path, data, is_exact


def assert_recorded(found, rows, is_exact):
    difference = np.abs(np.asarray(found).astype(int) - FRAMES[rows]).max()
    assert found.shape == FRAMES[rows].shape and difference <= (0 if is_exact else BOUND)


def test_another_row_orientation_or_order_of_channels_would_be_seen():
    others = [FRAMES[..., ::-1], FRAMES[:, ::-1], FRAMES[:, :, ::-1], np.roll(FRAMES, 1, axis=0)]
    assert all((np.abs(other.astype(int) - FRAMES).max(axis=(1, 2, 3)) > 2 * BOUND).all() for other in others)


def test_training_inspect_and_convert_read_the_recorded_frames(layout, tmp_path):
    path, data, is_exact = layout
    trained = TrajectoriesConfig.from_json(json.dumps(data)).create(4, 2, 2)
    assert trained.fingerprint, "builds the frame cache"
    assert_recorded(trained.images["front"].rows(torch.arange(len(FRAMES))), slice(None), is_exact)
    (tmp_path / "config.json").write_text(json.dumps(camera_run(tmp_path / "run", data=data)))
    (found,) = inspect(str(tmp_path / "config.json"))
    assert [strip.episode for strip in found.strips] == [0, 1, 2] and found.gaps == []
    assert_recorded(found.strips[0].clip, slice(0, LENGTHS[0]), is_exact)
    for strip, end, length in zip(found.strips, ends_of(LENGTHS), LENGTHS, strict=True):
        assert_recorded(strip.stills, end - length + np.array(strip.frames), is_exact)
    if (key := data["images"]["front"].get("key")) is not None:  # frames beside a data set are no part of it
        convert(path, tmp_path / "out.zarr", "zarr")
        store = ZarrStoreConfig(path=tmp_path / "out.zarr").create()
        assert_recorded(gathered(store.frames(key, store.episode_ends)), slice(None), is_exact)
