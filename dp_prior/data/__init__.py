"""Data sets and the order of training. `DataConfig` is the union of all kinds of data.

A record's `provides` names the samples that its data set has, which a task's `data_types` lists: those of its own type,
or those of another one that it takes the place of.
"""

from dp_prior.config import family
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.image_sets.images import ImagesConfig
from dp_prior.data.mixture import MixtureConfig
from dp_prior.data.trajectories import TrajectoriesConfig

DataConfig = family(
    "data",
    *(TrajectoriesConfig, MixtureConfig, EmbeddingsConfig, ImagesConfig),
    needs=("batch_size", "integrity", "provides"),
)
