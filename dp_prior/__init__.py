"""dp_prior: train diffusion policies, priors and models of images from one JSON file, and use them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_prior.inference.agent import Agent
    from dp_prior.inference.load import load_image, load_policy, load_prior
    from dp_prior.metrics import pad_gather_reduce

__version__ = "0.1.0"

__all__ = ["Agent", "__version__", "load_image", "load_policy", "load_prior", "pad_gather_reduce"]


def __getattr__(name: str) -> object:
    """Import the public names when one is first used (PEP 562): `dp_prior.client` runs on robots without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from dp_prior.inference.agent import Agent
    from dp_prior.inference.load import load_image, load_policy, load_prior
    from dp_prior.metrics import pad_gather_reduce

    found = {"Agent": Agent, "load_image": load_image, "load_policy": load_policy, "load_prior": load_prior}
    globals().update(found, pad_gather_reduce=pad_gather_reduce)
    return globals()[name]
