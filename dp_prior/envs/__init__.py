"""Environments for rollouts."""

from typing import Annotated

from pydantic import Field

from dp_prior.envs.gym import GymConfig
from dp_prior.envs.pusht import PushTConfig
from dp_prior.envs.toy import ToyConfig

EnvConfig = Annotated[ToyConfig | PushTConfig | GymConfig, Field(discriminator="type")]
