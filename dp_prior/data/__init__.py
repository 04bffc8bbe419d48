"""Data sets and the order of training. `DataConfig` is the union of all kinds of data; see `DataRecord`."""

from dp_prior.config import family
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.data.recorded.mixture import MixtureConfig
from dp_prior.data.recorded.trajectories import TrajectoriesConfig

DataConfig = family(
    "data",
    *(TrajectoriesConfig, MixtureConfig, EmbeddingsConfig, ImagesConfig),
    needs=("batch_size", "integrity", "provides", "downloaded", "create"),
)
