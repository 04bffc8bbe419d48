"""The assembly: builds the parts of a run from its configuration; `run` uses them."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dp_prior.checkpoints.documents import CONFIG, DATA, FINGERPRINT, SPEC
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import CheckpointStore, Saved
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.config import ORIGINS, ConfigError, changed_code
from dp_prior.data.errors import DataError
from dp_prior.data.integrity import Integrity, JointIntegrity
from dp_prior.data.recorded.records import pinned_commits
from dp_prior.files.entry_points import ask
from dp_prior.files.regular_files import read_object
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import PATIENCE
from dp_prior.run.config import TrainConfig
from dp_prior.run.directory import RunDirectory
from dp_prior.run.exit_file import ExitFile, explain
from dp_prior.run.scores import MEDIA
from dp_prior.tensors.compilation import COMPILED
from dp_prior.tensors.randomness import derive_seed
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.measure import evaluators_of
from dp_prior.training.trainer import PolicyTrainer
from dp_prior.training.trainer_state import CODE_QUESTION, library_versions

STACKS = "stacks"


@dataclass(frozen=True)
class Services:
    """The services that a run uses while it holds the lock of its directory."""

    tracker: Tracker
    store: CheckpointStore
    writer: CheckpointWriter


def with_local_data(config: TrainConfig, ranks: Ranks) -> TrainConfig:
    """Download recorded data, from the Hub at the commit with which the run began; returns the local configuration.

    Raises:
        DataError, UnreadableError: the data cannot be downloaded.
        StoppedEarly: a stop was requested during the download.
    """
    data, settings = config.data, config.data.model_dump(mode="json")
    stored = pinned_commits(read_object(config.tracker.directory / CONFIG).get("data"), settings)

    def download() -> dict[str, str]:
        return pinned_commits(data.downloaded(stored).model_dump(mode="json"), settings)

    pinned = ranks.decide_unless_stopped(lambda: ranks.stop.leaving(download))
    return config.model_copy(update={"data": ranks.unless_stopped(lambda: data.downloaded(pinned))})


def check_files(integrity: Integrity | JointIntegrity, config: TrainConfig, ranks: Ranks) -> None:
    """Compare the files of the data with their manifest on the main rank; see `Integrity.check`.

    Raises:
        StoppedEarly: a stop was requested during the comparison.
    """
    patience_s = PATIENCE * config.train.dist_timeout
    ranks.decide_unless_stopped(lambda: ranks.stop.leaving(integrity.check), patience_s)


class Assembly:
    """The parts of one run.

    Attributes:
        report: prints a line on the main rank, does nothing on the others.
        directory, place: the run directory, as a path and as a `RunDirectory`.
        exits: its `exit.json`.
        evaluators, tests: run during training, and once at the end.
    """

    def __init__(
        self,
        config: TrainConfig,
        ranks: Ranks,
        *,
        report: Callable[[str], None] | None,
        directory: Path | None = None,
        weights: Iterable[Tensor] | None = None,
    ):
        """
        Args:
            report: prints a line; None for a run that prints nothing.
            directory: replaces the run directory of the configuration.
            weights: of the checkpoint that holds `config`; they bound the size of the model, see `build_bounded`.
        """
        self.directory = directory or config.tracker.directory
        config = with_local_data(config, ranks)
        if weights is None:  # a checkpoint has the task resolved already
            config = config.model_copy(update={"task": ranks.unless_stopped(config.task.resolve)})
        self.config, self.ranks = config, ranks
        self.is_silent = report is None
        self.report = report if report is not None and ranks.is_main_process else lambda line: None
        self.place = RunDirectory(self.directory)
        self.exits = ExitFile(self.directory, ranks.process_index, ranks.num_processes)
        self.integrity = config.data.integrity(self.directory)
        check_files(self.integrity, config, ranks)
        self.data = ranks.unless_stopped(partial(config.open_data, ranks.num_local_processes))
        torch.manual_seed(derive_seed(config.seed, "weights"))
        self.model = _built(partial(config.task.create, self.data.spec), weights)
        self.data.build_caches(self.report, ranks.check_before_training)
        spec = self.data.spec
        self.model.spec = self.model.spec.model_copy(update={"scenes": spec.scenes, "bodies": spec.bodies})
        self.data.to(ranks.device)
        step_size = {} if config.data.step_size is None else {"global_batch_size": config.data.step_size}
        self.loader = self.data.loader(
            **step_size,
            batch_size=config.data.batch_size,
            accumulation=config.train.accumulation,
            seed=config.seed,
            rank=ranks.process_index,
            world_size=ranks.num_processes,
            device=ranks.device,
        )
        if faults := list(config.train.graph_faults(self.loader.accumulation)):
            raise ConfigError("train", faults)
        self.model.fit(self.data.statistics(), self.data.train)
        self.media = self.directory / MEDIA
        self.evaluators = evaluators_of(config.evaluate, self.data, self.media, ranks)
        self.tests = evaluators_of(config.test, self.data, self.media, ranks)

    @contextlib.contextmanager
    def services(self) -> Iterator[Services]:
        """Tracker, store and writer; the run directory is locked while they are open."""
        config, monitor = self.config, self.config.train.monitor
        store = CheckpointStore(
            self.directory / "checkpoints",
            config.checkpoints,
            monitor=monitor.metric,
            mode=monitor.mode,
            world_size=self.ranks.num_processes,
        )
        with self.ranks.on_main(store.lock) or contextlib.nullcontext():
            with contextlib.suppress(OSError):
                self.place.open()
            total = config.train.total_samples(len(self.loader), self.loader.global_batch_size)
            tracker = self.ranks.on_main(
                lambda: config.tracker.create(
                    total_samples=total, monitor=monitor.metric, directory=self.directory, console=not self.is_silent
                )
            ) or Tracker(self.directory, config.tracker)

            def deliver(saved: Saved) -> None:
                self.ranks.stop.deadline.saved(saved.took_s)
                tracker.save(saved)

            writer = CheckpointWriter(store, deliver, before=tracker.sync)
            with tracker, writer, self.ranks.telling():
                yield Services(tracker, store, writer)

    def trainer(self, tracker: Tracker, writer: CheckpointWriter | None) -> PolicyTrainer:
        """A trainer of these parts, at sample 0."""
        return PolicyTrainer(
            self.model,
            self.loader,
            self.config.train,
            ranks=self.ranks,
            tracker=tracker,
            writer=writer,
            evaluators=self.evaluators,
            seed=self.config.seed,
            documents={
                CONFIG: self.config.to_document(),
                SPEC: self.data.spec.model_dump(mode="json"),
                DATA: self.data.document(),
            },
        )

    def choose_compilation(self, trainer: PolicyTrainer) -> None:
        """Where `train.compile` is "auto", compile the trainer's steps if that pays. A collective."""
        if self.config.train.compile != "auto":
            return
        trainer.compilation = f"off, which is faster on {self.ranks.device.type}"
        if self.ranks.device.type in COMPILED:
            from dp_prior.run.compile_choice import choose

            with self.ranks.busy():
                trainer.compilation = choose(trainer)

    def restore(self, trainer: PolicyTrainer, snapshot: Snapshot, allow_changes: Iterable[str] = ()) -> None:
        """Resume from a snapshot and report what has changed since.

        Raises:
            OtherRunError: the snapshot is of another run, or of other code of another package.
        """
        from dp_prior.run.changes import OtherRunError

        self.report_changes(snapshot.documents, trainer.documents, allow_changes)
        try:
            trainer.restore(snapshot)
        except (RuntimeError, ValueError, KeyError) as error:
            question = changed_code(snapshot.documents[CONFIG].get(ORIGINS))
            if not allow_changes and not question:
                raise
            advice = f".{question} Then take that code, or train in another directory" if question else ""
            misfit = str(error).replace(f" {CODE_QUESTION}", "").rstrip(".")  # what may have changed is known here
            sizes = ask("differing_sizes", snapshot.documents[SPEC], trainer.documents[SPEC]) or ""
            problem = f"the tensors of the checkpoint do not fit these settings: {sizes}{misfit}{advice}"
            raise OtherRunError("the checkpoint is of another run", [problem]) from None

    def report_changes(self, before: dict[str, Any], now: dict[str, Any], allow_changes: Iterable[str]) -> None:
        """Report how a checkpoint's documents differ from this run's; see `check_changes`. A collective."""
        from dp_prior.run.changes import check_changes

        batch, versions = self.loader.global_batch_size, library_versions()
        lines = self.ranks.decide(lambda: check_changes(before, now, batch, versions=versions, allowed=allow_changes))
        for line in lines:
            self.report(f"  changed       {line}")

    def check_same_data(self) -> None:
        """Check that all ranks read the same data, each on its own machine. A collective.

        Raises:
            DataError: on all ranks, for different data.
        """
        digest = hashlib.sha256(self.data.fingerprint.encode()).digest()[:6]  # as a float64 holds it
        prints = self.ranks.exchange(int.from_bytes(digest, "big"))[:, 0].tolist()
        self.ranks.decide(lambda: _check_equal(prints))

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """Inside, several ranks exchange heartbeats; see `Ranks.watched`."""
        return self.ranks.watched(
            self.config.train.dist_timeout,
            self.directory / STACKS,
            explain=lambda error: explain(error, self.ranks.process_index),
            last_words=self.exits.lose,
        )


def _built(create: Callable[[], Any], weights: Iterable[Tensor] | None) -> Any:
    """Create a model. Stored weights, where given, bound its size; see `build_bounded`.

    Raises:
        ConfigError: this machine has not enough memory for its weights.
    """
    if weights is None:
        try:
            return create()
        except RuntimeError as error:
            size = re.search(r"tried to allocate (\d+) bytes", str(error))  # torch has no class for it on a CPU
            if size is None:
                raise
            problem = f"a tensor of the network has {int(size[1]):,} bytes, for which this machine has no memory"
            raise ConfigError("task", [f"{problem}; make the network smaller"]) from error
    from dp_prior.tasks.bounded import build_bounded

    return build_bounded(create, weights)


def _check_equal(prints: list[float]) -> None:
    """Raises DataError if the ranks have data of different fingerprints."""
    problems = [
        f"the content that rank {rank} reads differs from that of rank 0; expected the same on every machine"
        for rank, fingerprint in enumerate(prints)
        if fingerprint != prints[0]
    ]
    if problems:
        advice = f"copy the files of one machine to the others, or accept this with --allow-change {FINGERPRINT}"
        raise DataError("data", problems, advice)
