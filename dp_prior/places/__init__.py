"""Places for checkpoints: the savers that put them there, and where a run resumes from."""

from typing import Annotated

from pydantic import Field

from dp_prior.places.fsspec import FsspecSaverConfig
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.local import LocalSaverConfig
from dp_prior.places.resume import LocalResumeConfig, RemoteResumeConfig
from dp_prior.places.wandb import WandbSaverConfig

SaverConfig = Annotated[
    LocalSaverConfig | HuggingFaceSaverConfig | FsspecSaverConfig | WandbSaverConfig, Field(discriminator="type")
]
ResumeConfig = Annotated[LocalResumeConfig | RemoteResumeConfig, Field(discriminator="type")]
