"""Places for checkpoints: savers copy or upload checkpoints; loaders say where a run resumes from."""

from dp_prior.config import family
from dp_prior.places.fsspec import FsspecSaverConfig
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.local import LocalSaverConfig
from dp_prior.places.resume import LocalResumeConfig, RemoteResumeConfig
from dp_prior.places.wandb import WandbSaverConfig

SaverConfig = family("savers", LocalSaverConfig, HuggingFaceSaverConfig, FsspecSaverConfig, WandbSaverConfig)
ResumeConfig = family("loaders", LocalResumeConfig, RemoteResumeConfig, needs=("recall",))
