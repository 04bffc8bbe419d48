"""The run: restores the newest checkpoint, trains to the end of the budget, and measures the best weights once."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dp_prior.checkpoints.documents import CONFIG, FINGERPRINT
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.config.errors import short
from dp_prior.files.durable import replace_file
from dp_prior.files.regular_files import read_object
from dp_prior.job.accelerator import launch_marks, launched_ranks, make_accelerator
from dp_prior.job.deadline import Deadline
from dp_prior.job.ranks import Ranks
from dp_prior.job.signals import stop_requests
from dp_prior.job.stop import Abandoned, Stop
from dp_prior.run.assembly import Assembly, Services
from dp_prior.run.config import TrainConfig
from dp_prior.run.descriptions import truly_described
from dp_prior.run.directory import RunDirectory
from dp_prior.run.ending import deliver, is_measured, measure_best, pass_on_latest
from dp_prior.run.exit_file import DONE, EXIT, STOPPED, UNDELIVERED, recorded
from dp_prior.run.outcome import Outcome
from dp_prior.run.plan import plan
from dp_prior.run.rollback import fit
from dp_prior.run.start import Resume, check_start, find_checkpoint, initialise
from dp_prior.tracking.console import show
from dp_prior.tracking.identity import IDENTITY, claim_identity
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.divergence import DivergedError
from dp_prior.training.trainer import PolicyTrainer

LAST_WORDS_S = 3.0  # between the tracker's last message and the end of the process


def train(
    config: TrainConfig | Mapping[str, Any] | str | Path,
    *,
    resume: Resume = "auto",
    report: Callable[[str], None] | None = show,
) -> Outcome:
    """Train what a configuration describes, from the newest checkpoint of its run directory to the end of its budget.

    An interrupt (Ctrl-C, or one of a notebook's kernel) ends training after its step: the run is saved, the outcome is
    `stopped`, and the same call resumes the run. A second interrupt raises KeyboardInterrupt.

    Args:
        config: a record, its fields by name as in JSON, or the path of a JSON file.
        resume: "never" refuses to resume, "must" refuses to start without a checkpoint.
        report: receives the lines of the plan and of warnings; None for a run that prints nothing.

    Raises:
        ConfigError: the configuration cannot be used; one line per fault.
        DataError, CheckpointError, RuntimeError: the run failed; `exit.json` holds the reason.
    """
    if isinstance(config, str | Path):
        config = TrainConfig.from_json_path(config)
    elif isinstance(config, Mapping):
        config = TrainConfig(**config)
    elif not isinstance(config, TrainConfig):
        problem = f"is {short(config)}; expected a TrainConfig, a dict of its fields, or the path of a JSON file"
        raise ConfigError("config", [problem])
    run = Run(config, report=report)
    outcome = run.run(resume)
    run.parts.ranks.end()
    return outcome


class Run:
    """One run of a configuration.

    Attributes:
        parts: the objects built from the configuration.
    """

    def __init__(self, config: TrainConfig, *, report: Callable[[str], None] | None, stop: Stop | None = None):
        """
        Args:
            report: prints a line; None for a run that prints nothing.
            stop: set by the caller, see `stop_requests`; None to watch signals and the launcher during the run.
        """
        self._start_time = time.time()
        config = truly_described(config)
        self._watches_requests = stop is None
        place = RunDirectory(config.tracker.directory)
        with recorded(place.path) as exits, place.explaining():
            place.inspect()
            exits.ranks = launched_ranks()
            ranks = Ranks(make_accelerator(config.train.precision, config.train.dist_timeout, stop), stop)
            exits.rank, exits.ranks = ranks.process_index, ranks.num_processes
            self.parts = Assembly(config, ranks, report=report)

    def run(self, resume: Resume = "auto", end: float | None = None, allow_changes: Iterable[str] = ()) -> Outcome:
        """Train from the newest checkpoint to the end of the budget, then measure the best weights once.

        Args:
            end: when this process will be killed, for example by SLURM, in seconds since the epoch; None if unknown.
            allow_changes: settings that may differ from the checkpoint although their class is refused.
        """
        parts, stop = self.parts, self.parts.ranks.stop
        end = min(end or math.inf, self._start_time + (parts.config.train.max_runtime or math.inf))
        farewell_s = min(parts.config.tracker.farewell_s, max(0.0, end - self._start_time) / 10)
        stop.deadline = Deadline(end - farewell_s)
        requests = stop_requests(stop, launch_marks()) if self._watches_requests else contextlib.nullcontext()
        # Before the directory is created: a refused start leaves none.
        parts.ranks.decide(lambda: check_start(parts.config, parts.directory, resume))
        try:
            with parts.place.explaining(), requests, parts.watched(), parts.services() as services:
                checkpoint = self._find_checkpoint(services, resume, allow_changes)
                has_new_savers = parts.ranks.decide(self._finds_new_savers)
                trainer = self._start(services, checkpoint, allow_changes)
                parts.choose_compilation(trainer)
                parts.report(plan(parts.config, parts, trainer, checkpoint))
                start = trainer.progress, trainer.unmeasured
                fit(trainer, parts, services)
                is_complete = (trainer.progress, trainer.unmeasured) == start  # nothing was left to train
                outcome = self._finish(services, trainer, is_complete, has_new_savers, end - LAST_WORDS_S)
        except BaseException as error:
            if (place := parts.place.current()) is not None:
                parts.exits.path = place / EXIT
                parts.exits.fail(error)
            raise
        finally:
            parts.place.close()
        if parts.ranks.is_main_process:
            self._record(outcome, services.tracker)
        return outcome

    def _find_checkpoint(self, services: Services, resume: Resume, allow_changes: Iterable[str]) -> Path | None:
        """The checkpoint to resume from; for a fresh start None, and the model has its first weights."""
        parts, ranks, store, load = self.parts, self.parts.ranks, services.store, self.parts.config.tracker.load
        checkpoint = ranks.decide_unless_stopped(lambda: find_checkpoint(load, store, resume, parts.report, ranks.stop))
        if not {"data", FINGERPRINT}.intersection(allow_changes):
            parts.check_same_data()
        if checkpoint is None:
            initialise(parts.model, parts.config, ranks, parts.report)
        return checkpoint

    def _finds_new_savers(self) -> bool:
        """Whether the configuration has a saver that the previous start, whose configuration is stored, lacked."""
        before = read_object(self.parts.directory / CONFIG).get("tracker", {}).get("save", [])
        return any(saver not in before for saver in self.parts.config.to_document()["tracker"]["save"])

    def _start(self, services: Services, checkpoint: Path | None, allow_changes: Iterable[str]) -> PolicyTrainer:
        """The trainer where training begins; the run directory then holds this configuration and the run's identity."""
        parts, ranks = self.parts, self.parts.ranks
        trainer = parts.trainer(services.tracker, services.writer)
        parts.exits.clock = lambda: trainer.progress
        inherited = None
        if checkpoint is not None:
            with ranks.busy():
                snapshot = read_checkpoint(checkpoint)
                parts.restore(trainer, snapshot, allow_changes)
                inherited = snapshot.documents.get(IDENTITY)
        previous_ending = ranks.decide(parts.exits.begin)
        if previous_ending is not None:
            parts.report(f"  before        {previous_ending}")
        self._identify(trainer, inherited)
        ranks.decide(lambda: parts.integrity.note(parts.data.files))
        ranks.decide(lambda: replace_file(parts.directory / CONFIG, parts.config.to_json().encode()))
        return trainer

    def _identify(self, trainer: PolicyTrainer, inherited: dict[str, Any] | None) -> None:
        """Give loggers and checkpoints the run's identity, the same on all ranks and at every start.

        Args:
            inherited: the identity in the checkpoint.
        """
        parts, config = self.parts, self.parts.config.tracker
        identity = parts.ranks.decide(
            lambda: claim_identity(parts.directory, run_id=config.run_id, name=config.run_name, inherited=inherited)
        )
        trainer.documents[IDENTITY] = asdict(identity)
        settings = {**trainer.documents[CONFIG], "accelerate": parts.ranks.facts}
        trainer.tracker.begin(identity, settings, parts.config.metrics)
        trainer.tracker.rewind(trainer.progress)

    def _finish(
        self, services: Services, trainer: PolicyTrainer, is_complete: bool, has_new_savers: bool, end: float
    ) -> Outcome:
        """Measure the best weights, deliver them, and close the services.

        Args:
            is_complete: whether this call had nothing to train.
            end: time limit of the tracker, in seconds since the epoch.
        """
        parts, ranks, store, stop = self.parts, self.parts.ranks, services.store, self.parts.ranks.stop
        is_stopped = not trainer.is_done or trainer.unmeasured is not None
        selected = ranks.decide(store.best)
        best = selected or ranks.decide(store.latest)
        # Read before the test, which restores the best weights into the trainer.
        progress, diverged_at, has_diverged = trainer.progress, trainer.divergence.since, trainer.divergence.lasts
        ending = "failed" if has_diverged else "finished"
        parts.exits.clock = lambda: progress
        if best is not None and not is_stopped:
            try:
                if not is_complete or not is_measured(parts, best):
                    measure_best(parts, trainer, best)
                    deliver(parts, services.tracker, best, ending)
                elif parts.exits.was_cut_short or has_new_savers:
                    # the previous process may have ended before it delivered
                    pass_on_latest(parts, services)
                    deliver(parts, services.tracker, best, ending)
            except Abandoned:  # only the result is missing; the next start measures it
                is_stopped = True
        with ranks.busy():
            failures = services.tracker.close(end - time.time(), lambda: not is_stopped and stop.reason is not None)
        if has_diverged and not is_stopped:
            raise _diverged(diverged_at, best)
        status = "complete" if is_complete else "finished"
        if is_stopped:
            status = "stopped"
        stopped_by = ranks.decide(lambda: stop.reason)
        return Outcome(status, progress, best, parts.directory, failures, stopped_by, diverged_at, selected is not None)

    def _record(self, outcome: Outcome, tracker: Tracker) -> None:
        """Write how the run ended to `exit.json`."""
        summary = f"{outcome.progress.samples_seen:,} samples in {outcome.progress.global_step:,} steps"
        if outcome.diverged_at is not None:
            summary += f"; the training loss diverged at step {outcome.diverged_at:,}"
        if outcome.status == "stopped":
            rank = self.parts.ranks.stop.rank
            self.parts.exits.end("preempted", STOPPED, summary, rank=rank, stopped_by=outcome.stopped_by)
        else:
            undelivered = {UNDELIVERED: True} if tracker.has_failed_savers else {}
            self.parts.exits.end(outcome.status, DONE, summary, **undelivered)


def _diverged(step: int | None, best: Path | None) -> DivergedError:
    """The error of a run whose loss diverged at `step` and was not back on its level at the end."""
    remark = "" if best is None else f" The weights of {best} are kept, see result.json for their scores."
    return DivergedError(
        f"the training loss diverged at step {step or 0:,} and has not come back since.{remark} Lower train.lr.peak, "
        f"or check the data, and train in another directory; train.divergence=null accepts such a loss"
    )
