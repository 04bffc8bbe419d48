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
from dp_prior.training.optimizer import set_learning_rate, update
from dp_prior.training.state import read_state, take_snapshot


class Loader(Protocol):
    """Where batches come from: a pure function of the samples seen."""

    global_batch_size: int

    def __len__(self) -> int: ...

    def from_sample(self, samples_seen: int) -> Iterator[list[Batch]]: ...


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


class Saver(Protocol):
    """Where snapshots go. Returns before they are durable; what then fails is raised by the next call."""

    def submit(
        self, snapshot: Snapshot, progress: Progress, metrics: dict[str, float], is_best: bool
    ) -> None: ...

    def check(self) -> None: ...

    def reserve(self, snapshot: Snapshot) -> None: ...


class NotFiniteError(RuntimeError):
    """Too many steps in a row had a gradient that was not finite."""


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
    ):
        """
        Args:
            model: maps (Batch, Randomness) to a Loss; already fitted to its data, on any device.
            documents: JSON documents that travel with every snapshot, by file name (configuration, spec, ...).
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
        self.skipped = torch.zeros(3, dtype=torch.int64, device=self.device)  # all, in a row, step of the last
        self.stop_requested = False
        self._hosts = torch.distributed.new_group(backend="gloo") if accelerator.num_processes > 1 else None
        self._measured_from = (0, time.perf_counter())

    @property
    def models(self) -> dict[str, nn.Module]:
        """The averages and the trained model (`online`), unwrapped, to be measured or saved."""
        return {**{name: average.model for name, average in self.averages.items()}, "online": self.online}

    def fit(self) -> Progress:
        """Train until the sample budget is spent or a stop is requested, from wherever the clock stands."""
        self._measured_from = (self.progress.samples_seen, time.perf_counter())
        batches = self.loader.from_sample(self.progress.samples_seen)
        start, stopping = self.progress, False
        while self.progress.samples_seen < self.total_samples and not stopping:
            before = self.progress
            self.step(next(batches))
            if before == start and self.accelerator.is_main_process:
                self.saver.reserve(take_snapshot(self, {}))
            self.saver.check()
            stopping = self._is_asked_to_stop()
            done = self.progress.samples_seen >= self.total_samples
            row = self.training_metrics() if done or self._due(self.config.log_every, before) else {}
            row |= self.evaluate([e for e in self.evaluators if done or self._due(e.every, before)])
            if row:
                self.tracker.log(row, self.progress)
            is_best = self.best.improves(row, self.progress.global_step)
            if done or is_best or self._due(self.config.save_every, before) or stopping:
                self.save(row, is_best)
        return self.progress

    def step(self, micro_batches: list[Batch]) -> None:
        """One optimizer step over one global batch."""
        now = self.progress
        torch.manual_seed(derive_seed(self.seed, "dropout", self.accelerator.process_index, now.samples_seen))
        set_learning_rate(self.optimizer, self.config.lr.at(now.global_step, self.total_steps))
        self.online.train()
        self_condition = self.online.process.self_conditions(self.seed, now.samples_seen)
        losses = []
        for index, batch in enumerate(micro_batches):
            is_last = index == len(micro_batches) - 1
            with contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.wrapped):
                random = Randomness.from_counts(self.seed, "training", batch.positions)
                loss = self.wrapped(batch, random, self_condition)
                self.accelerator.backward(loss.total / len(micro_batches))  # means of parts: the step takes theirs
            losses.append(loss)
        self._count(losses)
        norm, finite = update(self.optimizer, self.config.max_grad_norm, self.accelerator.scaler)
        self.progress = now.advance(self.loader.global_batch_size)
        for average in self.averages.values():
            average.update(self.online, self.progress.global_step, finite)
        self._guard(norm, finite)

    def training_metrics(self) -> dict[str, float]:
        """The means since the last call; the only place where the loop waits for the device."""
        metrics = self.means.reduce(self.accelerator)
        samples, moment = self._measured_from
        elapsed = time.perf_counter() - moment
        metrics["train/samples_per_second"] = (self.progress.samples_seen - samples) / elapsed
        self._measured_from = (self.progress.samples_seen, time.perf_counter())
        metrics["train/epoch"] = self.progress.samples_seen / len(self.loader)
        metrics["train/lr"] = self.optimizer.param_groups[0]["lr"]
        metrics["train/skipped_steps"] = self.skipped[0].item()
        for name, average in self.averages.items():
            metrics[f"train/{name}_decay"] = average.decay.at(self.progress.global_step)
        return metrics

    def evaluate(self, evaluators: list[Evaluator]) -> dict[str, float]:
        """Measure the models. Training is the same whether or not this is called; its clock of samples/s stands."""
        start = time.perf_counter()
        metrics: dict[str, float] = {}
        for evaluator in evaluators:
            result = evaluator.run(self.models, self.accelerator, self.progress)
            metrics |= result.metrics
            self.tracker.log_images(result.media, self.progress)
        samples, moment = self._measured_from
        self._measured_from = (samples, moment + time.perf_counter() - start)
        return metrics

    def save(self, metrics: dict[str, float], is_best: bool) -> None:
        """Hand a snapshot of everything to the saver, with what was measured at this step; training goes on."""
        self.means.collect(self.accelerator)
        if self.accelerator.is_main_process:
            self.saver.submit(take_snapshot(self, metrics), self.progress, metrics, is_best)

    def restore(self, snapshot: Snapshot) -> None:
        """Go on exactly where `snapshot` was taken."""
        read_state(self, snapshot)

    def _is_asked_to_stop(self) -> bool:
        """Whether any rank was asked to, so that all leave after the same step; no device is waited for."""
        if self._hosts is None:
            return self.stop_requested
        asked = torch.tensor(int(self.stop_requested))
        torch.distributed.all_reduce(asked, torch.distributed.ReduceOp.MAX, group=self._hosts)
        return bool(asked)

    def _due(self, cadence: Cadence, before: Progress) -> bool:
        return cadence.due(before, self.progress, len(self.loader))

    def _count(self, losses: list[Loss]) -> None:
        """Add a step's losses to the means, weighted by valid elements, and show them to timesteps that learn."""
        process = self.online.process
        t, valid = (torch.cat([getattr(loss, name) for loss in losses]) for name in ("t", "valid"))
        terms = {"loss": torch.cat([loss.per_sample.detach() for loss in losses])}
        terms |= {name: torch.cat([loss.terms[name].detach() for loss in losses]) for name in losses[0].terms}
        for name, values in terms.items():
            self.means.add_batch(f"train/{name}", values, valid)
            self.means.add(f"train/{name}_q", *by_quartile(values, t, process.steps, valid))
        if process.learns_timesteps:
            process.observe(*(self.accelerator.gather(part) for part in (t, terms["loss"], valid)))

    def _guard(self, norm: Tensor, finite: Tensor) -> None:
        """Count skipped steps on the device; look at the count only now and then."""
        share = float(self.accelerator.is_main_process)  # all ranks hold the same norm; it counts once
        self.means.add("train/grad_norm", torch.where(finite, norm, 0.0) * share, finite * share)
        skip = (~finite).to(torch.int64)
        total, in_a_row, last = self.skipped
        self.skipped = torch.stack(
            [total + skip, (in_a_row + 1) * skip, torch.where(finite, last, self.progress.global_step)]
        )
        limit = self.config.nonfinite_limit
        if self.progress.global_step % limit == 0 and self.skipped[1].item() >= limit:
            first = self.progress.samples_seen - limit * self.loader.global_batch_size
            ids = [sample for batch in next(self.loader.from_sample(first)) for sample in batch.ids.tolist()]
            raise NotFiniteError(
                f"the gradient was not finite in {limit} optimizer steps in a row, up to step "
                f"{self.progress.global_step}; none of them changed the weights. The first of these batches held "
                f"samples {ids[:8]}... Look at the data and the learning rate; the last good checkpoint is kept."
            )
