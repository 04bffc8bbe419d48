"""Environments for rollouts."""

from dp_prior.config import family
from dp_prior.envs.gym import GymConfig
from dp_prior.envs.metaworld import MetaWorldConfig
from dp_prior.envs.pusht import PushTConfig
from dp_prior.envs.toy import ToyConfig

EnvConfig = family("envs", ToyConfig, PushTConfig, MetaWorldConfig, GymConfig)
