"""Evaluators: what measures a model during training and after it.

A record names the kinds of task it measures in `tasks`, None for all; `check` raises what else keeps it from that;
`trial` is the same measurement at its smallest, for `--check`.
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
