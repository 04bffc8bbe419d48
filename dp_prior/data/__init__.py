"""Data sets and the order of training. `DataConfig` is the union of all kinds of data."""

from dp_prior.config import family
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.trajectories import TrajectoriesConfig

DataConfig = family("data", TrajectoriesConfig, EmbeddingsConfig)
