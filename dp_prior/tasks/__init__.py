"""Tasks: what is diffused, given what."""

from dp_prior.tasks.policy import PolicyConfig

TaskConfig = PolicyConfig

DEFAULT_TASK = PolicyConfig()
