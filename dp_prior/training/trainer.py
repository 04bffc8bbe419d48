"""PolicyTrainer: the loop. Everything it needs comes in as an object; everything it decides follows from the clock.

Data arrive as whole global batches already cut into this rank's micro-batches, so accumulation and ranks are one idea:
a loss is divided by the valid elements of the global batch, and the parts add up to its mean.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from dp_prior.batch import Batch
from dp_prior.checkpoints.format import Snapshot
from dp_prior.clock import Cadence, Progress
from dp_prior.diffusion.process import Loss
from dp_prior.metrics import Means, by_quartile
from dp_prior.randomness import Randomness, derive_seed
from dp_prior.training.best import Best
from dp_prior.training.config import TrainingConfig
from dp_prior.training.ema import EMA
from dp_prior.training.guard import Guard
from dp_prior.training.optimizer import set_learning_rate, update
from dp_prior.training.signs import Abandoned, Alone, RanksAtWork, Watch
from dp_prior.training.state import read_state, take_snapshot
from dp_prior.training.stop import REQUEST, Stop


class Loader(Protocol):
    """Where batches come from: a pure function of the samples seen."""

    global_batch_size: int

    def __len__(self) -> int: ...

    def from_sample(self, samples_seen: int) -> Iterator[list[Batch]]: ...

    def ids(self, samples_seen: int) -> Tensor: ...


class Measured(Protocol):
    """Numbers by metric name, and files by name for loggers that show them."""

    metrics: dict[str, float]
    media: dict[str, Path]


class Evaluator(Protocol):
    """Measures the models of a run; a collective when there are several ranks."""

    every: Cadence

    def run(self, models: dict[str, nn.Module], accelerator: Accelerator, progress: Progress) -> Measured: ...


class Tracker(Protocol):
    """Where numbers and pictures go."""

    def log(self, metrics: dict[str, float], progress: Progress) -> None: ...

    def log_images(self, images: dict[str, Path], progress: Progress) -> None: ...

    def log_error(self, error: str, progress: Progress) -> None: ...


class Saver(Protocol):
    """Where snapshots go. Returns before they are durable; what then fails is raised by the next call."""

    def submit(self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool) -> None: ...

    def check(self) -> None: ...

    def reserve(self, snapshot: Snapshot) -> None: ...


class NotFiniteError(RuntimeError):
    """Too many steps in a row, from `first_step` on, had a gradient that was not finite."""

    first_step = 1


class _Wrapped(nn.Module):
    """What autocast and DistributedDataParallel take hold of, so that the model inside stays as it was built."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, random: Randomness, self_condition: bool) -> Loss:
        return self.model(batch, random, self_condition)


class PolicyTrainer:
    """Trains a model on batches until its sample budget is spent, and can go on from any snapshot of itself."""

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        config: TrainingConfig,
        *,
        accelerator: Accelerator,
        tracker: Tracker,
        saver: Saver,
        evaluators: list[Evaluator],
        seed: int,
        documents: dict[str, dict],
        stop: Stop | None = None,
        watch: Watch | None = None,
    ):
        """
        Args:
            model: maps (Batch, Randomness) to a Loss; already fitted to its data, on any device.
            documents: JSON documents that travel with every snapshot, by file name (configuration, spec, ...).
            stop: asks for an end from outside; one of its own if None.
            watch: who is told signs of life; nobody if None.
        """
        self.config = config
        self.accelerator = accelerator
        self.loader = loader
        self.tracker = tracker
        self.saver = saver
        self.evaluators = evaluators
        self.seed = seed
        self.documents = documents
        self.device = accelerator.device
        self.progress = Progress()
        self.best = Best(config.monitor)
        self.total_samples = config.total_samples(len(loader), loader.global_batch_size)
        self.total_steps = -(-self.total_samples // loader.global_batch_size)
        self.online = model.to(self.device)
        self.averages = {name: EMA(self.online, decay) for name, decay in config.ema.items()}
        self.optimizer = config.optimizer.create(self.online)
        self.wrapped = accelerator.prepare_model(_Wrapped(self.online))
        self.means = Means()
        self.guard = Guard(self.device)
        self.rollbacks = 0
        self.stop = stop or Stop()
        self.watch = watch or Alone(self.stop)
        self.ranks = RanksAtWork(accelerator, self.watch)
        self.unmeasured: Progress | None = None  # the clock before the last step, if its measuring is still to be done
        self.measured: dict[str, float] = {}  # what was known of the step that was restored
        self._hosts = torch.distributed.new_group(backend="gloo") if accelerator.num_processes > 1 else None
        self._measured_from = (0, time.perf_counter())

    @property
    def models(self) -> dict[str, nn.Module]:
        """The averages and the trained model (`online`), unwrapped, to be measured or saved."""
        return {**{name: average.model for name, average in self.averages.items()}, "online": self.online}

    @property
    def stop_requested(self) -> bool:
        """Set it to end after the step at hand."""
        return self.stop.is_asked()

    @stop_requested.setter
    def stop_requested(self, is_requested: bool) -> None:
        self.stop.reason = REQUEST if is_requested else None

    def fit(self) -> Progress:
        """Train until the sample budget is spent or a stop is requested, from wherever the clock stands."""
        self._measured_from = (self.progress.samples_seen, time.perf_counter())
        batches = self.loader.from_sample(self.progress.samples_seen)
        start, is_stopping = self.progress, self._agree_to_stop()
        if self.unmeasured is not None and not is_stopping:
            is_stopping = self._finish_step(self.unmeasured, self.measured, is_stopping)
        while self.progress.samples_seen < self.total_samples and not is_stopping:
            before = self.progress
            with self.watch.busy() if before == start else contextlib.nullcontext():  # compiles, and finds its kernels
                self.step(next(batches))
            if before == start and self.accelerator.is_main_process:
                self.saver.reserve(take_snapshot(self, {}))
            self.saver.check()
            is_stopping = self._agree_to_stop()
            is_due = self._is_done() or self._due(self.config.log_every, before)
            row = self.training_metrics() if is_due else {}
            is_stopping = self._finish_step(before, row, is_stopping)
            self.watch.mark("data", self.progress.global_step + 1)
        return self.progress

    def _finish_step(self, before: Progress, row: dict[str, float], is_stopping: bool) -> bool:
        """Measure, log and save what is due after a step. A stop puts the measuring off to the next start.

        Args:
            before: the clock before the step.
            row: what is known of it.

        Returns:
            Whether to stop.
        """
        due = [e for e in self.evaluators if self._is_done() or self._due(e.every, before)]
        if due and not is_stopping:
            try:
                row = row | self.evaluate(due)
            except Abandoned:
                is_stopping = self._agree_to_stop()
        self.unmeasured = before if due and is_stopping else None
        if row:
            self.tracker.log(row, self.progress)
        is_best = self.best.improves(row, self.progress.global_step)
        if self._is_done() or is_best or self._due(self.config.save_every, before) or is_stopping:
            self.save(row, is_best)
        return is_stopping

    def step(self, micro_batches: list[Batch]) -> None:
        """One optimizer step over one global batch."""
        now, position = self.progress, self.progress.global_step + 1
        self.watch.mark("forward", position)
        torch.manual_seed(derive_seed(self.seed, "dropout", self.accelerator.process_index, now.samples_seen))
        set_learning_rate(self.optimizer, self.config.lr.at(now.global_step, self.total_steps))
        self.online.train()
        self_condition = self.online.process.self_conditions(self.seed, now.samples_seen)
        losses: list[Loss] = []
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.wrapped):
                random = Randomness.from_counts(self.seed, "training", batch.positions)
                loss = self.wrapped(batch, random, self_condition)
                self.watch.mark("backward", position)
                self.accelerator.backward(loss.total / len(micro_batches))  # means of parts: the step takes theirs
            losses.append(loss)
        self._count(losses)
        self.watch.mark("update", position)
        norm, finite = update(self.optimizer, self.config.max_grad_norm, self.accelerator.scaler)
        self.progress = now.advance(self.loader.global_batch_size)
        for average in self.averages.values():
            average.update(self.online, self.progress.global_step, finite)
        self._show_timesteps(micro_batches, losses, finite)
        share = float(self.accelerator.is_main_process)  # all ranks hold the same norm; it counts once
        self.means.add("train/grad_norm", torch.where(finite, norm, 0.0) * share, finite * share)
        self.guard.count(finite, self.progress.global_step, now.samples_seen)

    def training_metrics(self) -> dict[str, float]:
        """The means since the last call; the only place where the loop waits for the device."""
        metrics = self.means.reduce(self.accelerator)
        samples, moment = self._measured_from
        elapsed = time.perf_counter() - moment
        metrics["train/samples_per_second"] = (self.progress.samples_seen - samples) / elapsed
        self._measured_from = (self.progress.samples_seen, time.perf_counter())
        metrics["train/epoch"] = self.progress.samples_seen / len(self.loader)
        metrics["train/lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["train/skipped_steps"] = self.guard.counts[0].item()
        for name, average in self.averages.items():
            metrics[f"train/{name}_decay"] = average.decay.at(self.progress.global_step)
        return metrics

    def evaluate(self, evaluators: list[Evaluator]) -> dict[str, float]:
        """Measure the models. Training is the same whether or not this is called; its clock of samples/s stands.

        Raises:
            Abandoned: on all ranks, if the run is asked to stop meanwhile.
        """
        start = time.perf_counter()
        metrics: dict[str, float] = {}
        for evaluator in evaluators:
            self.watch.mark(f"evaluation {type(evaluator).__name__}", self.progress.global_step)
            result = evaluator.run(self.models, self.ranks, self.progress)
            self.watch.meet(may_leave=True)
            metrics |= result.metrics
            self.tracker.log_images(result.media, self.progress)
        if self.stop.deadline is not None:
            self.stop.deadline.rests()
        samples, moment = self._measured_from
        self._measured_from = (samples, moment + time.perf_counter() - start)
        return metrics

    def save(self, metrics: dict[str, float], is_best: bool) -> None:
        """Hand a snapshot of everything to the saver, with what was measured at this step; training goes on."""
        self.watch.mark("save", self.progress.global_step)
        self.means.collect(self.accelerator)
        if self.accelerator.is_main_process:
            if self.stop.deadline is not None:
                self.stop.deadline.save_begins()
            with self.watch.busy():  # it waits for a save that still runs
                self.saver.submit(take_snapshot(self, metrics), self.progress, metrics, is_best)
        self.watch.meet()

    def restore(self, snapshot: Snapshot) -> None:
        """Go on exactly where `snapshot` was taken."""
        read_state(self, snapshot)

    def _agree_to_stop(self) -> bool:
        """Whether any rank was asked to stop, so that all leave after the same step; no device is waited for.

        Raises:
            NotFiniteError: on all ranks, once one of them has seen too many skipped steps in a row.
        """
        self.watch.mark("agreement", self.progress.global_step)
        if self.stop.deadline is not None:
            self.stop.deadline.stepped()
        news = torch.tensor([self.stop.encode(self.accelerator.process_index), self._look_at_guard()])
        if self._hosts is not None:
            torch.distributed.all_reduce(news, torch.distributed.ReduceOp.MAX, group=self._hosts)
        asked, last_skipped = news.tolist()
        if last_skipped:
            raise self._too_many(last_skipped)
        return self.stop.accept(asked)

    def _look_at_guard(self) -> int:
        """Report steps that were skipped. Returns the step at which they were too many in a row, else 0."""
        for step, samples_seen, in_a_row in self.guard.look():
            if self.accelerator.scaler is None or in_a_row > 1:  # a loss scaler finds its scale by overflowing once
                self.tracker.log_error(
                    f"step {step} was skipped, the {in_a_row}. in a row: its gradient was not finite; its samples: "
                    f"{self.loader.ids(samples_seen).tolist()}",
                    self.progress,
                )
            if in_a_row >= self.config.nonfinite_limit:
                return step
        return 0

    def _too_many(self, step: int) -> NotFiniteError:
        limit, size = self.config.nonfinite_limit, self.loader.global_batch_size
        behind = self.progress.global_step - step
        ids = self.loader.ids(max(0, self.progress.samples_seen - (behind + limit) * size)).tolist()
        error = NotFiniteError(
            f"the gradient was not finite in {limit} optimizer steps in a row, up to step {step}; none of them changed "
            f"the weights. The first of these batches held samples {ids[:8]}..., and events.jsonl lists them all. Look "
            f"at the data and the learning rate; the last good checkpoint is kept."
        )
        error.first_step = step - limit + 1
        return error

    def roll_back(self, snapshot: Snapshot) -> None:
        """Take the state of `snapshot` but keep the clock, so that the samples seen since are passed over."""
        now, count, skipped = self.progress, self.rollbacks + 1, self.guard.counts
        self.restore(snapshot)
        self.progress, self.rollbacks, self.unmeasured = now, count, None
        self.guard.load(skipped * torch.tensor([1, 0, 1], device=skipped.device))  # a new row begins

    def _is_done(self) -> bool:
        return self.progress.samples_seen >= self.total_samples

    def _due(self, cadence: Cadence, before: Progress) -> bool:
        return cadence.due(before, self.progress, len(self.loader))

    def _count(self, losses: list[Loss]) -> None:
        """Add a step's losses to the means, weighted by valid elements."""
        process = self.online.process
        t, valid = (torch.cat([getattr(loss, name) for loss in losses]) for name in ("t", "valid"))
        terms = {"loss": torch.cat([loss.per_sample.detach() for loss in losses])}
        terms |= {name: torch.cat([loss.terms[name].detach() for loss in losses]) for name in losses[0].terms}
        for name, values in terms.items():
            self.means.add_batch(f"train/{name}", values, valid)
            self.means.add(f"train/{name}_q", *by_quartile(values, t, process.steps, valid))

    def _show_timesteps(self, micro_batches: list[Batch], losses: list[Loss], finite: Tensor) -> None:
        """Show a step's losses to timesteps that learn, in the order of the run whatever ranks and micro-batches."""
        if not self.online.process.learns_timesteps:
            return
        positions = torch.cat([batch.positions for batch in micro_batches])
        names = ("t", "per_sample", "valid")
        t, per_sample, valid = (torch.cat([getattr(loss, name).detach() for loss in losses]) for name in names)
        parts = [self.accelerator.gather(part) for part in (positions, t, per_sample, valid * finite)]
        order = parts[0].argsort()
        self.online.process.observe(*(part[order] for part in parts[1:]))
