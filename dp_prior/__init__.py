"""dp_prior: train diffusion policies from one JSON file, and act with them."""

from dp_prior.inference.agent import Agent
from dp_prior.inference.load import load_policy

__version__ = "0.1.0"

__all__ = ["Agent", "__version__", "load_policy"]
