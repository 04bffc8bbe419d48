"""Episodes that are stored apart: a folder of HDF5 or `.npz` files, or the groups of one file."""

import io
from pathlib import Path

import numpy as np

from tests.data.frames.recordings import pictures

LENGTHS = [3, 5, 2, 4, 1, 6, 2, 2, 3, 1, 7]  # eleven: names sort 10 before 2
CAMERA = "observations/images/top"


def episodes(more: int = 0) -> list[dict[str, np.ndarray]]:
    """Arrays of each episode, those of observations with `more` rows more than the actions."""
    random, found = np.random.default_rng(0), []
    for number, length in enumerate(LENGTHS):
        rows = length + more
        found.append(
            {
                "action": random.normal(size=(length, 3)).astype(np.float64 if number % 2 else np.float32),
                "observations/qpos": random.normal(size=(rows, 2)).astype(np.float32),
                "observations/arms": np.arange(rows * 4).reshape(rows, 2, 2),
                CAMERA: pictures(rows, seed=number),
            }
        )
    return found


def joined(key: str, more: int = 0) -> np.ndarray:
    return np.concatenate([each[key][:length] for each, length in zip(episodes(more), LENGTHS, strict=True)])


def encoded(frames: np.ndarray, how: str) -> np.ndarray:
    """PNG of each frame: rows of bytes padded to one length, or texts of one length."""
    from PIL import Image

    files = []
    for frame in frames:
        stream = io.BytesIO()
        Image.fromarray(frame).save(stream, "PNG")
        files.append(stream.getvalue())
    longest = max(map(len, files)) + 5
    if how == "texts":
        return np.array(files, dtype=f"S{longest}")
    rows = np.zeros((len(files), longest), np.uint8)
    for row, file in zip(rows, files, strict=True):
        row[: len(file)] = np.frombuffer(file, np.uint8)
    return rows


def write_hdf5_files(folder: Path, how: str | None = None) -> Path:
    """As ACT and ALOHA do, with frames as arrays or encoded."""
    import h5py

    folder.mkdir()
    for number, arrays in enumerate(episodes()):
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            for key, values in arrays.items():
                file[key] = encoded(values, how) if how and key == CAMERA else values
            file["compress_len"] = np.zeros((2, 50))
    return folder


def write_npz_files(folder: Path) -> Path:
    folder.mkdir()
    for number, arrays in enumerate(episodes()):
        np.savez_compressed(folder / f"episode_{number}.npz", **arrays)
    return folder


def write_groups(path: Path) -> Path:
    """As ManiSkill does: one observation more than there are actions."""
    import h5py

    with h5py.File(path, "w") as file:
        for number, arrays in enumerate(episodes(more=1)):
            for key, values in arrays.items():
                file[f"traj_{number}/{key}"] = values
    return path
