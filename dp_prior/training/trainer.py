"""PolicyTrainer: the training loop. `fit` and `step` are the reading path; all decisions are functions of the clock.

The loader yields this rank's micro-batches of one global batch. Each loss is divided by the number of valid elements of
the global batch, so that the parts add up to its mean, whether accumulation or ranks split the batch.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.checkpoints.documents import PROGRESS
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.config import made
from dp_prior.data.samples.loader import Loader
from dp_prior.diffusion.process import Loss
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import Abandoned, StoppedEarly
from dp_prior.tensors.batch import Batch
from dp_prior.tensors.compilation import Compile, compiled
from dp_prior.tensors.metrics import Means, by_quartile
from dp_prior.tensors.randomness import Randomness, derive_seed, seed_torch
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.tracker import Tracker
from dp_prior.training.best import Best
from dp_prior.training.divergence import DivergedError, Divergence, LossSum
from dp_prior.training.ema import EMA
from dp_prior.training.guard import Guard, NotFiniteError
from dp_prior.training.measure import Evaluator, measure
from dp_prior.training.optimizer import AdamW, learning_rate, set_learning_rate, update
from dp_prior.training.replicas import Replicas
from dp_prior.training.throughput import Stopwatch, Throughput
from dp_prior.training.trainer_state import (
    CollectedMeans,
    LossScale,
    Moments,
    Stateful,
    library_versions,
    load_snapshot,
    snapshot_of,
)
from dp_prior.training.training_config import TrainingConfig

log = logging.getLogger(__name__)


class _LossModule(nn.Module):
    """Maps a batch to its loss. DistributedDataParallel and autocast wrap this module, never the model itself.

    Compiled, it is one region: normalising, encoding, noise, network and loss.
    """

    def __init__(self, model: nn.Module, compile_mode: Compile):
        super().__init__()
        self.model = model
        self._is_diffused = hasattr(model, "process")
        self.loss_of = compiled(model.forward, compile_mode, "train.compile", dynamic=False)

    def forward(self, batch: Batch, random: Randomness, self_condition: bool) -> Loss:
        if not self._is_diffused:
            from dp_prior.training.samplewise import samplewise_loss

            return samplewise_loss(self.loss_of(batch), batch)
        return self.loss_of(batch, random, self_condition)


class PolicyTrainer:
    """Trains a model until its budget is spent; can continue from any snapshot of itself.

    Attributes:
        local: what this rank holds of the trained model, `online`; see `Replicas`.
        compilation: whether `train.compile` "auto" compiles and why; empty without a choice.
        parts: what a snapshot holds besides weights, clock and counters, by the name in a checkpoint; a part that is
            added here is saved and resumed.
    """

    def __init__(
        self,
        model: nn.Module,
        loader: Loader,
        config: TrainingConfig,
        *,
        ranks: Ranks | None = None,
        tracker: Tracker | None = None,
        writer: CheckpointWriter | None = None,
        evaluators: Sequence[Evaluator] = (),
        seed: int = 0,
        documents: dict[str, dict] | None = None,
    ):
        """
        Args:
            model: on any device. Either a diffusion model, already fitted to its data, which has a `process` and maps
                (Batch, Randomness, bool) to a Loss; or any module that maps a Batch to the losses (B,) of its samples.
            ranks: None for the ranks of the launcher, or this process alone without a launcher.
            tracker: None for one that logs nothing.
            writer: None for a trainer that never saves.
            documents: JSON documents saved with every snapshot, by file name (configuration, spec, ...).
        """
        ranks = ranks or Ranks(make_accelerator(config.precision, config.dist_timeout))
        self.config = config
        self.ranks = ranks
        self.accelerator = ranks.accelerator
        self.stop = ranks.stop
        # Only a single process may leave its step at once: other ranks may be in a collective.
        self._stops_at_once = (StoppedEarly,) if ranks.num_processes == 1 else ()
        self.loader = loader
        self.tracker = tracker or Tracker(Path(), TrackerConfig())
        self.ranks.work.show = lambda done: self.tracker.log_work(done)
        self.writer = writer
        self.evaluators = list(evaluators)
        self.seed = seed
        self.documents = documents or {}
        self.device = ranks.device
        self.progress = Progress()
        self.best = Best(config.monitor)
        self.online = model.to(self.device)
        self.loss_module = _LossModule(self.online, config.compile)
        self.replicas = _replicas(config, ranks)
        self.distributed_loss, self.local = self.replicas.distributed(self.loss_module, self.online)
        self.averages = {name: EMA(self.local, decay) for name, decay in config.ema.items()}
        self.optimizer = made(config.optimizer, "create", config.optimizer.create(self.local), AdamW)
        self.replicas.divide(self.optimizer)
        self.compilation = ""
        self.means = Means()
        self.guard = Guard(self.device)
        self.divergence = Divergence()
        cadences = [config.log_every, config.save_every, *(evaluator.every for evaluator in self.evaluators)]
        self.stopwatch = Stopwatch(is_stored=any(cadence.minutes is not None for cadence in cadences))
        self.throughput = Throughput(warns=ranks.is_main_process)
        self.rollbacks = 0
        self.unmeasured: Progress | None = None  # the clock before a step whose evaluation is pending
        self.measured: dict[str, float] = {}  # metrics of the restored step
        self.parts: dict[str, Stateful] = {
            "best": self.best,
            "divergence": self.divergence,
            "seconds": self.stopwatch,
            "scaler": LossScale(self.accelerator.scaler),
            "optimizer": Moments(self.optimizer, self.local),
            "means": CollectedMeans(self.means, ranks),
            "skipped": self.guard,
        }
        if isinstance(loader, Loader) and loader.state() is not None:
            self.parts["successes"] = loader

    @property
    def total_samples(self) -> int:
        """The budget in samples."""
        return self.config.total_samples(len(self.loader), self.loader.global_batch_size, self.progress)

    @property
    def total_steps(self) -> int:
        """The budget in optimizer steps: those taken and those left."""
        spent, total_steps = self._spent()
        return self.progress.global_step + total_steps - spent

    @property
    def is_done(self) -> bool:
        """Whether the budget is spent."""
        return self.progress.samples_seen >= self.total_samples

    @property
    def models(self) -> dict[str, nn.Module]:
        """The averages and the trained model (`online`), unwrapped and whole. A collective."""
        return {name: self.replicas.whole(local) for name, local in self._local_models.items()}

    @property
    def _local_models(self) -> dict[str, nn.Module]:
        return {**{name: average.model for name, average in self.averages.items()}, "online": self.local}

    @property
    def process(self) -> Any:
        """The diffusion process of the trained model, or a stand-in for models without diffusion."""
        if not hasattr(self.online, "process"):
            from dp_prior.training.samplewise import UNDIFFUSED

            return UNDIFFUSED
        return self.online.process

    def fit(self) -> Progress:
        """Train from the current clock until the budget is spent or a stop is requested."""
        self.throughput.begin(self.progress.samples_seen)
        self.stopwatch.start()
        batches = self.throughput.timed(self.loader.from_sample(self.progress.samples_seen))
        start, is_stopping = self.progress, self._agree_to_stop()
        if self.unmeasured is not None and not is_stopping:
            is_stopping = self._finish_step(self.unmeasured, self.measured, is_stopping)
        while not self.is_done and not is_stopping:
            is_first = self.progress == start
            with self.ranks.busy() if is_first else contextlib.nullcontext():  # it compiles and selects kernels
                try:
                    is_stopping = self._advance(next(batches), is_first)
                except self._stops_at_once:  # while a batch was on its way
                    is_stopping = self._finish_step(self.progress, {}, is_stopping=True)
            self.ranks.mark("data", self.progress.global_step + 1)
        return self.progress

    def _advance(self, micro_batches: list[Batch], is_first: bool) -> bool:
        """Take one step, then evaluate, log and save as due. Returns whether to stop."""
        before = self.progress
        self.step(micro_batches)
        if self.writer is not None:
            if is_first:
                snapshot = self.snapshot({})
                if self.ranks.is_main_process:
                    self.writer.reserve(snapshot)
            self.writer.check()
        is_stopping = self._agree_to_stop()
        is_due = self.is_done or self._due(self.config.log_every, before)
        return self._finish_step(before, self.training_metrics() if is_due else {}, is_stopping)

    def _finish_step(self, before: Progress, row: dict[str, float], is_stopping: bool) -> bool:
        """Evaluate, log and save what is due after a step.

        A stop request, or with one process an evaluator that fails, postpones the evaluation to the next start.

        Args:
            before: the clock before the step.
            row: metrics of the step so far.

        Returns:
            Whether to stop.
        """
        due = [e for e in self.evaluators if self.is_done or self._due(e.every, before)]
        if due and not is_stopping:
            try:
                row = row | self.evaluate(due)
            except (Abandoned, *self._stops_at_once):
                is_stopping = self._agree_to_stop()
            except Exception:
                if self.ranks.num_processes == 1:  # several ranks may be in different collectives
                    self.unmeasured = before
                    self.save(row, is_best=False)
                raise
        self.unmeasured = before if due and is_stopping else None
        if row:
            self.tracker.log(row, self.progress)
        is_best = self.best.improves(row, self.progress.global_step)
        if self.is_done or is_best or self._due(self.config.save_every, before) or is_stopping:
            self.save(row, is_best)
        if self.unmeasured is None:
            self.stopwatch.check()
        return is_stopping

    def step(self, micro_batches: list[Batch]) -> None:
        """One optimizer step over one global batch."""
        now, step_number = self.progress, self.progress.global_step + 1
        self.ranks.mark("forward", step_number)
        # Our layers draw from rows; this makes layers that draw from torch's generator reproducible when a run resumes.
        seed_torch(derive_seed(self.seed, "torch", self.ranks.process_index, now.samples_seen), self.device)
        spent, total_steps = self._spent()
        set_learning_rate(self.optimizer, self.config.lr.at(now.global_step, total_steps, spent))
        self.online.train()
        self_condition = self.process.self_conditions(self.seed, now.samples_seen)
        losses: list[Loss] = []
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.distributed_loss):
                random = Randomness.from_counts(self.seed, "training", batch.positions)
                loss = self.distributed_loss(batch, random, self_condition)
                self.ranks.mark("backward", step_number)
                self.accelerator.backward(loss.total / len(micro_batches))  # a mean; the step takes the mean of these
            losses.append(loss)
        self._record_losses(losses)
        self.ranks.mark("update", step_number)
        self.replicas.take_gradients()
        max_norm, scaler = self.config.max_grad_norm, self.accelerator.scaler
        norm, finite = update(self.optimizer, max_norm, scaler, self.replicas.total_norm)
        self.progress = now.advance(self.loader.global_batch_size)
        for average in self.averages.values():
            average.update(self.progress.global_step, finite)
        self._teach_timestep_sampler(micro_batches, losses, finite)
        share = float(self.ranks.is_main_process)  # equal on all ranks; counted once
        self.means.add("train/grad_norm", torch.where(finite, norm, 0.0) * share, finite * share)
        self.guard.count(finite, self.progress.global_step, now.samples_seen)

    def training_metrics(self) -> dict[str, float]:
        """The means since the last call. The only place where the loop waits for the device."""
        metrics = self.means.reduce(self.accelerator)
        metrics |= self.throughput.row(self.progress.samples_seen)
        metrics["train/epoch"] = self.progress.samples_seen / len(self.loader)
        metrics["train/lr"] = learning_rate(self.optimizer)
        if self.accelerator.scaler is not None:
            metrics["train/loss_scale"] = self.accelerator.scaler.get_scale()
        metrics["train/skipped_steps"] = self.guard.counts[0].item()
        for name, average in self.averages.items():
            metrics[f"train/{name}_decay"] = average.decay.at(self.progress.global_step)
        return metrics

    def evaluate(self, evaluators: list[Evaluator]) -> dict[str, float]:
        """Measure the models. Does not affect training, unless the data let the results decide what is drawn next;
        excluded from samples/s.

        Raises:
            Abandoned: on all ranks, if the run is asked to stop meanwhile.
        """
        with self.throughput.paused():
            findings = measure(evaluators, self.models, self.ranks, self.progress, "evaluation")
            self.tracker.log_images(findings.media, self.progress)
            for error in findings.unwritten:
                words = f"a file of the evaluation is missing: {error}; its numbers are not, and training continues"
                self.tracker.log_error(words, self.progress)
            if isinstance(self.loader, Loader):
                self.loader.follow(findings.tables)
            self.stop.deadline.rests()
        return findings.metrics | {"train/evaluation_seconds": self.throughput.paused_s}

    def save(self, metrics: dict[str, float], is_best: bool) -> None:
        """Hand a snapshot with the metrics of this step to the writer and continue; does nothing without a writer."""
        if self.writer is None:
            return
        self.ranks.mark("save", self.progress.global_step)
        self.means.collect(self.accelerator)
        while self.divergence.settle():  # a checkpoint holds the verdict on all of its steps
            self._report_divergence(LossSum(*self.ranks.exchange(*self.divergence.read()).sum(0).tolist()))
        if self.unmeasured is None:
            self.stopwatch.check()
        snapshot = self.snapshot(metrics)
        if self.ranks.is_main_process:
            with self.ranks.busy():  # waits for a save in progress
                self.writer.submit(snapshot, self.progress, metrics, is_best)
        self.ranks.meet()

    def snapshot(self, metrics: dict[str, float]) -> Snapshot:
        """A snapshot with the metrics of this step, complete on the main rank. A collective; see `snapshot_of`."""
        progress = {
            **vars(self.progress),
            "seed": self.seed,
            "metrics": metrics,
            "unmeasured": None if self.unmeasured is None else vars(self.unmeasured),
            "rollbacks": self.rollbacks,
            "global_batch_size": self.loader.global_batch_size,
            "world_size": self.ranks.num_processes,
            "versions": library_versions(),
        }
        models = {name: self.replicas.whole(local, is_saved=True) for name, local in self._local_models.items()}
        return snapshot_of(models, self.parts, progress, self.documents)

    def restore(self, snapshot: Snapshot) -> None:
        """Continue exactly where `snapshot` was taken.

        Raises:
            ValueError: tensors are missing, unknown or of another shape.
        """
        load_snapshot(snapshot, self._local_models, self.replicas, self.parts)
        progress = snapshot.documents[PROGRESS]
        self.progress = Progress(progress["samples_seen"], progress["global_step"])
        unmeasured, metrics = progress.get("unmeasured"), progress["metrics"]
        self.unmeasured = None if unmeasured is None else Progress(**unmeasured)
        self.measured = {name: math.nan if value is None else value for name, value in metrics.items()}
        self.rollbacks = progress.get("rollbacks", 0)

    def _agree_to_stop(self) -> bool:
        """Whether any rank was asked to stop, so that all end after the same step.

        Raises:
            NotFiniteError: on all ranks, once too many steps in a row were skipped on one of them.
            DivergedError: on all ranks, once the loss has diverged, unless `train.divergence` only warns.
        """
        self.ranks.mark("agreement", self.progress.global_step)
        self.stop.deadline.stepped()
        this_rank = self.stop.encode(self.ranks.process_index), *self._report_skipped(), self.stopwatch.read()
        all_ranks = self.ranks.exchange(*this_rank, *self.divergence.read())
        asked, skipped, row_start = all_ranks[:, :3].amax(0).long().tolist()
        self.stopwatch.agree(all_ranks[0, 3].item())
        if skipped:
            raise self._too_many_skipped(skipped, row_start)
        self._report_divergence(LossSum(*all_ranks[:, 4:].sum(0).tolist()))
        return self.stop.accept(asked)

    def _report_divergence(self, total: LossSum) -> None:
        """Warn once, or raise, when the loss diverges."""
        problem = self.divergence.follow(total)
        if problem is None:
            return
        if self.config.divergence != "warn":
            raise DivergedError(f"{problem}; the last good checkpoint is kept.", first_step=self.divergence.since - 1)
        self.tracker.log_error(problem, self.progress)
        if self.ranks.is_main_process:
            log.warning("%s", problem)

    def _report_skipped(self) -> tuple[int, int]:
        """Log the skipped steps.

        Returns:
            The step at which `nonfinite_limit` was reached and the clock before the first step of the row; else (0, 0).
        """
        for step, samples_seen, in_a_row in self.guard.take_skipped():
            if self.accelerator.scaler is None or in_a_row > 1:  # a loss scaler finds its scale by overflowing once
                ids = self.loader.ids(samples_seen).tolist()
                problem = f"step {step} was skipped, {in_a_row} in a row: its gradient was not finite"
                self.tracker.log_error(f"{problem}; its samples: {ids}", self.progress)
            if in_a_row >= self.config.nonfinite_limit:
                return step, self.guard.row_begins
        return 0, 0

    def _too_many_skipped(self, step: int, row_start: int) -> NotFiniteError:
        limit, ids = self.config.nonfinite_limit, self.loader.ids(row_start).tolist()
        return NotFiniteError(
            f"the gradient was not finite in {limit} optimizer steps in a row, up to step {step}; none of them "
            f"changed the weights. The first of these batches held samples {ids[:8]}..., and events.jsonl lists them "
            f"all. Check the data and the learning rate; the last good checkpoint is kept.",
            first_step=step - limit + 1,
        )

    def roll_back(self, snapshot: Snapshot) -> None:
        """Restore `snapshot` but keep the clock, so that the samples seen since are skipped, and the best value.

        Evaluations and saves due after the failed step happen after the rollback.
        """
        now, count, skipped, seconds = self.progress, self.rollbacks + 1, self.guard.counts, self.stopwatch.seen
        best = self.best.state()
        self.restore(snapshot)
        self.best.load(best)
        self.means.load({})  # the snapshot's running means belong to rows that are already logged
        self.stopwatch.load(seconds)
        self.progress, self.rollbacks, self.measured = now, count, {}
        self.unmeasured = Progress(now.samples_seen - self.loader.global_batch_size, now.global_step - 1)
        self.divergence.forget()
        self.guard.load(skipped)
        self.guard.forget()

    def _spent(self) -> tuple[int, int]:
        """Optimizer steps of the budget that are taken, and all of them; see `TrainingConfig.spent`."""
        return self.config.spent(len(self.loader), self.loader.global_batch_size, self.progress)

    def _due(self, cadence: Cadence, before: Progress) -> bool:
        return cadence.due(before, self.progress, len(self.loader), self.stopwatch.seen)

    def _record_losses(self, losses: list[Loss]) -> None:
        """Add a step's losses to the means, weighted by valid elements and corrected for how timesteps were drawn."""
        t, valid = _joined(losses, "t"), _joined(losses, "valid")
        factor = None if losses[0].factor is None else _joined(losses, "factor")
        terms = {"loss": _joined(losses, "per_sample")}
        terms |= {name: torch.cat([loss.terms[name].detach() for loss in losses]) for name in losses[0].terms}
        weight = valid if factor is None else valid * factor
        for name, values in terms.items():
            corrected = values if factor is None else values * factor
            self.means.add_batch(f"train/{name}", corrected, valid)
            self.means.add(f"train/{name}_q", *by_quartile(values, t, self.process.steps, weight))
            if name == "loss" and self.config.divergence is not None:
                self.divergence.count((corrected * valid).sum(), valid.sum(), self.progress.global_step + 1)

    def _teach_timestep_sampler(self, micro_batches: list[Batch], losses: list[Loss], finite: Tensor) -> None:
        """Pass a step's losses to a timestep sampler that learns, in the same order for any ranks and micro-batches."""
        if not self.process.learns_timesteps:
            return
        positions = torch.cat([batch.positions for batch in micro_batches])
        t, per_sample, valid = (_joined(losses, name) for name in ("t", "per_sample", "valid"))
        parts = [self.accelerator.gather(part) for part in (positions, t, per_sample, valid * finite)]
        order = parts[0].argsort()
        self.process.observe(*(part[order] for part in parts[1:]))


def _joined(losses: list[Loss], name: str) -> Tensor:
    """(B,) a field of the losses of all micro-batches."""
    return torch.cat([getattr(loss, name).detach() for loss in losses])


def _replicas(config: TrainingConfig, ranks: Ranks) -> Replicas:
    """The division of model and optimizer among the ranks that `train.shard` asks for; none on a single rank."""
    if not config.shard or ranks.num_processes == 1:
        return Replicas(ranks)
    if config.shard == "model":
        from dp_prior.training.model_shards import ModelShards

        return ModelShards(ranks, config)
    from dp_prior.training.shards import Shards

    return Shards(ranks)
