"""The assembly: one record describes a run, and `Experiment` builds its parts and lets them work, top to bottom."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from dp_prior.batch import Batch
from dp_prior.changes import check_changes
from dp_prior.checkpoints.fetch import resolve
from dp_prior.checkpoints.format import Snapshot, read_checkpoint
from dp_prior.checkpoints.store import CheckpointStore, Saved
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.clock import Progress
from dp_prior.config import ConfigError
from dp_prior.durable import replace_file
from dp_prior.evaluation.curve import draw_learning_curve
from dp_prior.evaluation.video import write_gif
from dp_prior.exits import DONE, STOPPED, ExitFile, explain
from dp_prior.randomness import Randomness, derive_seed
from dp_prior.ranks import decide, make_accelerator
from dp_prior.recall import Resume, find_checkpoint, take_weights
from dp_prior.result import MEDIA, has_result_of, read_result, shown_on_card, write_result
from dp_prior.stopping import stop_on_signal
from dp_prior.tracking.identity import IDENTITY, claim_identity
from dp_prior.tracking.jsonl import ROWS
from dp_prior.tracking.tracker import Tracker
from dp_prior.train_config import CONFIG, TrainConfig, run_directory
from dp_prior.training.deadline import Deadline
from dp_prior.training.guard import NotFiniteError
from dp_prior.training.signs import Abandoned, Alone, RanksAtWork
from dp_prior.training.stop import TIME_LIMIT, Stop
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.watch import PATIENCE, Watch

STACKS = "stacks"
LAST_WORDS_S = 3.0  # from the farewell of the tracker to the end of the process


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        status: `finished`; `stopped` before the budget was spent; `complete` when there was nothing left to do.
        progress: the clock at the end.
        best: directory of the best checkpoint, None if there is no checkpoint.
        directory: the run; once finished, `result.json` in it holds what the best weights scored.
        failures: one line for each logger or saver that failed.
        stopped_by: one of `training.stop.REASONS`, None unless stopped.
    """

    status: Literal["finished", "stopped", "complete"]
    progress: Progress
    best: Path | None
    directory: Path
    failures: list[str]
    stopped_by: str | None = None

    @property
    def wants_more_time(self) -> bool:
        """Whether it was stopped for lack of time, rather than because somebody wanted it to end."""
        return self.stopped_by in (TIME_LIMIT, "SIGUSR1")

    def result(self) -> dict | None:
        """Scores of the best weights when the run was last finished, and where pictures are; None if it never was."""
        return read_result(self.directory)


class Experiment:
    """The parts of one run, built from its configuration. `report` receives lines for a person to read."""

    def __init__(self, config: TrainConfig, *, report: Callable[[str], None], directory: Path | None = None):
        self.begun = time.time()
        self.config = config
        self.accelerator = make_accelerator(config.train.precision, config.train.dist_timeout)
        self.stop = Stop()
        self.watch = Alone(self.stop)
        self.ranks = RanksAtWork(self.accelerator, self.watch)
        self.report = report if self.accelerator.is_main_process else lambda line: None
        self.directory = directory or run_directory(config)
        self.exits = ExitFile(self.directory, self.accelerator.process_index, self.accelerator.num_processes)
        self._integrity = config.data.integrity(self.directory)
        decide(self.accelerator, self._integrity.check, PATIENCE * config.train.dist_timeout)
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
        self.media = self.directory / MEDIA
        self.evaluators = [evaluator.create(self.data, self.media) for evaluator in config.evaluate]
        self.tests = [evaluator.create(self.data, self.media) for evaluator in config.test]

    def run(
        self,
        resume: Resume = "auto",
        stop: Stop | None = None,
        end: float | None = None,
        allow_changes: Iterable[str] = (),
    ) -> Outcome:
        """Train from where the run stands to the end of its budget, then measure the best weights once.

        Args:
            stop: asked by the caller's signals and threads; None for one that signals ask while this runs.
            end: when this process will be ended from outside, in seconds since the epoch; None if nobody knows.
            allow_changes: settings that may differ from the checkpoint although that makes it another run.
        """
        self.stop = stop or Stop()
        ends = [end, self.config.train.max_runtime and self.begun + self.config.train.max_runtime]
        self._end = min((one for one in ends if one), default=math.inf)
        if self._end < math.inf:
            farewell_s = min(self.config.tracker.farewell_s, max(0.0, self._end - self.begun) / 10)
            self.stop.deadline = Deadline(self._end - farewell_s)
        signals = stop_on_signal(self.stop) if stop is None else contextlib.nullcontext()
        try:
            with signals, self._watched(), self._services() as (tracker, store, writer):
                outcome = self._run(resume, allow_changes, tracker, store, writer)
        except BaseException as error:
            self.exits.fail(error)
            raise
        if self.accelerator.is_main_process:
            words = f"{outcome.progress.samples_seen:,} samples in {outcome.progress.global_step:,} steps"
            if outcome.status == "stopped":
                self.exits.end("preempted", STOPPED, words, rank=self.stop.rank, stopped_by=outcome.stopped_by)
            else:
                self.exits.end(outcome.status, DONE, words)
        return outcome

    def _run(
        self,
        resume: Resume,
        allow_changes: Iterable[str],
        tracker: Tracker,
        store: CheckpointStore,
        writer: CheckpointWriter,
    ) -> Outcome:
        found = decide(self.ranks, lambda: find_checkpoint(tracker, store, resume, self.report))
        if found is None and self.config.train.init_from is not None:
            self.report(f"  initialised   {take_weights(self.model, self.config.train.init_from, self.ranks)}")
        trainer = self._trainer(tracker, writer)
        self._begin(trainer)
        snapshot = None
        if found is not None:
            with self.watch.busy():
                snapshot = read_checkpoint(found)
                self._restore(trainer, snapshot, allow_changes)
        self._introduce(trainer, tracker, snapshot)
        decide(self.ranks, lambda: self._integrity.note(self.data.files))
        decide(self.ranks, lambda: replace_file(self.directory / CONFIG, self.config.to_json().encode()))
        self.report(self._plan(trainer, found))
        begun = trainer.progress, trainer.unmeasured
        while True:
            try:
                trainer.fit()
                break
            except NotFiniteError as error:
                self._roll_back(trainer, store, writer, error)
        with self.watch.busy():
            writer.close()
        status = "complete" if (trainer.progress, trainer.unmeasured) == begun else "finished"
        if trainer.progress.samples_seen < trainer.total_samples or trainer.unmeasured is not None:
            status = "stopped"
        best = decide(self.ranks, lambda: store.best() or store.latest())
        progress = trainer.progress
        if best is not None and (status == "finished" or (status == "complete" and not self._is_measured(best))):
            try:
                self._test(trainer, tracker, best)
            except Abandoned:  # what is missing is the result, and the next start measures it
                status = "stopped"
        with self.watch.busy():
            failures = tracker.close(
                self._end - time.time() - LAST_WORDS_S,
                lambda: status != "stopped" and self.stop.reason is not None,
            )
        return Outcome(
            status, progress, best, self.directory, failures, self.stop.reason if status == "stopped" else None
        )

    def _begin(self, trainer: PolicyTrainer) -> None:
        """Say in `exit.json` that the run is on its way."""
        news = decide(self.ranks, lambda: self.exits.begin(lambda: trainer.progress))
        self.exits.clock = lambda: trainer.progress
        if news is not None:
            self.report(f"  before        {news}")

    def _roll_back(
        self, trainer: PolicyTrainer, store: CheckpointStore, writer: CheckpointWriter, error: NotFiniteError
    ) -> None:
        """Go on from the weights of the last checkpoint behind the samples seen since; raise if that is not wanted."""
        with self.watch.busy():
            writer.wait()
        good = (stored.path for stored in store.good() if stored.manifest.step < error.first_step)
        found = decide(self.ranks, lambda: next(good, None))
        if found is None or trainer.rollbacks >= self.config.train.rollback:
            raise error
        with self.watch.busy():
            trainer.roll_back(read_checkpoint(found))
        message = (
            f"rolled back to the weights of {found.name}, {trainer.rollbacks} of {self.config.train.rollback} times; "
            f"the samples since are passed over. {error}"
        )
        trainer.tracker.log_error(message, trainer.progress)
        self.report(f"warning: {message}")

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """Several ranks watch each other while inside; one process has nobody to watch."""
        rank, ranks = self.accelerator.process_index, self.accelerator.num_processes
        with contextlib.ExitStack() as leaving:
            self.watch = Alone(self.stop)
            if ranks > 1:
                self.watch = Watch(
                    rank=rank,
                    ranks=ranks,
                    timeout_s=self.config.train.dist_timeout,
                    stop=self.stop,
                    stacks=self.directory / STACKS,
                    explain=lambda error: explain(error, rank),
                    last_words=self.exits.lose,
                )
                leaving.enter_context(self.watch)
            self.ranks = RanksAtWork(self.accelerator, self.watch)
            yield

    def check(self, allow_changes: Iterable[str] = ()) -> str:
        """Do everything once in a temporary place: one step, one sample, one save and load. Returns the plan.

        Args:
            allow_changes: see `run`; a checkpoint on this machine that the run would go on from is compared.
        """
        source = decide(self.accelerator, lambda: self.config.tracker.load.create(self.directory).recall())
        tracker_alone = self.config.tracker.model_copy(update={"save": ()})  # what is tried is not for others to see
        config = self.config.model_copy(update={"tracker": tracker_alone})
        with tempfile.TemporaryDirectory(prefix="dp_prior_check_") as directory:
            trial = Experiment(config, report=self.report, directory=Path(directory))
            if config.train.init_from is not None:
                self.report(f"  initialised   {take_weights(trial.model, config.train.init_from, trial.ranks)}")
            with trial._services() as (tracker, store, writer):
                trainer = trial._trainer(tracker, writer)
                if source is not None and "://" not in source:
                    trainer.progress = self._compare(trainer.documents, source, allow_changes)
                plan = self._plan(trainer, source)
                trainer.progress = Progress()
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
        places = decide(self.accelerator, lambda: self.config.tracker.check())
        plan = "\n".join([plan, *(f"  also to       {line}" for line in places)])
        return f"{plan}\n  checked       one step (loss {row['train/loss']:.4f}), one sample, one save and one load"

    @property
    def is_main(self) -> bool:
        """Whether this rank is the one that writes and speaks."""
        return self.accelerator.is_main_process

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
        decide(self.ranks, lambda: lock.enter_context(store.lock()) and None)
        with lock:
            open_tracker = functools.partial(
                self.config.tracker.create,
                total_samples=self.config.train.total_samples(len(self.loader), self.loader.global_batch_size),
                monitor=monitor.metric,
                directory=self.directory,
            )
            opened: list[Tracker] = []
            decide(self.ranks, lambda: opened.append(open_tracker(is_main=True)))
            tracker = opened[0] if opened else open_tracker(is_main=False)

            def deliver(saved: Saved) -> None:
                if self.stop.deadline is not None:
                    self.stop.deadline.save_ends()
                tracker.save(saved.path, saved.progress, saved.metrics, saved.is_latest, saved.is_best)

            telling = self.watch.telling() if isinstance(self.watch, Watch) else contextlib.nullcontext()
            writer = CheckpointWriter(store, deliver, self.config.checkpoints.max_failed_saves)
            with tracker, contextlib.closing(writer), telling:
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
            stop=self.stop,
            watch=self.watch,
            documents={
                "config.json": json.loads(self.config.model_dump_json()),
                "spec.json": json.loads(self.data.spec.model_dump_json()),
                "data.json": self.data.document(),
            },
        )

    def _restore(self, trainer: PolicyTrainer, snapshot: Snapshot, allow_changes: Iterable[str] = ()) -> None:
        """Go on from a snapshot, unless this is no longer the run it was taken from; say what has changed."""
        self._tell_changes(snapshot.documents, trainer.documents, allow_changes)
        try:
            trainer.restore(snapshot)
        except (RuntimeError, ValueError, KeyError) as error:
            if not allow_changes:
                raise
            problem = f"the tensors of the checkpoint do not fit what was changed: {error}"
            raise ConfigError("--allow-change", [problem]) from None

    def _tell_changes(self, before: dict[str, Any], now: dict[str, Any], allow_changes: Iterable[str]) -> None:
        versions = {"python": platform.python_version(), "torch": torch.__version__}
        batch = self.loader.global_batch_size
        for line in check_changes(before, now, batch, versions=versions, allowed=allow_changes):
            self.report(f"  changed       {line}")

    def _compare(self, documents: dict[str, Any], reference: str, allow_changes: Iterable[str]) -> Progress:
        """Say how the checkpoint that the run would go on from differs. Returns its clock."""
        found = decide(self.ranks, lambda: resolve(reference, prefer="latest"))
        before = read_checkpoint(found, ["config.json", "data.json", "progress.json"]).documents
        now = {**documents, "config.json": json.loads(self.config.model_dump_json())}  # with the savers
        self._tell_changes(before, now, allow_changes)
        return Progress(before["progress.json"]["samples_seen"], before["progress.json"]["global_step"])

    def _introduce(self, trainer: PolicyTrainer, tracker: Tracker, snapshot: Snapshot | None) -> None:
        """Tell loggers which run this is, the same on all ranks and in every checkpoint, and where it goes on."""
        asked, inherited = self.config.tracker, snapshot and snapshot.documents.get(IDENTITY)
        identity = decide(
            self.ranks,
            lambda: claim_identity(self.directory, run_id=asked.run_id, name=asked.run_name, inherited=inherited),
        )
        trainer.documents[IDENTITY] = asdict(identity)
        tracker.begin(identity, trainer.documents[CONFIG], self.config.metrics)
        tracker.rewind(trainer.progress)

    def _test(self, trainer: PolicyTrainer, tracker: Tracker, best: Path) -> None:
        """Measure the best weights once, draw the curve of the run, and write both down."""
        end, metrics, media = trainer.progress, {}, {}
        with self.watch.busy():
            trainer.restore(read_checkpoint(best))
        for evaluator in self.tests:
            self.watch.mark(f"test {type(evaluator).__name__}", end.global_step)
            result = evaluator.run(trainer.models, self.ranks, trainer.progress)
            self.watch.meet(may_leave=True)
            metrics |= result.metrics
            media |= result.media
        tracker.log(metrics, end)
        tracker.log_images(media, end)
        if not self.accelerator.is_main_process:
            return
        with self.watch.busy():
            try:
                media["curve"] = draw_learning_curve(self.directory / ROWS, self.media / "curve.png")
                tracker.log_images({"curve": media["curve"]}, end)
            except (ImportError, ValueError) as error:
                self.report(f"no learning curve was drawn: {error}")
            for film in [path for path in media.values() if path.suffix == ".mp4"][:1]:
                try:
                    write_gif(film, film.with_suffix(".gif"), every=2)
                except (ImportError, OSError, ValueError) as error:
                    self.report(f"no GIF was made: {error}")
            tracker.log_file(write_result(self.directory, best, metrics, media), end)
            tracker.complete(best, *shown_on_card(self.directory, best))

    def _is_measured(self, best: Path) -> bool:
        return decide(self.ranks, lambda: has_result_of(self.directory, best))

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
        warnings = [*report["warnings"], *self.model.warnings()]
        return "\n".join([*shown, *(f"  warning       {warning}" for warning in warnings)])
