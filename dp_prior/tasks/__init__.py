"""Tasks: what is diffused, given what."""

from typing import Annotated

from pydantic import Field

from dp_prior.tasks.policy import PolicyConfig
from dp_prior.tasks.prior import PriorConfig

TaskConfig = Annotated[PolicyConfig | PriorConfig, Field(discriminator="type")]

TASKS = {"policy": PolicyConfig, "prior": PriorConfig}
"""The records by their type."""

DEFAULT_TASK = PolicyConfig()
