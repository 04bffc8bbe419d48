"""dp_prior: train diffusion policies and priors from one JSON file, and use them."""

from dp_prior.inference.agent import Agent
from dp_prior.inference.load import load_policy, load_prior
from dp_prior.metrics import pad_gather_reduce

__version__ = "0.1.0"

__all__ = ["Agent", "__version__", "load_policy", "load_prior", "pad_gather_reduce"]
