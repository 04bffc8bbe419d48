"""Evaluators: they measure a model during training and after it.

`tasks` of a record lists the kinds of task it can measure, None for all; `check` refuses a task that does not fit.
"""

from typing import Annotated

from pydantic import Field

from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.similarity import SimilarityConfig

EvaluatorConfig = Annotated[
    LossConfig | LikelihoodConfig | ActionErrorConfig | RolloutConfig | SimilarityConfig, Field(discriminator="type")
]
