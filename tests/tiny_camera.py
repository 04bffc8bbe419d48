"""`tests.tiny` with a camera: 40 frames of noise in four episodes, in any format, and a small network."""

import json

import numpy as np
import pytest

from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from tests.data.frames.recordings import (
    ends_of,
    pictures,
    write_folder,
    write_lerobot,
    write_npz,
    write_robomimic,
    write_zarr,
)
from tests.tiny import tiny

LENGTHS = [9, 12, 8, 11]
FRAMES = pictures(sum(LENGTHS))  # (40, 24, 32, 3)
SIZE = (12, 16)
ENCODER = {
    "type": "resnet", "width": 16, "blocks": [1], "stem": "patch", "keypoints": 4, "output_dim": 8, "crop": [8, 12],
    "jitter": {"brightness": 0.2},
}  # fmt: skip
FORMATS = ["npz", "zarr", "robomimic", "lerobot video", "folder"]
NEEDS = {
    "npz": [], "zarr": ["zarr"], "robomimic": ["h5py"], "lerobot video": ["pyarrow", "av"], "folder": ["PIL"]
}  # fmt: skip


def recorded(format, path):
    """`data` of a configuration: the same pixels and actions in one format."""
    for package in NEEDS[format]:
        pytest.importorskip(package)
    path.mkdir(exist_ok=True)
    image = {"key": "image", "size": list(SIZE)}
    numbers = np.arange(len(FRAMES), dtype=np.float32)[:, None]
    if format == "npz":
        np.savez(path / "d.npz", image=FRAMES, action=numbers, episode_ends=ends_of(LENGTHS))
        episodes, action = {"type": "npz", "path": str(path / "d.npz")}, {"key": "action"}
    elif format == "zarr":
        write_zarr(path / "d.zarr", FRAMES, LENGTHS, **{"data/action": numbers})
        episodes, action = {"type": "zarr", "path": str(path / "d.zarr")}, {"key": "action"}
    elif format == "robomimic":
        write_robomimic(path / "d.hdf5", FRAMES, LENGTHS)
        episodes, action = {"type": "robomimic", "path": str(path / "d.hdf5")}, {"key": "actions", "slice": [0, 1]}
        image["key"] = "obs/image"
    elif format == "folder":
        write_npz(path / "d.npz", FRAMES, LENGTHS)
        np.savez(path / "d.npz", action=numbers, episode_ends=ends_of(LENGTHS))
        write_folder(path / "front", FRAMES, LENGTHS, "picture")
        episodes, action = {"type": "npz", "path": str(path / "d.npz")}, {"key": "action"}
        image = {"folder": str(path / "front"), "size": list(SIZE)}
    else:
        write_lerobot(path / "d", FRAMES, LENGTHS, "v3.0", "video")
        episodes, action = {"type": "lerobot", "path": str(path / "d")}, {"key": "action"}
    return {
        "episodes": episodes,
        "images": {"front": image},
        "action": action,
        "split": {"train": 0.75, "val": 0.25},
        "batch_size": 8,
    }


def camera_run(place, format="npz", **changes):
    """`tiny` with a camera instead of states."""
    place.mkdir(exist_ok=True)
    data = recorded(format, place)
    return tiny(place, **{"data": data, "task__encoders": {"front": dict(ENCODER)}, "train__steps": 6, **changes})


def saved(place, **changes):
    """`camera_run` as a file."""
    path = place / "config.json"
    config = camera_run(place, **changes)
    path.write_text(json.dumps(config))
    return path


def data_of(record):
    """The windows of `data` of a configuration."""
    return TrajectoriesConfig.from_json(json.dumps(record)).create(4, 2, 2)
