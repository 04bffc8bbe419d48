"""Remote and local places for checkpoints: the savers that put them there, and where a run resumes from."""

from typing import Annotated

from pydantic import Field

from dp_prior.places.fsspec import FsspecSaverConfig
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.local import LocalLoaderConfig, LocalSaverConfig
from dp_prior.places.resume import RemoteLoaderConfig
from dp_prior.places.wandb import WandbSaverConfig

SaverConfig = Annotated[
    LocalSaverConfig | HuggingFaceSaverConfig | FsspecSaverConfig | WandbSaverConfig, Field(discriminator="type")
]
LoaderConfig = Annotated[LocalLoaderConfig | RemoteLoaderConfig, Field(discriminator="type")]
