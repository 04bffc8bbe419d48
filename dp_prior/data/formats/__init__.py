"""Formats of recorded episodes, one per module or folder: a record, how its data are read, and how they are written.

A path is taken for the first of the family that it looks like.
"""

from __future__ import annotations

from dp_prior.config import family
from dp_prior.data.formats.episode_files import EpisodeFilesConfig
from dp_prior.data.formats.flagged_arrays import FlaggedArraysConfig
from dp_prior.data.formats.hdf5_groups import Hdf5GroupsConfig
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.masked_arrays import MaskedArraysConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.formats.ros2.ros2_bags import Ros2BagsConfig
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig

EpisodeStoreConfig = family(
    "episodes",
    *(ZarrStoreConfig, LeRobotStoreConfig, RobomimicStoreConfig, Hdf5GroupsConfig),
    *(FlaggedArraysConfig, NpzStoreConfig, EpisodeFilesConfig, MaskedArraysConfig, Ros2BagsConfig),
    needs=("create", "path", "is_at", "is_remote", "local", "write"),
)
