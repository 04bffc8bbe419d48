"""`--check`: tries everything that a run does once, in a temporary directory, and returns the plan."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.documents import CONFIG, DATA, PROGRESS
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.diffusion.table import NoiseTable
from dp_prior.files.printable import duration
from dp_prior.job.ranks import Ranks
from dp_prior.places.reference import resolve
from dp_prior.places.saver import PROBLEM
from dp_prior.run.assembly import Assembly, Services, check_files, with_local_data
from dp_prior.run.config import TrainConfig
from dp_prior.run.directory import RunDirectory
from dp_prior.run.memory import check_room, memory_row
from dp_prior.run.plan import plan
from dp_prior.run.start import Resume, initialise, recalled
from dp_prior.run.written_names import check_names
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.guard import NotFiniteError
from dp_prior.training.measure import measure
from dp_prior.training.trainer import PolicyTrainer

LONG_S = 600.0  # a run of which a crash may lose this much is told how to save
TIMED_STEPS = 4
FEW = 4
"""Most steps of a sampler: as many as run all of its code, estimates of several orders included."""


class Checked(NamedTuple):
    """Attributes: plan: the lines to print. has_problems: whether a place or an account will not work."""

    plan: str
    has_problems: bool


def check(
    config: TrainConfig,
    ranks: Ranks,
    report: Callable[[str], None],
    allow_changes: Iterable[str] = (),
    resume: Resume = "auto",
) -> Checked:
    """One step, one sample, one save and one load, and every evaluator on a few samples.

    Args:
        allow_changes: see `Run.run`; compared with the checkpoint on this machine that the run would resume from.
        resume: see `Run.run`.

    Raises:
        CheckpointError: the run directory cannot be written.
        ConfigError: a saved model differs from itself.
        NotFiniteError: the result of a step is not finite.
    """
    directory = config.tracker.directory
    ranks.decide(RunDirectory(directory).inspect)
    ranks.decide(RunDirectory(directory).try_writing)
    config = with_local_data(config, ranks)
    source = ranks.decide(lambda: recalled(config.tracker.load, directory, resume))
    if source is None:
        check_names(config)
    check_files(config.data.integrity(directory), config, ranks)
    trial = config.model_copy(
        update={
            "tracker": config.tracker.model_copy(update={"save": ()}),  # nothing is uploaded
            "evaluate": tuple(evaluator.trial() for evaluator in config.evaluate),
            "test": tuple(evaluator.trial() for evaluator in config.test),
        }
    )
    with tempfile.TemporaryDirectory(prefix="dp_prior_check_") as place:
        parts = Assembly(trial, ranks, report=report, directory=Path(place))
        if source is None:
            initialise(parts.model, config, ranks, parts.report)
        if isinstance(parts.model, DiffusionModel):
            parts.model.sampler = _shortened(parts.model.sampler, parts.model.process.table)
        check_room(config.train, parts)
        with parts.services() as services:
            trainer = parts.trainer(services.tracker, services.writer)
            if source is not None and "://" not in source:
                resolved = config.model_copy(update={"task": parts.config.task})
                now = {**trainer.documents, CONFIG: resolved.to_document()}  # with its savers
                trainer.progress = _compare(parts, now, source, allow_changes)
            parts.choose_compilation(trainer)
            lines = [plan(config, parts, trainer, source)]
            if ranks.num_processes == 1 and not config.train.shard:  # the plan of several ranks says it
                lines.append(f"  memory        {memory_row(parts.model, trainer)}")
            start, trainer.progress = trainer.progress, Progress()
            batches = parts.loader.from_sample(0)
            first = next(batches)
            trainer.step(first)
            row = trainer.training_metrics()
            _save_and_reload(parts, trainer, services, row, first[0][:2])
            evaluators = [*parts.evaluators, *parts.tests]
            measured = measure(evaluators, trainer.models, ranks, trainer.progress, "check").whole().metrics
            lines += time_of_training(config, trainer, start, timed_steps(trainer, batches))
    places = ranks.decide(config.tracker.check)
    lines += [f"  also to       {line}" for line in places if not line.startswith(PROBLEM)]
    lines.append(f"  checked       one step (loss {row['train/loss']:.4f}), one sample, one save and one load")
    if measured:
        lines.append(f"                {len(measured)} metrics, each measured on a few samples or steps")
    problems = [f"  problem       {line.removeprefix(PROBLEM)}" for line in places if line.startswith(PROBLEM)]
    return Checked("\n".join(lines + problems), bool(problems))


def _save_and_reload(
    parts: Assembly, trainer: PolicyTrainer, services: Services, row: dict[str, float], batch: Batch
) -> None:
    """Save, load, and compare samples drawn before and after.

    Args:
        row: metrics of the step before.
        batch: what the samples are drawn for.

    Raises:
        ConfigError: a saved model differs from itself.
        NotFiniteError: a weight or a sample is not finite.
    """
    drawn = _sample(parts, trainer, batch)
    trainer.save(row, is_best=False)
    services.writer.close()
    saved = parts.ranks.decide(services.store.latest)
    if saved is None or not torch.isfinite(drawn).all():
        problem = f"after one step (loss {row['train/loss']:.4g}) the weights or a sample are not finite"
        raise NotFiniteError(f"{problem}; lower train.lr.peak, or check the data")
    parts.restore(trainer, read_checkpoint(saved))
    if not torch.equal(_sample(parts, trainer, batch), drawn):
        problem = "the saved and reloaded model gives another sample from the same noise"
        remedy = "a part of your own must draw nothing at random when acting, and keep numbers in its state_dict"
        raise ConfigError("task", [f"{problem}; {remedy}"])


def _shortened(sampler: SamplerConfig, table: NoiseTable) -> SamplerConfig:
    """The sampler with `FEW` evenly spread steps; a sampler of no more steps is returned unchanged."""
    if len(sampler.timesteps(table)) <= FEW:
        return sampler
    return sampler.model_copy(update={"steps": FEW, "spacing": "trailing"})


def _sample(parts: Assembly, trainer: PolicyTrainer, batch: Batch) -> Tensor:
    """An x for each sample of a batch, from noise that depends on the sample alone."""
    model = trainer.models["online"].eval()
    return model.sample(batch.cond, Randomness.from_counts(parts.config.seed, "check", batch.ids))


def _compare(parts: Assembly, now: dict[str, Any], reference: str, allow_changes: Iterable[str]) -> Progress:
    """Report how the checkpoint that the run would resume from differs. Returns its clock."""
    checkpoint = parts.ranks.decide(lambda: resolve(reference, prefer="latest"))
    before = read_checkpoint(checkpoint, [CONFIG, DATA, PROGRESS]).documents
    parts.report_changes(before, now, allow_changes)
    return Progress(before[PROGRESS]["samples_seen"], before[PROGRESS]["global_step"])


def timed_steps(trainer: PolicyTrainer, batches: Iterator[list[Batch]]) -> float:
    """Seconds of the shortest of some steps; all ranks call it. Not for the first step, which compiles."""
    times = []
    for _ in range(TIMED_STEPS):
        begun = time.perf_counter()
        trainer.step(next(batches))
        trainer.training_metrics()  # waits for the device
        times.append(time.perf_counter() - begun)
    return min(times)


def time_of_training(config: TrainConfig, trainer: PolicyTrainer, start: Progress, step_s: float) -> list[str]:
    """Lines about how long a run takes from `start` on, at `step_s` seconds a step, and what a crash would lose.

    Args:
        config: of the run; `trainer` may have another one, in a trial.
    """
    length, batch = len(trainer.loader), trainer.loader.global_batch_size
    total = config.train.total_samples(length, batch, start)
    steps = -(-max(0, total - start.samples_seen) // batch)
    seconds = steps * step_s
    words = f"about {duration(seconds)} of training for {steps * batch / length:,.1f} epochs, {step_s:.2g} s a step"
    lines = [f"  time          {words}" + "; evaluations come on top" * bool(config.evaluate or config.test)]
    last = Progress(total - 1, start.global_step + steps - 1)
    saves = [config.train.save_every, *(evaluator.every for evaluator in config.evaluate)]
    if seconds >= LONG_S and not any(cadence.due(start, last, length, (0.0, seconds)) for cadence in saves):
        lines.append(
            f"  warning       nothing is saved or evaluated before the end, so a crash may lose {duration(seconds)}: "
            f'train.save_every is {config.train.save_every}; set it, for example, to {{"minutes": 10}}'
        )
    return lines
