"""Validation loss: the training objective on held-out samples, with noise and timestep fixed for each sample.

The number depends on the weights alone, not on batch size, number of ranks or state of the run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field

from dp_prior.clock import Cadence
from dp_prior.data.split_data import SplitData
from dp_prior.evaluation.held_out import HeldOutConfig, HeldOutEvaluator
from dp_prior.evaluation.measurement import EvaluatorName, Measurement
from dp_prior.evaluation.models import device_of
from dp_prior.evaluation.samples import pick_samples, shared_batches
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
        Metric(
            "<name>/<model>/vb",
            "bits/dim",
            "lower",
            "With learned variance: the bound's terms, mean over timesteps.",
        ),
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
        return [name for model in self.models for name in _names(f"{self.name}/{model}/loss")]

    def create(self, data: SplitData, output_dir: Path | None = None) -> LossEvaluator:
        """
        Args:
            data: has the parts `train`, `val`, `test`.
            output_dir: ignored; nothing is written.
        """
        return LossEvaluator(self, pick_samples(data, self.split, self.name, self.data_set))


class LossEvaluator(HeldOutEvaluator):
    """See `LossConfig`."""

    def measure(self, model: Any, name: str, ranks: Ranks | None, result: Measurement) -> None:
        """See `HeldOutEvaluator`. A quarter without samples is NaN."""
        config, means, device = self.config, Means(), device_of(model)
        terms = [f"{name}/{term}" for term in ("loss", *model.process.term_names)]
        for term in terms:  # ranks without samples must add the same names
            means.add(term, 0.0, 0.0)
            means.add(f"{term}_q", *torch.zeros(2, 4, device=device))
        for batch in shared_batches(self.samples, config.max_samples, config.batch_size, ranks, device):
            loss = model(batch, Randomness.from_counts(config.seed, "validation", batch.ids))
            for term, values in zip(terms, (loss.per_sample, *loss.terms.values()), strict=True):
                means.add_batch(term, values, loss.valid)
                means.add(f"{term}_q", *by_quartile(values, loss.t, model.process.steps, loss.valid))
        found = means.reduce(ranks)
        result.metrics.update({each: found.get(each, float("nan")) for term in terms for each in _names(term)})


def _names(term: str) -> list[str]:
    """The metric of a term of the loss, and those of the quarters of the timestep range."""
    return [term, *(f"{term}_q{quarter}" for quarter in range(4))]
