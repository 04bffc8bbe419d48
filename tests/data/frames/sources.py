"""The frames of every format and of folders, as sources, and all pixels of one."""

import numpy as np
import pytest

from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.frames.folder import FolderFrames
from tests.data.frames.recordings import (
    KEY,
    ends_of,
    write_folder,
    write_lerobot,
    write_npz,
    write_robomimic,
    write_zarr,
    zip_of,
)

LENGTHS = [3, 7, 1, 4, 2, 5, 1, 1, 6, 2, 3, 8]  # twelve: names sort 10 before 2

LEROBOT = {f"lerobot {version} {kind}": (version, kind) for version in ("v2.1", "v3.0") for kind in ("video", "image")}
FORMATS = ["zarr v2", "zarr v3", "zarr zip", "zarr channels first", "npz", "robomimic", *LEROBOT]
FORMATS += ["folder of pictures", "folder of videos"]
NEEDS = {"zarr": ["zarr"], "robomimic": ["h5py"], "lerobot": ["pyarrow", "av", "PIL"], "folder": ["av", "PIL"]}


def need(format):
    for package in NEEDS.get(format.split()[0], []):
        pytest.importorskip(package)


def written(format, path, frames, lengths=LENGTHS):
    """The source of frames written in a format."""
    need(format)
    ends = ends_of(lengths)
    if format.startswith("folder"):
        return FolderFrames(write_folder(path / "frames", frames, lengths, format[10:].rstrip("s")), ends)
    if format == "npz":
        store = NpzStoreConfig(path=write_npz(path / "d.npz", frames, lengths)).create()
    elif format == "robomimic":
        store = RobomimicStoreConfig(path=write_robomimic(path / "d.hdf5", frames, lengths)).create()
        return store.frames(f"obs/{KEY}", ends)
    elif format.startswith("lerobot"):
        store = LeRobotStoreConfig(path=write_lerobot(path / "d", frames, lengths, *LEROBOT[format])).create()
    else:
        if format == "zarr channels first":
            frames = np.ascontiguousarray(frames.transpose(0, 3, 1, 2))
        folder = write_zarr(path / "d", frames, lengths, version=3 if format == "zarr v3" else 2)
        store = ZarrStoreConfig(path=zip_of(folder) if format == "zarr zip" else folder).create()
    return store.frames(KEY, ends)


def gathered(source, skip=0):
    """All frames by row, read part by part."""
    ends, lengths = source.ends, np.diff(source.ends, prepend=0)
    found = np.zeros((ends[-1], *source.size, 3), np.uint8)
    for part in source.parts:
        rows = np.concatenate([np.arange(ends[e] - lengths[e], ends[e]) for e in part.episodes])[skip:]
        blocks = [block.copy() for block in source.read(part, skip)]
        if len(rows):
            found[rows] = np.concatenate(blocks)
    return found
