"""Rollouts of every body of a network for many, each in its own world, and their mean, which may select weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import ConfigError
from dp_prior.evaluation.measured_models import pick_models
from dp_prior.evaluation.measurement import EvaluatorName, EvaluatorRecord, Measurement, WritingEvaluator
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.rollout_evaluator import RolloutEvaluator
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior.tracking.metric_names import Metric
from dp_prior_bodies.recorded import Bodies

MEANS = ("score", "success_rate")
"""Metrics of rollouts whose mean over the bodies is measured, as `mean_score` and `mean_success_rate`."""


class BodyRolloutsConfig(EvaluatorRecord):
    """Rollouts of each body in its own world, and the means over the bodies, each body with equal weight.

    The rollouts of a body are called `<name>_<body>`, in metrics and files; see `rollout`. `train.monitor` may name a
    mean, to select the best weights for all bodies. Scores of environments may have different ranges, while a success
    rate is a share everywhere. A mean is NaN if one of its bodies has no such number.
    """

    type: Literal["body_rollouts"] = "body_rollouts"

    tasks: ClassVar = ("bodies",)

    metrics: ClassVar = (
        Metric("<name>/mean_score", "score", "higher", "Mean over the bodies of the mean score."),
        Metric("<name>/mean_success_rate", "share", "higher", "Mean over the bodies of the share of episodes solved."),
        *RolloutConfig.metrics,
    )

    name: EvaluatorName = "rollout"
    """First part of the names of metrics, for example `rollout/mean_score` and `rollout_panda/score`, and of files."""

    every: Cadence = Cadence(epochs=50)
    """How often to run, besides at the end."""

    worlds: Annotated[dict[EvaluatorName, RolloutConfig], Field(min_length=1)]
    """Settings of `rollout` by body (`data.sets`), without `name` and `every`. Other bodies are not measured."""

    def faults(self) -> Iterator[str]:
        for body, rollouts in self.worlds.items():
            for field in ("name", "every"):
                if getattr(rollouts, field) != RolloutConfig.model_fields[field].default:
                    yield f"worlds.{body}.{field} has no effect; write it beside `worlds`, for all bodies"

    def task_faults(self, task: Any) -> Iterator[str]:
        """See `RolloutConfig.task_faults`; of each body."""
        for body, rollouts in self.worlds.items():
            yield from (f"worlds.{body}.{fault}" for fault in rollouts.task_faults(task))

    def metric_names(self) -> list[str]:
        """The means, and the metrics of the rollouts of each body."""
        names = [f"{self.name}/mean_{metric}" for metric in MEANS]
        for body, rollouts in self.worlds.items():
            names += self._of_body(body, rollouts).metric_names()
        return names

    def _of_body(self, body: str, rollouts: RolloutConfig) -> RolloutConfig:
        """The rollouts of a body with their name and cadence."""
        return rollouts.model_copy(update={"name": f"{self.name}_{body}", "every": self.every})

    def measured_models(self) -> tuple[str, ...]:
        """Names of the models that `run` needs."""
        return tuple(dict.fromkeys(rollouts.model for rollouts in self.worlds.values()))

    def trial(self) -> Self:
        """See `RolloutConfig.trial`; of each body."""
        return self.model_copy(update={"worlds": {body: world.trial() for body, world in self.worlds.items()}})

    def create(self, data: Bodies, output_dir: Path | None = None) -> BodyRolloutsEvaluator:
        """See `RolloutConfig.create`; each environment must fit its body.

        Raises:
            ImportError: a package of an environment is not installed.
            ConfigError: a body does not exist, or an environment does not exist or does not fit its body.
        """
        evaluators = {}
        for body, rollouts in self.worlds.items():
            if body not in data.spec.bodies:
                problem = f"evaluator {self.name!r} has worlds.{body}; data.sets has {sorted(data.spec.bodies)}"
                raise ConfigError("data", [problem])
            body_data = SimpleNamespace(spec=data.spec.bodies[body])
            evaluators[body] = self._of_body(body, rollouts).create(body_data, output_dir)
        return BodyRolloutsEvaluator(self, evaluators, output_dir)


class BodyRolloutsEvaluator(WritingEvaluator):
    """See `BodyRolloutsConfig`, the record that creates it."""

    def __init__(
        self, config: BodyRolloutsConfig, evaluators: dict[str, RolloutEvaluator], output_dir: Path | None = None
    ):
        """Args: evaluators: of each body, by its name."""
        super().__init__(config, output_dir)
        self.evaluators = evaluators

    def run(self, models: dict[str, Any], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """Run the episodes of all bodies; see `RolloutEvaluator.run`."""
        result = Measurement({})
        table: list[dict[str, Any]] = []
        for body, evaluator in self.evaluators.items():
            name = evaluator.config.model
            network = pick_models(models, [name], self.config.name)[name]
            measured = evaluator.run({name: network.body(body)}, ranks, progress)
            for mapping in ("metrics", "media", "tables"):
                getattr(result, mapping).update(getattr(measured, mapping))
            result.unwritten.extend(measured.unwritten)
            prefix = f"{evaluator.config.name}/"
            numbers = {key.removeprefix(prefix): value for key, value in measured.metrics.items()}
            table.append({"body": body, **numbers})
        for metric in MEANS:
            values = [row[metric] for row in table]
            result.metrics[f"{self.config.name}/mean_{metric}"] = math.fsum(values) / len(values)
        by_body = f"{self.config.name}/by_body"
        self.report(replace(result, media={}, tables={by_body: table}), progress, ranks)
        result.tables[by_body] = table
        return result
