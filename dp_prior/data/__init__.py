"""Data sets and the order of training. `DataConfig` is the union of all kinds of data."""

from dp_prior.data.trajectories import TrajectoriesConfig

DataConfig = TrajectoriesConfig
