"""TrainConfig: the configuration of a whole run, and the checks across its parts."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field

from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.config import Change, Config, child, record_for, records_in
from dp_prior.data import DataConfig
from dp_prior.data.errors import MissingError
from dp_prior.data.split_data import SplitData
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.held_out import HeldOutConfig
from dp_prior.evaluation.loss import LossConfig
from dp_prior.files.entry_points import ask
from dp_prior.run.configurations import find_configuration
from dp_prior.tasks import TaskConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.metric_names import Metric, find_metric
from dp_prior.training.training_config import METRICS, TrainingConfig

HOW_TO_GET_DATA = re.compile(r"\bData: (.+?)(?=\s(?:Command|Hardware|Duration|Score): |$)", re.DOTALL)
"""The part of a description that says how to get the data."""

DEFAULT_TASK = PolicyConfig.model_construct()  # unchecked, so that parts may still join its families
"""The policy task: an action chunk is diffused, given observations (Chi et al. 2023, arXiv:2303.04137)."""


class TrainConfig(Config):
    """One run: task, data, training, evaluation, and tracking of its results."""

    description: str = ""
    """Free text: source, command, hardware, expected score. Saved with the run. What follows `Data:`, up to `Command:`,
    `Hardware:`, `Duration:` or `Score:`, says how to get the data; shown where they are missing."""

    seed: Annotated[int, Change("data")] = Field(default=0, ge=0)
    """Seed of the initial weights, the order of the data, and all noise."""

    task: Annotated[TaskConfig, Change("architecture")] = DEFAULT_TASK
    """The task: the diffused variable, the conditions, and the network."""

    data: Annotated[DataConfig, Change("data")]
    """The data set."""

    train: TrainingConfig
    """Budget, optimizer and cadences."""

    evaluate: Annotated[tuple[EvaluatorConfig, ...], Change("harmless")] = (LossConfig(),)
    """Evaluators that run during training; `train.monitor` selects the best checkpoint by one of their metrics."""

    test: Annotated[tuple[EvaluatorConfig, ...], Change("harmless")] = ()
    """Evaluators that run once, at the end, on the best weights; they never select a checkpoint."""

    checkpoints: Annotated[RetentionConfig, Change("harmless")] = RetentionConfig()
    """Retention: which checkpoints are kept."""

    tracker: Annotated[TrackerConfig, Change("harmless")] = TrackerConfig.model_construct()
    """The run directory, its loggers and its savers."""

    @classmethod
    def from_json_path(cls, path: str | Path, overrides: Iterable[str] = ()) -> Self:
        """Read a file, see `Config.from_json_path`, or a configuration that comes with the package, by its name."""
        return super().from_json_path(find_configuration(path), overrides)

    @classmethod
    def hint(cls, path: Sequence[str | int]) -> str | None:
        """The counterpart of a key that another library's configurations have; see `Record`."""
        return ask("hint", path)

    @classmethod
    def other_file(cls, data: dict[str, Any], source: str) -> str | None:
        """Name the library that a configuration was written for, with the remedy; None for our configurations."""
        return ask("other_file", cls, data, source)

    @classmethod
    def has(cls, path: str) -> bool:
        """Whether there is a setting at a dotted path, whatever the types of the records on the way."""
        annotations: list[Any] = [cls]
        for key in path.split("."):
            below = []
            for annotation in annotations:
                below += [child(record, key) for record in records_in(annotation) or [annotation]]
            annotations = [annotation for annotation in below if annotation is not None]
        return bool(annotations)

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """Fill in omitted types: `task.type` defaults to policy, `data.type` to the usual data of the task,
        `train.optimizer.type` to adamw, and types inside the task to what its record says."""
        task, data_settings = data.get("task", {}), data.get("data")
        kind = task.setdefault("type", DEFAULT_TASK.type) if isinstance(task, dict) else getattr(task, "type", None)
        record = record_for(TaskConfig, {"type": kind})
        if record is not None and isinstance(data_settings, dict):
            data_settings.setdefault("type", record.data_types[0])
        if record is not None and isinstance(task, dict):
            record.complete(task)
        train = data.get("train")
        if isinstance(train, dict) and isinstance(train.get("optimizer"), dict):
            train["optimizer"].setdefault("type", "adamw")

    def open_data(self, n_processes: int = 1) -> SplitData:
        """Open the data that the task learns from.

        Args:
            n_processes: of this machine that do so.

        Raises:
            DataError: the data cannot be trained on.
        """
        with self.explaining_missing_data():
            return self.task.open(self.data.beside(n_processes))

    @contextlib.contextmanager
    def explaining_missing_data(self) -> Iterator[None]:
        """Add how to get the data, if `description` says it, to an error about missing data."""
        try:
            yield
        except MissingError as error:
            instruction = HOW_TO_GET_DATA.search(self.description)
            nearest = ask("misplaced", Path(error.source), "data") or ""
            advice = f"to get the data: {instruction[1].strip().removesuffix('.')}" if instruction else nearest
            raise MissingError(error.source, error.problems, advice) from None

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """Descriptions of all metrics of the run."""
        return (*METRICS, *(metric for evaluator in (*self.evaluate, *self.test) for metric in evaluator.metrics))

    def faults(self) -> Iterator[str]:
        """Settings of different parts that contradict each other; see `Config.faults`."""
        if self.data.provides not in self.task.data_types:
            yield (
                f"data.type is {self.data.type!r}, but task {self.task.type!r} learns from "
                f"{' or '.join(repr(name) for name in self.task.data_types)}"
            )
        yield from self._evaluator_problems()
        yield from self._monitor_problems()

    def _evaluator_problems(self) -> Iterator[str]:
        """Unknown models, duplicate names, use of the test split, and mismatches of evaluator and task."""
        models = [*self.train.ema, "online"]
        able = set()
        for evaluator in self.evaluate:
            rollouts = evaluator.rollouts()
            if rollouts is not None and not rollouts.shuffle:
                able.add(evaluator.name)
        for name in sorted(self.data.followed() - able):
            alternative = f", or name one of {sorted(able)} in success_of" if able else ""
            yield (
                f'data.language weights are "by_success" of {name!r}, but `evaluate` has no rollout of this name '
                f"without shuffle; add one{alternative}"
            )
        produced: list[str] = []
        reported: list[str] = []
        for part, evaluators in (("evaluate", self.evaluate), ("test", self.test)):
            for index, evaluator in enumerate(evaluators):
                where = f"{part}.{index}"
                unknown = sorted(set(evaluator.measured_models()) - set(models))
                if unknown:
                    yield (
                        f"{where} measures {unknown}, but the run has {models}; name one of these there or add "
                        f"the average to train.ema"
                    )
                repeated = sorted(set(evaluator.metric_names()) & set(produced))
                if repeated:
                    yield f"{where} would measure {repeated[0]!r} a second time; give it a name"
                elif evaluator.reports and evaluator.name in reported:
                    yield (
                        f"{where} would write its reports over those of another evaluator named "
                        f"{evaluator.name!r}; give it a name"
                    )
                produced += evaluator.metric_names()
                reported += [evaluator.name] * evaluator.reports
                if part == "evaluate" and isinstance(evaluator, HeldOutConfig) and evaluator.split == "test":
                    yield f"{where} measures on the test split; move it to `test`"
                yield from self._task_problems(where, evaluator)

    def _task_problems(self, where: str, evaluator: EvaluatorConfig) -> Iterator[str]:
        """An evaluator must measure this kind of task, with settings that fit the task."""
        task = self.task
        if evaluator.tasks is not None and task.kind not in evaluator.tasks:
            yield (
                f"{where} is of type {evaluator.type!r}, which measures {' or '.join(evaluator.tasks)} tasks; "
                f"the task is {task.type!r}"
            )
            return
        yield from (f"{where}.{fault}" for fault in evaluator.task_faults(task))

    def _monitor_problems(self) -> Iterator[str]:
        """The monitored metric must be measured, and `mode` must select the better values."""
        monitor = self.train.monitor
        names = [name for evaluator in self.evaluate for name in evaluator.metric_names()]
        if self.evaluate and monitor.metric not in names:
            close = difflib.get_close_matches(monitor.metric, names, n=3)
            none = "they declare none; declare `metrics` in the evaluator's record (docs/extending.md)"
            measured = f"they measure {', '.join(names)}" if names else none
            hint = f"did you mean {' or '.join(close)}?" if close else measured
            yield f"train.monitor.metric is {monitor.metric!r}, which no evaluator in `evaluate` measures; {hint}"
        metric = find_metric(monitor.metric, self.metrics)
        mode = metric and {"lower": "min", "higher": "max"}.get(metric.better)
        if self.evaluate and mode is not None and monitor.mode != mode:
            yield (
                f"train.monitor.mode is {monitor.mode!r}, which would select the worst checkpoint by "
                f"{monitor.metric!r}; set it to {mode!r}"
            )
