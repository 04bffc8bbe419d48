"""The frames of one camera of a data set, whatever its format."""

from __future__ import annotations

import numpy as np

from dp_prior.data.episodes import EpisodeStore
from dp_prior.data.episodes.lerobot import LeRobotStore
from dp_prior.data.episodes.npz import NpzStore
from dp_prior.data.episodes.robomimic import RobomimicStore
from dp_prior.data.episodes.zarr import ZarrStore
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.frames import FrameSource
from dp_prior.data.frames.arrays import npz_frames, robomimic_frames, zarr_frames
from dp_prior.data.frames.lerobot import lerobot_frames


def open_source(store: EpisodeStore, key: str, ends: np.ndarray) -> FrameSource:
    """The frames that a data set has under a key; pictures beside a data set are `FolderFrames`.

    Args:
        ends: (E,) exclusive end row of each episode, checked.

    Raises:
        DataError: there are none, or they are no 8 bit RGB pictures, one per row.
    """
    if not len(ends):
        raise DataError(str(store.describe()["path"]), ["has no episodes"])
    keys = store.keys()
    if key not in keys:
        raise DataError(str(store.describe()["path"]), [f"has no key {key!r}. {nearest_name(key, keys)}"])
    match store:
        case ZarrStore():
            return zarr_frames(store, key, ends)
        case NpzStore():
            return npz_frames(store, key, ends)
        case LeRobotStore():
            return lerobot_frames(store, key, ends)
        case RobomimicStore():
            return robomimic_frames(store, key, ends)
    problem = f"frames are not read by {type(store).__name__}; give them as files in data.images.*.folder"
    raise DataError(str(store.describe()["path"]), [problem])
