"""Evaluators: they measure a model during training and after it.

A record names the kinds of task it measures in `tasks` (None for all) and describes its metrics in `metrics`; `check`
raises what else keeps it from measuring a task; `trial` is the same measurement at its smallest, for `--check`.
"""

from dp_prior.config import family
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.similarity import SimilarityConfig

EvaluatorConfig = family("evaluators", LossConfig, LikelihoodConfig, ActionErrorConfig, RolloutConfig, SimilarityConfig)
