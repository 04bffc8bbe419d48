"""Validation loss: the training objective on held-out samples, with noise and timestep fixed for each sample.

The number depends on the weights alone, not on batch size, number of ranks or state of the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from dp_prior.clock import Cadence, Progress
from dp_prior.evaluation.held_out import HeldOutConfig, HeldOutEvaluator
from dp_prior.evaluation.measurement import EvaluatorName, Measurement
from dp_prior.evaluation.models import device_of, evaluation_mode, pick_models
from dp_prior.evaluation.samples import SplitData, pick_samples, shared_batches
from dp_prior.metric_names import Metric
from dp_prior.metrics import Means, Ranks, by_quartile
from dp_prior.randomness import Randomness


class LossConfig(HeldOutConfig):
    """Deterministic loss on held-out samples, in total and by quarter of the timestep range (q0 least noisy).

    Where the loss has several terms, such as `simple` and `vb` with a learned variance, each is measured likewise.
    """

    type: Literal["loss"] = "loss"

    reports: ClassVar = False

    metrics: ClassVar = (
        Metric("<name>/<model>/loss", "1", "lower", "The training objective on held-out samples with fixed noise."),
        Metric("<name>/<model>/loss_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
        Metric("<name>/<model>/simple", "1", "lower", "Where the variance is learned: the part for the mean."),
        Metric("<name>/<model>/simple_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
        Metric("<name>/<model>/vb", "bits/dim", "lower", "Where the variance is learned: the variational bound."),
        Metric("<name>/<model>/vb_q<quarter>", "bits/dim", "lower", "The same over one quarter of the timesteps."),
    )

    name: EvaluatorName = "validation"
    """First part of the metrics' names: `validation/ema/loss`, `validation/ema/loss_q0`."""

    every: Cadence = Cadence(epochs=1)
    """How often it runs, besides at the end."""

    models: tuple[str, ...] = Field(default=("ema", "online"), min_length=1)
    """Weights to measure: names of averages in `train.ema`, or `online` for the trained weights themselves."""

    max_samples: int | None = Field(default=None, ge=1)
    """At most this many samples, evenly spread over the split; null for all."""

    def metric_names(self) -> list[str]:
        """What `run` will measure, but for the terms of a loss that has several."""
        return self.names_of(("loss",))

    def names_of(self, terms: tuple[str, ...]) -> list[str]:
        """Names of the metrics of these terms."""
        parts = ("", *(f"_q{quarter}" for quarter in range(4)))
        return [f"{self.name}/{model}/{term}{part}" for model in self.models for term in terms for part in parts]

    def create(self, data: SplitData, output_dir: Path | None = None) -> LossEvaluator:
        """
        Args:
            data: has the parts `train`, `val`, `test`.
            output_dir: ignored; nothing is written.
        """
        return LossEvaluator(self, pick_samples(data, self.split, self.name))


class LossEvaluator(HeldOutEvaluator):
    """See `LossConfig`."""

    def run(self, models: dict[str, nn.Module], ranks: Ranks | None, progress: Progress) -> Measurement:
        """Measure; a collective when there are several ranks. A quarter without samples is NaN."""
        means, picked = Means(), pick_models(models, self.config.models, self.config.name)
        process = next(iter(picked.values())).process  # the models are copies of one
        names = self.config.names_of(("loss", *process.term_names))
        for name in names:
            means.add(name, 0.0, 0.0)  # ranks without samples must add the same names
        for name, model in picked.items():
            with evaluation_mode(model):
                self._add(means, f"{self.config.name}/{name}", model, ranks)
        found = means.reduce(ranks)
        return Measurement({name: found.get(name, float("nan")) for name in names})

    def _add(self, means: Means, name: str, model: nn.Module, ranks: Ranks | None) -> None:
        config = self.config
        device = device_of(model)
        for batch in shared_batches(self.samples, config.max_samples, config.batch_size, ranks, device):
            loss = model(batch, Randomness.from_counts(config.seed, "validation", batch.ids))
            for term, values in {"loss": loss.per_sample, **loss.terms}.items():
                means.add_batch(f"{name}/{term}", values, loss.valid)
                sums, counts = by_quartile(values, loss.t, model.process.steps, loss.valid)
                for quartile in range(4):
                    means.add(f"{name}/{term}_q{quartile}", sums[quartile], counts[quartile])
