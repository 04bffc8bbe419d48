"""The assembly: one record describes a run, and `Experiment` builds its parts and lets them work, top to bottom."""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, get_int_from_env
from pydantic import Field, model_validator
from torch import Tensor

from dp_prior.batch import Batch
from dp_prior.changes import check_changes
from dp_prior.checkpoints.fetch import resolve
from dp_prior.checkpoints.format import MANIFEST, Snapshot, encode_document, read_checkpoint, read_manifest
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.store import CheckpointStore, Saved
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.clock import Progress
from dp_prior.config import Config, ConfigError
from dp_prior.data import DataConfig
from dp_prior.data.loader import Loader
from dp_prior.durable import replace_file
from dp_prior.evaluation import EvaluatorConfig
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.curve import draw_learning_curve
from dp_prior.evaluation.loss import LossConfig
from dp_prior.evaluation.rollout import RolloutConfig
from dp_prior.evaluation.video import write_gif
from dp_prior.randomness import Randomness, derive_seed
from dp_prior.ranks import decide
from dp_prior.stopping import stop_on_signal
from dp_prior.tasks import TaskConfig
from dp_prior.tasks.policy import PolicyConfig
from dp_prior.tasks.published import load_weights
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.huggingface import HuggingFaceSaverConfig
from dp_prior.tracking.jsonl import ROWS
from dp_prior.tracking.local import MODEL_FILES, copy_checkpoint
from dp_prior.tracking.tracker import Tracker
from dp_prior.tracking.uploads import Courier, UploadConfig, UploadSaver
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

    task: TaskConfig = PolicyConfig()
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
                self._check_sampling(f"{part}.{index}", evaluator)
                if part == "evaluate" and getattr(evaluator, "split", None) == "test":
                    raise ValueError(f"evaluate.{index} looks at the test split; move it to `test`")
        names = [name for evaluator in self.evaluate for name in evaluator.metric_names()]
        if self.evaluate and self.train.monitor.metric not in names:
            raise ValueError(
                f"train.monitor.metric is {self.train.monitor.metric!r}, which no evaluator in `evaluate` measures; "
                f"they measure {', '.join(names)}"
            )
        return self

    def _check_sampling(self, where: str, evaluator: EvaluatorConfig) -> None:
        """What an evaluator asks of the sampler and the chunk must be there to give."""
        trained, task = self.task.diffusion.schedule.steps, self.task
        asked = evaluator.eval_timesteps if isinstance(evaluator, ActionErrorConfig) else ()
        if isinstance(evaluator, RolloutConfig):
            asked = (evaluator.sampler.steps,) if evaluator.sampler and evaluator.sampler.steps else ()
            room = task.horizon - task.n_obs_steps + 1
            if (evaluator.n_action_steps or 1) > room:
                raise ValueError(
                    f"{where}.n_action_steps is {evaluator.n_action_steps}, but horizon {task.horizon} and n_obs_steps "
                    f"{task.n_obs_steps} leave room for {room} actions"
                )
        if max(asked, default=0) > trained:
            raise ValueError(
                f"{where} samples in {max(asked)} steps, but the schedule has only {trained} timesteps; take fewer"
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
        self.data = config.data.create(config.task.horizon, config.task.n_obs_steps, config.task.n_action_steps)
        self.data.to(self.accelerator.device)
        self.loader = Loader(
            self.data.train,
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
            found = decide(self.accelerator, lambda: self._recall(tracker, store, resume))
            if found is None and self.config.train.init_from is not None:
                self.report(f"  initialised   {self._initialise(self.config.train.init_from)}")
            trainer = self._trainer(tracker, writer)
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
        tracker_alone = self.config.tracker.model_copy(update={"save": ()})  # what is tried is not for others to see
        config = self.config.model_copy(update={"tracker": tracker_alone})
        with tempfile.TemporaryDirectory(prefix="dp_prior_check_") as directory:
            trial = Experiment(config, report=self.report, directory=Path(directory))
            if config.train.init_from is not None:
                self.report(f"  initialised   {trial._initialise(config.train.init_from)}")
            with trial._services() as (tracker, store, writer):
                trainer = trial._trainer(tracker, writer)
                plan = self._plan(trainer, source)
                batches = next(trial.loader.from_sample(0))
                trainer.step(batches)
                row = trainer.training_metrics()
                chunk = trial._act(batches[0][:2])
                trainer.save(row, is_best=False)
                writer.close()
                saved = decide(trial.accelerator, store.latest)
                if saved is None or not torch.isfinite(chunk).all():
                    raise RuntimeError("after one step the weights or a sample are not finite; look at the data")
                trial._restore(trainer, read_checkpoint(saved))
                if not torch.equal(trial._act(batches[0][:2]), chunk):
                    raise RuntimeError("a policy that was saved and loaded acts differently; the disk may be failing")
        places = decide(self.accelerator, lambda: self.config.tracker.check())
        plan = "\n".join([plan, *(f"  also to       {line}" for line in places)])
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
                "data.json": {"fingerprint": self.data.fingerprint, "episodes": self.data.split_ids},
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
        if reference is None or "://" not in reference:
            return None if reference is None else resolve(reference, prefer="latest")
        return self._adopt(store, reference, resume)

    def _adopt(self, store: CheckpointStore, reference: str, resume: Resume) -> Path | None:
        """Bring the latest and best checkpoint of a remote place into this run, which then goes on as if it were there.

        A place that is there and empty is that of a run which has not saved yet.
        """
        try:
            latest, best = resolve(reference, "latest"), resolve(reference, "best")
        except FileNotFoundError as error:
            if resume == "must":
                raise
            self.report(f"  start from    {error}")
            return None
        for found in (best, latest) if _same_run(best, latest) else (latest,):
            manifest = read_manifest(found)
            if "training.safetensors" not in manifest.files:
                problem = f"{reference} holds only what is needed to act; its saver had save_type 'model'"
                raise ConfigError("tracker.load", [problem, "take its weights with train.init_from instead"])
            target = store.root / f"step_{manifest.step:08d}"
            if not target.exists():
                copy_checkpoint(found, target)
        return store.latest()

    def _initialise(self, reference: str) -> str:
        """Take the weights, the normalizer among them, of another checkpoint; returns a line that says what fitted."""
        directory = decide(self.accelerator, lambda: resolve(reference, whole=False))
        tensors = read_checkpoint(directory, ["model.safetensors"]).tensors["model.safetensors"]
        what, hint = f"train.init_from {reference!r} does not fit", "Is it of another architecture or data set?"
        load_weights(self.model, tensors, what, hint)
        count = sum(tensor.numel() for tensor in tensors.values())
        return f"from {reference}: {len(tensors)} of {len(tensors)} tensors matched, {count / 1e6:.2f} M numbers"

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
            tracker.complete(best, self._pictures(media), metrics)

    def _pictures(self, media: dict[str, Path]) -> dict[str, Path]:
        """What the model card shows: the curve, the first film as a GIF, and its stills."""
        pictures = {"curve.png": media["curve"]} if "curve" in media else {}
        films = [path for path in media.values() if path.suffix == ".mp4"]
        for path in films[:1]:
            try:
                pictures["rollout.gif"] = write_gif(path, path.with_suffix(".gif"), every=2)
            except (ImportError, OSError, ValueError) as error:
                self.report(f"no GIF was made: {error}")
        return pictures

    def _has_result(self) -> bool:
        return decide(self.accelerator, (self.directory / RESULT).exists)

    def _act(self, batch: Batch) -> Tensor:
        """A chunk for each sample of a batch, always with the same noise."""
        self.model.eval()
        return self.model.sample(batch.cond, Randomness.from_counts(self.config.seed, "check", batch.ids))

    def _plan(self, trainer: PolicyTrainer, found: object) -> str:
        """What this run will do, for a person to read."""
        config, loader, report = self.config, self.loader, self.data.report()
        parts = report["parts"]
        weights = sum(parameter.numel() for parameter in self.model.parameters())
        ranks, accumulation = self.accelerator.num_processes, config.train.accumulation
        start = "a fresh start" if found is None else f"{found}, sample {trainer.progress.samples_seen:,}"
        lines = {
            "run": f"{self.directory}  {config.description}",
            "config": config.digest()[:12],
            "data": f"{parts['train']['episodes']} train episodes, {len(loader):,} windows; "
            f"{parts['val']['episodes']} val, {parts['test']['episodes']} test episodes",
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


def push_run(run: Path, repo: str | None, limit_s: float, report: Callable[[str], None]) -> list[str]:
    """Send what waits in the outbox of a run; training may go on meanwhile.

    Args:
        run: the run directory.
        repo: of the Hub, for which the best checkpoint is queued first; private if it has to be created.
        limit_s: seconds after which to stop trying.

    Returns:
        A line for each checkpoint that is still not up.

    Raises:
        FileNotFoundError: there is no such run.
        ConfigError: nothing says where to.
    """
    if not (run / CONFIG).is_file():
        raise FileNotFoundError(f"there is no run at {run}: it has no {CONFIG}")
    config = TrainConfig.from_json_path(run / CONFIG)
    records = [record for record in config.tracker.save if isinstance(record, UploadConfig)]
    if repo is not None:
        named = [record for record in records if getattr(record, "repo", None) == repo]
        records = named or [HuggingFaceSaverConfig.from_json(json.dumps({"type": "huggingface", "repo": repo}))]
        UploadSaver(records[0], run).complete(resolve(run), {}, {})
    if not records:
        raise ConfigError(str(run), ["its configuration has no saver that sends anything; name a place with --repo"])
    missing: list[str] = []
    for record in records:
        courier = Courier(record.model_copy(update={"offline": False}), record.outbox(run))
        lines = courier.drain(limit_s)
        report("\n".join(lines) if lines else f"{record.place}: everything is up")
        missing += lines
    return missing


def export_checkpoint(reference: str, directory: Path, *, whole: bool) -> tuple[Path, str]:
    """Copy a checkpoint to a directory that `load_policy` reads.

    Args:
        whole: also what is needed to continue.

    Returns:
        What was copied, and the SHA-256 of the copy's manifest.

    Raises:
        FileExistsError: something that is not such a copy is in the way.
    """
    source = resolve(reference, whole=whole)
    copy_checkpoint(source, directory, None if whole else MODEL_FILES)
    return source, hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()


def _same_run(one: Path, other: Path) -> bool:
    """Whether two checkpoints can be of one run, rather than of two that share a remote place."""

    def marks(directory: Path) -> list:
        documents = read_checkpoint(directory, ["config.json", "data.json"]).documents
        config = documents["config.json"]
        task = {key: value for key, value in config["task"].items() if key not in ("sampler", "n_action_steps")}
        return [task, config["seed"], documents["data.json"]["fingerprint"]]

    return {"config.json", "data.json"} <= read_manifest(one).files.keys() and marks(one) == marks(other)
