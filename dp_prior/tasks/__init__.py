"""Tasks: what is diffused, given what.

A record's `kind` says what its model is to others: what measures it, and that `load_<kind>` loads it.
"""

from dp_prior.config import family
from dp_prior.tasks.inpainting import InpaintingPolicyConfig
from dp_prior.tasks.policy import PolicyConfig
from dp_prior.tasks.prior import PriorConfig

TaskConfig = family("tasks", PolicyConfig, InpaintingPolicyConfig, PriorConfig)
