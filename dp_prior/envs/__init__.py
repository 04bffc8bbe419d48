"""Environments for rollouts."""

from dp_prior.config import family
from dp_prior.envs.aloha import AlohaConfig
from dp_prior.envs.gym import GymConfig
from dp_prior.envs.metaworld import MetaWorldConfig
from dp_prior.envs.pusht import PushTConfig
from dp_prior.envs.pusht_goals import PushTGoalsConfig
from dp_prior.envs.robosuite import RobosuiteConfig
from dp_prior.envs.toy import ToyConfig

EnvConfig = family(
    "envs",
    *(ToyConfig, PushTConfig, PushTGoalsConfig, MetaWorldConfig, AlohaConfig, RobosuiteConfig, GymConfig),
    needs=("create", "max_steps", "n_envs"),
)
