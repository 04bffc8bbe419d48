"""The assembly: one record describes a run, and `Experiment` builds its parts and lets them work, top to bottom."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, get_int_from_env
from pydantic import Field, model_validator
from torch import Tensor

from dp_prior.batch import Batch
from dp_prior.changes import check_changes
from dp_prior.checkpoints.fetch import resolve
from dp_prior.checkpoints.format import Snapshot, encode_document, read_checkpoint
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.store import CheckpointStore, Saved
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.clock import Progress
from dp_prior.config import Config, ConfigError
from dp_prior.data import DataConfig
from dp_prior.durable import replace_file
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.curve import draw_learning_curve
from dp_prior.evaluation.loss import LossConfig
from dp_prior.randomness import Randomness, derive_seed
from dp_prior.ranks import decide
from dp_prior.stopping import stop_on_signal
from dp_prior.tasks import DEFAULT_TASK, TASKS, TaskConfig
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.jsonl import ROWS
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.config import TrainingConfig
from dp_prior.training.trainer import PolicyTrainer

Resume = Literal["auto", "never", "must"]
CONFIG = "config.json"
RESULT = "result.json"


class TrainConfig(Config):
    """One run: what is learned, from which data, for how long, how it is measured, and where results go."""

    description: str = ""
    """What this configuration is: source, command, hardware, expected score. Saved with the run."""

    seed: int = Field(default=0, ge=0)
    """Seed of the initial weights, the order of the data, and all noise."""

    task: TaskConfig = DEFAULT_TASK
    """What is diffused, given what, and by which network."""

    data: DataConfig
    """Where the samples come from."""

    train: TrainingConfig
    """Budget, optimizer and cadences."""

    evaluate: tuple[EvaluatorConfig, ...] = (LossConfig(),)
    """What is measured during training; the best checkpoint is selected by one of these."""

    test: tuple[EvaluatorConfig, ...] = ()
    """What is measured once, at the end, with the best weights; never selects anything."""

    checkpoints: RetentionConfig = RetentionConfig()
    """Which checkpoints are kept."""

    tracker: TrackerConfig = TrackerConfig()
    """The run directory, and where numbers, pictures and checkpoints go."""

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """A task without `type` is a policy, as files never had to say, and data without it are those of the task."""
        task, given = data.get("task", {}), data.get("data")
        if isinstance(task, dict):
            kind = task.setdefault("type", DEFAULT_TASK.type)
            if isinstance(given, dict) and isinstance(kind, str) and kind in TASKS:
                given.setdefault("type", TASKS[kind].data_types[0])

    @model_validator(mode="after")
    def _parts_fit(self) -> TrainConfig:
        if self.data.type not in self.task.data_types:
            raise ValueError(
                f"data.type is {self.data.type!r}, but task {self.task.type!r} learns from "
                f"{' or '.join(repr(name) for name in self.task.data_types)}"
            )
        return self

    @model_validator(mode="after")
    def _names_fit(self) -> TrainConfig:
        models = [*self.train.ema, "online"]
        produced: list[str] = []
        for part, evaluators in (("evaluate", self.evaluate), ("test", self.test)):
            for index, evaluator in enumerate(evaluators):
                unknown = sorted(set(evaluator.measured_models()) - set(models))
                if unknown:
                    raise ValueError(
                        f"{part}.{index} measures {unknown}, but the run has {models}; name one of these there or add "
                        f"the average to train.ema"
                    )
                repeated = sorted(set(evaluator.metric_names()) & set(produced))
                if repeated:
                    raise ValueError(f"{part}.{index} would measure {repeated[0]!r} a second time; give it a name")
                produced += evaluator.metric_names()
                self._check_evaluator(f"{part}.{index}", evaluator)
                if part == "evaluate" and getattr(evaluator, "split", None) == "test":
                    raise ValueError(f"evaluate.{index} looks at the test split; move it to `test`")
        names = [name for evaluator in self.evaluate for name in evaluator.metric_names()]
        if self.evaluate and self.train.monitor.metric not in names:
            raise ValueError(
                f"train.monitor.metric is {self.train.monitor.metric!r}, which no evaluator in `evaluate` measures; "
                f"they measure {', '.join(names)}"
            )
        return self

    def _check_evaluator(self, where: str, evaluator: EvaluatorConfig) -> None:
        """An evaluator must measure this task, and what it asks of the sampler must be there to give."""
        trained, task = self.task.diffusion.schedule.steps, self.task
        if evaluator.tasks is not None and task.type not in evaluator.tasks:
            raise ValueError(
                f"{where} is of type {evaluator.type!r}, which measures {' or '.join(evaluator.tasks)} tasks; "
                f"the task is {task.type!r}"
            )
        try:
            evaluator.check(task)
        except ValueError as error:
            raise ValueError(f"{where}.{error}") from None
        asked = max(evaluator.sampling_steps(), default=0)
        if asked > trained:
            raise ValueError(
                f"{where} samples in {asked} steps, but the schedule has only {trained} timesteps; take fewer"
            )


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: `finished`; `stopped` before the budget was spent; `complete` when there was nothing left to do.
        progress: the clock at the end.
        best: directory of the best checkpoint, None if there is no checkpoint.
        directory: the run; once finished, `result.json` in it holds what the best weights scored.
        failures: one line for each logger or saver that failed.
    """

    status: Literal["finished", "stopped", "complete"]
    progress: Progress
    best: Path | None
    directory: Path
    failures: list[str]

    def result(self) -> dict | None:
        """Scores of the best weights and where pictures of them are; None as long as the run is not finished."""
        path = self.directory / RESULT
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


class Experiment:
    """The parts of one run, built from its configuration. `report` receives lines for a person to read."""

    def __init__(self, config: TrainConfig, *, report: Callable[[str], None], directory: Path | None = None):
        self.config = config
        self.accelerator = make_accelerator(config.train.precision)
        self.report = report if self.accelerator.is_main_process else lambda line: None
        self.directory = directory or Path(config.tracker.data_path).expanduser()
        self.data = config.task.open(config.data)
        self.data.to(self.accelerator.device)
        self.loader = self.data.loader(
            batch_size=config.data.batch_size,
            accumulation=config.train.accumulation,
            seed=config.seed,
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            device=self.accelerator.device,
        )
        torch.manual_seed(derive_seed(config.seed, "weights"))
        self.model = config.task.create(self.data.spec)
        self.model.fit(self.data.statistics(), self.data.train)
        self.media = self.directory / "media"
        self.evaluators = [evaluator.create(self.data, self.media) for evaluator in config.evaluate]
        self.tests = [evaluator.create(self.data, self.media) for evaluator in config.test]

    def run(self, resume: Resume = "auto") -> Outcome:
        """Train from where the run stands to the end of its budget, then measure the best weights once."""
        with self._services() as (tracker, store, writer):
            trainer = self._trainer(tracker, writer)
            found = decide(self.accelerator, lambda: self._recall(tracker, store, resume))
            if found is not None:
                self._restore(trainer, read_checkpoint(found))
            tracker.rewind(trainer.progress)
            decide(self.accelerator, lambda: replace_file(self.directory / CONFIG, self.config.to_json().encode()))
            self.report(self._plan(trainer, found))
            begun = trainer.progress
            with stop_on_signal(trainer):
                trainer.fit()
            writer.close()
            if trainer.progress.samples_seen < trainer.total_samples:
                status = "stopped"
            else:
                status = "complete" if trainer.progress == begun else "finished"
            best = decide(self.accelerator, lambda: store.best() or store.latest())
            progress = trainer.progress
            if best is not None and (status == "finished" or (status == "complete" and not self._has_result())):
                self._test(trainer, tracker, best)
            failures = tracker.close()
        return Outcome(status, progress, best, self.directory, failures)

    def check(self) -> str:
        """Do everything once in a temporary place: one step, one sample, one save and load. Returns the plan."""
        source = decide(self.accelerator, lambda: self.config.tracker.load.create(self.directory).recall())
        with tempfile.TemporaryDirectory(prefix="dp_prior_check_") as directory:
            trial = Experiment(self.config, report=self.report, directory=Path(directory))
            with trial._services() as (tracker, store, writer):
                trainer = trial._trainer(tracker, writer)
                plan = self._plan(trainer, source)
                batches = next(trial.loader.from_sample(0))
                trainer.step(batches)
                row = trainer.training_metrics()
                drawn = trial._sample(batches[0][:2])
                trainer.save(row, is_best=False)
                writer.close()
                saved = decide(trial.accelerator, store.latest)
                if saved is None or not torch.isfinite(drawn).all():
                    raise RuntimeError("after one step the weights or a sample are not finite; look at the data")
                trial._restore(trainer, read_checkpoint(saved))
                if not torch.equal(trial._sample(batches[0][:2]), drawn):
                    raise RuntimeError("a model that was saved and loaded samples otherwise; the disk may be failing")
        return f"{plan}\n  checked       one step (loss {row['train/loss']:.4f}), one sample, one save and one load"

    def end(self) -> None:
        """Let the other ranks go; without it a rank can abort while the interpreter closes."""
        self.accelerator.end_training()

    @contextlib.contextmanager
    def _services(self) -> Iterator[tuple[Tracker, CheckpointStore, CheckpointWriter]]:
        """Tracker, store and writer; the run directory is locked while they are open."""
        monitor = self.config.train.monitor
        store = CheckpointStore(
            self.directory / "checkpoints",
            self.config.checkpoints,
            monitor=monitor.metric,
            mode=monitor.mode,
            world_size=self.accelerator.num_processes,
        )
        lock = contextlib.ExitStack()
        decide(self.accelerator, lambda: lock.enter_context(store.lock()) and None)
        with lock:
            tracker = self.config.tracker.create(
                is_main=self.accelerator.is_main_process,
                total_samples=self.config.train.total_samples(len(self.loader), self.loader.global_batch_size),
                monitor=monitor.metric,
                directory=self.directory,
            )

            def deliver(saved: Saved) -> None:
                tracker.save(saved.path, saved.progress, saved.metrics, saved.is_latest, saved.is_best)

            with tracker, contextlib.closing(CheckpointWriter(store, deliver)) as writer:
                yield tracker, store, writer

    def _trainer(self, tracker: Tracker, writer: CheckpointWriter) -> PolicyTrainer:
        return PolicyTrainer(
            self.model,
            self.loader,
            self.config.train,
            accelerator=self.accelerator,
            tracker=tracker,
            saver=writer,
            evaluators=self.evaluators,
            seed=self.config.seed,
            documents={
                "config.json": json.loads(self.config.model_dump_json()),
                "spec.json": json.loads(self.data.spec.model_dump_json()),
                "data.json": self.data.document(),
            },
        )

    def _recall(self, tracker: Tracker, store: CheckpointStore, resume: Resume) -> Path | None:
        """The checkpoint to go on from; on the main rank only, since damage is set aside on the way."""
        own = store.latest()
        if resume == "never":
            if own is not None:
                raise ConfigError(
                    "--resume never",
                    [f"{self.directory} already holds checkpoints, up to {own.name}; nothing is overwritten. "
                     f"Choose another directory (--set tracker.data_path=...) or go on with --resume auto"],
                )
            return None
        if own is not None:
            return own
        reference = tracker.recall()
        if reference is None and resume == "must":
            problem = f"there is no checkpoint in {self.directory}; start with --resume auto"
            raise ConfigError("--resume must", [problem])
        return None if reference is None else resolve(reference, prefer="latest")

    def _restore(self, trainer: PolicyTrainer, snapshot: Snapshot) -> None:
        """Go on from a snapshot, unless this is no longer the run it was taken from; say what has changed."""
        for line in check_changes(snapshot.documents, trainer.documents, self.loader.global_batch_size):
            self.report(f"  changed       {line}")
        trainer.restore(snapshot)

    def _test(self, trainer: PolicyTrainer, tracker: Tracker, best: Path) -> None:
        """Measure the best weights once, draw the curve of the run, and write both down."""
        end, metrics, media = trainer.progress, {}, {}
        snapshot = read_checkpoint(best)
        trainer.restore(snapshot)
        for evaluator in self.tests:
            result = evaluator.run(trainer.models, self.accelerator, trainer.progress)
            metrics |= result.metrics
            media |= result.media
        tracker.log(metrics, end)
        tracker.log_images(media, end)
        if self.accelerator.is_main_process:
            try:
                media["curve"] = draw_learning_curve(self.directory / ROWS, self.media / "curve.png")
            except (ImportError, ValueError) as error:
                self.report(f"no learning curve was drawn: {error}")
            selected = snapshot.documents["progress.json"]
            result = {
                "best": {"checkpoint": str(best), "step": selected["global_step"], "metrics": selected["metrics"]},
                "test": metrics,
                "media": {name: str(path) for name, path in media.items()},
            }
            replace_file(self.directory / RESULT, encode_document(result))

    def _has_result(self) -> bool:
        return decide(self.accelerator, (self.directory / RESULT).exists)

    def _sample(self, batch: Batch) -> Tensor:
        """An x for each sample of a batch, always with the same noise."""
        self.model.eval()
        return self.model.sample(batch.cond, Randomness.from_counts(self.config.seed, "check", batch.ids))

    def _plan(self, trainer: PolicyTrainer, found: object) -> str:
        """What this run will do, for a person to read."""
        config, loader, report = self.config, self.loader, self.data.report()
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        ranks, accumulation = self.accelerator.num_processes, config.train.accumulation
        start = "a fresh start" if found is None else f"{found}, sample {trainer.progress.samples_seen:,}"
        lines = {
            "run": f"{self.directory}  {config.description}",
            "config": config.digest()[:12],
            "data": self.data.summary(),
            "model": f"{config.task.backbone.type}, {weights / 1e6:.2f} M parameters, {config.train.precision} on "
            f"{ranks} x {self.accelerator.device.type}",
            "batch": f"{loader.global_batch_size} = {config.data.batch_size} a micro-batch x {accumulation} summed "
            f"x {ranks} rank{'s' if ranks > 1 else ''}",
            "budget": f"{trainer.total_samples:,} samples = {trainer.total_steps:,} steps = "
            f"{trainer.total_samples / len(loader):.1f} epochs",
            "evaluate": "; ".join(f"{evaluator.name} every {evaluator.every}" for evaluator in config.evaluate),
            "test": "; ".join(evaluator.name for evaluator in config.test) + " on the best weights, once",
            "save": f"every {config.train.save_every}, at the end, and at a new best of {config.train.monitor.metric}",
            "also to": ", ".join(saver.type for saver in config.tracker.save),
            "start from": start,
        }
        shown = [f"  {name:<13} {text}" for name, text in lines.items() if text and not text.startswith(" on")]
        return "\n".join([*shown, *(f"  warning       {warning}" for warning in report["warnings"])])


def make_accelerator(precision: Literal["fp32", "bf16", "fp16"]) -> Accelerator:
    """The accelerator of this process, with settings that keep ranks exact: no rank overwrites another's buffers.

    Raises:
        ConfigError: fp16 without a GPU, or ranks that do not know of each other.
    """
    if precision == "fp16" and not torch.cuda.is_available():
        raise ConfigError("train.precision", ["is 'fp16', which needs a GPU; use 'bf16' or 'fp32' here"])
    mixed = "no" if precision == "fp32" else precision
    handlers = [DistributedDataParallelKwargs(broadcast_buffers=False)]
    accelerator = Accelerator(mixed_precision=mixed, kwargs_handlers=handlers)
    launched = get_int_from_env(["WORLD_SIZE"], 1)
    if launched != accelerator.num_processes:
        raise ConfigError(
            "the launcher",
            [
                f"WORLD_SIZE is {launched}, but this process knows of {accelerator.num_processes}, so each would train "
                f"alone in the same directory. Without GPUs, set ACCELERATE_USE_CPU=true; "
                f"for one process, unset WORLD_SIZE"
            ],
        )
    return accelerator


def evaluate_checkpoint(reference: str, overrides: tuple[str, ...] = ()) -> list[tuple[str, float, float | None]]:
    """Run the evaluators of a checkpoint's own configuration on it again.

    Args:
        reference: path of a checkpoint or a run.
        overrides: changes to the configuration, for example other data or more episodes.

    Returns:
        (metric, value now, value stored in the checkpoint or None) for all evaluators, those of `test` last.
    """
    directory = resolve(reference)
    snapshot = read_checkpoint(directory)
    source = str(directory / "config.json")
    config = TrainConfig.from_json(json.dumps(snapshot.documents["config.json"]), overrides, source=source)
    with tempfile.TemporaryDirectory(prefix="dp_prior_evaluate_") as place:
        experiment = Experiment(config, report=lambda line: None, directory=Path(place))
        trainer = experiment._trainer(Tracker(Path(place), loggers=[], savers=[], loader=None, max_failures=1), None)
        experiment._restore(trainer, snapshot)
        metrics: dict[str, float] = {}
        for evaluator in [*experiment.evaluators, *experiment.tests]:
            metrics |= evaluator.run(trainer.models, experiment.accelerator, trainer.progress).metrics
    stored = snapshot.documents["progress.json"]["metrics"]
    return [(name, value, stored.get(name)) for name, value in metrics.items()]
