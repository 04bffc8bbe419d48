"""Evaluators measure a model during training and after it; see `EvaluatorRecord` and `HeldOutConfig`."""

from dp_prior.config import family
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.image_quality import DrawnImagesConfig
from dp_prior.evaluation.likelihood import LikelihoodConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.replay import ReplayConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.similarity import SimilarityConfig

EvaluatorConfig = family(
    "evaluators",
    *(LossConfig, LikelihoodConfig, ActionErrorConfig, RolloutConfig, ReplayConfig, SimilarityConfig),
    DrawnImagesConfig,
    needs=("create", "every", "name", "measured_models", "metric_names", "metrics", "reports", "task_faults", "tasks")
    + ("trial",),
)
