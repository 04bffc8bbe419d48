"""Evaluators: what measures a model during training and after it."""

from typing import Annotated

from pydantic import Field

from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.rollout import RolloutConfig

EvaluatorConfig = Annotated[
    LossConfig | LikelihoodConfig | ActionErrorConfig | RolloutConfig, Field(discriminator="type")
]
