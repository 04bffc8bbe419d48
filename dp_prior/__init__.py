"""dp_prior: train diffusion policies, priors and models of images from one JSON file, and use them."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in `typing`, whose import takes most of the time of importing this package
if TYPE_CHECKING:
    from dp_prior.config import ConfigError
    from dp_prior.inference.agent import Agent
    from dp_prior.inference.load import load_image, load_policy, load_prior
    from dp_prior.run.config import TrainConfig
    from dp_prior.run.run import train
    from dp_prior.tensors.metrics import pad_gather_reduce
    from dp_prior.tracking import TrackerConfig
    from dp_prior.tracking.tracker import Tracker
    from dp_prior.training.trainer import PolicyTrainer
    from dp_prior_client.client import PolicyClient

__version__ = "0.3.0"

__all__ = [
    "Agent",
    "ConfigError",
    "PolicyClient",
    "PolicyTrainer",
    "TrackerConfig",
    "Tracker",
    "TrainConfig",
    "__version__",
    "load_image",
    "load_policy",
    "load_prior",
    "pad_gather_reduce",
    "train",
]

_HOMES = {
    "Agent": "dp_prior.inference.agent",
    "ConfigError": "dp_prior.config",
    "PolicyClient": "dp_prior_client.client",
    "PolicyTrainer": "dp_prior.training.trainer",
    "Tracker": "dp_prior.tracking.tracker",
    "TrackerConfig": "dp_prior.tracking",
    "TrainConfig": "dp_prior.run.config",
    "load_image": "dp_prior.inference.load",
    "load_policy": "dp_prior.inference.load",
    "load_prior": "dp_prior.inference.load",
    "pad_gather_reduce": "dp_prior.tensors.metrics",
    "train": "dp_prior.run.run",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562): robots have `PolicyClient` without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return globals()[name]


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted(__all__)
