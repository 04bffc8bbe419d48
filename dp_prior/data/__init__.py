"""Data sets and the order of training. `DataConfig` is the union of all kinds of data."""

from typing import Annotated

from pydantic import Field

from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.trajectories import TrajectoriesConfig

DataConfig = Annotated[TrajectoriesConfig | EmbeddingsConfig, Field(discriminator="type")]
