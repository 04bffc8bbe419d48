"""Tasks: what is diffused, given what.

A record's `kind` says what its model is to others: what measures it, and that `load_<kind>` loads it.
"""

from typing import Annotated

from pydantic import Field

from dp_prior.tasks.inpainting import InpaintingPolicyConfig
from dp_prior.tasks.policy import PolicyConfig
from dp_prior.tasks.prior import PriorConfig

TaskConfig = Annotated[PolicyConfig | InpaintingPolicyConfig | PriorConfig, Field(discriminator="type")]

TASKS = {"policy": PolicyConfig, "inpainting_policy": InpaintingPolicyConfig, "prior": PriorConfig}
"""The records by their type."""

DEFAULT_TASK = PolicyConfig()
