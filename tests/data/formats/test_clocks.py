"""Arrays of another rate are read at the row nearest in time to each step, in training as by hand."""

import json

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_files import EpisodeFilesConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from tests.messages import naming

STEPS, FRAMES = (40, 25), (13, 9)


def episodes():
    """A robot at 100 Hz, a camera at 30 Hz with a late first frame, and a force at 250 Hz."""
    random = np.random.default_rng(0)
    for steps, frames in zip(STEPS, FRAMES, strict=True):
        yield {
            "action": STEPS.index(steps) * STEPS[0] + np.arange(steps, dtype=np.float32)[:, None],
            "robot/joints": random.normal(size=(steps, 3)).astype(np.float32),
            "robot/time": np.arange(steps) / 100,
            "cam/rgb": random.integers(0, 255, (frames, 8, 6, 3)).astype(np.uint8),
            "cam/time": 0.021 + np.arange(frames) / 30,
            "force/values": random.normal(size=(110, 2)).astype(np.float32),
            "force/time": 0.001 + np.arange(110) / 250,
        }


CLOCKS = {"clock": "robot/time", "clocks": {"cam/rgb": "cam/time", "force/values": "force/time"}}


def written(folder, kind, change=lambda arrays: arrays):
    folder.mkdir()
    for number, arrays in enumerate(map(change, episodes())):
        if kind == "npz":
            np.savez(folder / f"{number}.npz", **arrays)
            continue
        h5py = pytest.importorskip("h5py", reason="NOT CHECKED: the extra hdf5 is not installed")
        with h5py.File(folder / f"{number}.hdf5", "w") as file:
            for key, values in arrays.items():
                file[key] = values
    return folder


def at_steps(arrays, key, clock):
    """By hand: the row with the smallest distance in time."""
    distances = np.abs(arrays[clock][None] - arrays["robot/time"][:, None])
    return arrays[key][distances.argmin(1)]


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_each_step_has_the_row_nearest_in_time(tmp_path, kind):
    store = EpisodeFilesConfig(path=written(tmp_path / "d", kind), **CLOCKS).create()
    assert store.episode_ends.tolist() == np.cumsum(STEPS).tolist() and store.cameras() == {"cam/rgb": (8, 6, 3)}
    expected = [at_steps(arrays, "force/values", "force/time") for arrays in episodes()]
    np.testing.assert_array_equal(store.read("force/values"), np.concatenate(expected))
    joints = np.concatenate([arrays["robot/joints"] for arrays in episodes()])
    np.testing.assert_array_equal(store.read("robot/joints"), joints)
    assert set(store.unread()) == {"cam/time", "force/time"}


def record(path, **episodes):
    return {
        "episodes": {"type": "episode_files", "path": str(path), **episodes},
        "images": {"cam": {"key": "cam/rgb", "size": [8, 6]}},
        "obs": {"force": {"key": "force/values"}},
        "action": {"key": "action"},
        "split": {"train": 1.0, "val": 0.0},
    }


def test_windows_hold_the_frames_of_their_steps_and_other_times_are_other_data(tmp_path):
    path = written(tmp_path / "d", "npz", lambda arrays: {**arrays, "cam/late": arrays["cam/time"] + 0.05})
    data = TrajectoriesConfig.from_json(json.dumps(record(path, **CLOCKS))).create(4, 2, 3)
    batch = data.train.fetch(torch.arange(len(data.train)))
    frames = torch.from_numpy(np.concatenate([at_steps(arrays, "cam/rgb", "cam/time") for arrays in episodes()]))
    newest = batch.x[:, 1, 0].long()  # the action is the number of its row
    assert torch.equal(batch.cond["cam"][:, 1], frames[newest])
    late = {**CLOCKS, "clocks": {**CLOCKS["clocks"], "cam/rgb": "cam/late"}}
    other = TrajectoriesConfig.from_json(json.dumps(record(path, **late))).create(4, 2, 3)
    assert other.fingerprint != data.fingerprint
    assert not torch.equal(other.train.fetch(torch.arange(9)).cond["cam"], batch.cond["cam"][:9])


@pytest.mark.parametrize(
    ("change", "clocks", "parts"),
    [
        ({}, {"clocks": {}}, ("clock", "clocks")),
        ({}, {"clock": None}, ("clock", "clocks")),
        ({}, {"clocks": {"cam/rgb": "cam/tim"}}, ("'cam/tim'", "'cam/time'")),
        ({}, {"clocks": {"cam/rgb": "force/time"}}, ("0.npz[cam/rgb]", "13 rows", "'force/time'", "110 times")),
        ({}, {"clocks": {"cam/rgb": "robot/joints"}}, ("0.npz[robot/joints]", (40, 3), "(rows,)")),
        ({"cam/time": 1.7e9 + np.arange(13) / 30}, {}, ("0.npz[robot/time]", "step 0", "'cam/time'")),
        ({"cam/time": np.arange(13)[::-1] / 30}, {}, ("0.npz[cam/time]", "ascending")),
        ({"cam/time": np.full(13, np.nan)}, {}, ("0.npz[cam/time]", "ascending")),
    ],
)
def test_clocks_that_do_not_fit_are_refused(tmp_path, change, clocks, parts):
    path = written(tmp_path / "d", "npz", lambda arrays: {**arrays, **change})
    with pytest.raises((ConfigError, DataError), match=naming(*parts)):
        store = EpisodeFilesConfig(path=path, files="0.npz", **{**CLOCKS, **clocks}).create()
        raise DataError(store.where, store.checked_ends()[1])


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_a_misspelt_array_of_another_rate_is_told_the_nearest(tmp_path, kind):
    path = written(tmp_path / "d", kind)
    with pytest.raises(DataError, match=naming("clocks", "cam/rbg", "'cam/rgb'")):
        EpisodeFilesConfig(path=path, clock="robot/time", clocks={"cam/rbg": "cam/time"}).create()
