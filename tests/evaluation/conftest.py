"""Simulators that may be missing, and the demonstrations in the repository."""

from tests.envs.conftest import gym_pusht, metaworld, shipped  # noqa: F401
