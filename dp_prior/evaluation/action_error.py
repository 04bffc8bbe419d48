"""Action error: sampled chunks against the demonstrated ones on held-out samples, in data units.

Closer to what a robot does than the denoising loss, and far cheaper than a rollout. Noise is fixed for each sample.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dp_prior.clock import Cadence
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.evaluation.held_out import HeldOutEvaluator, SampledConfig
from dp_prior.evaluation.measurement import EvaluatorName, Measurement
from dp_prior.evaluation.models import device_of, with_steps
from dp_prior.evaluation.samples import SplitData, dealt, pick_samples, shared_batches
from dp_prior.metric_names import Metric
from dp_prior.metrics import Ranks, pad_gather_reduce
from dp_prior.randomness import Randomness

MOST_DRAWS = 64
MOST_DIMENSIONS = 24
"""Of each stored chunk; the page of a run stays readable, and small."""


class ActionErrorConfig(SampledConfig):
    """Mean squared and mean absolute error of sampled actions, for each number of sampling steps.

    `mse` and `mae` are means over the executed actions of a chunk, `mse_chunk` and `mae_chunk` over all of it; padding
    counts nowhere. Rotations are compared as 6D, so that neither a quaternion's sign nor an angle's jump counts. The
    report on disk has the errors for each index of the chunk and for each dimension of the executed actions; beside it
    are several chunks, sampled at a few moments.
    """

    type: Literal["action_error"] = "action_error"

    tasks: ClassVar = ("policy",)

    metrics: ClassVar = tuple(
        Metric(f"<name>/<model>/{kind}[steps=<steps>]", unit, "lower", f"{error} of {part}, sampled in N steps.")
        for kind, unit, error, part in (
            ("mse", "(action unit)²", "Mean squared error", "the executed actions"),
            ("mae", "action unit", "Mean absolute error", "the executed actions"),
            ("mse_chunk", "(action unit)²", "Mean squared error", "all actions of a chunk"),
            ("mae_chunk", "action unit", "Mean absolute error", "all actions of a chunk"),
        )
    )

    name: EvaluatorName = "action_error"
    """First part of the metrics' names: `action_error/ema/mse[steps=16]`."""

    every: Cadence = Cadence(epochs=5)
    """How often it runs, besides at the end."""

    n_samples: int = Field(default=512, ge=1)
    """At most this many samples, evenly spread over the split."""

    shown: int = Field(default=4, ge=0, le=16)
    """Moments, evenly spread over the split, of which the page of the run shows the recorded chunk beside sampled ones,
    in the first number of steps; 0 for none."""

    draws: int = Field(default=16, ge=1, le=MOST_DRAWS)
    """Chunks sampled at each of these moments."""

    def trial(self) -> Self:
        """See `HeldOutConfig`."""
        return self.model_copy(update={"n_samples": 4, "shown": min(self.shown, 1), "draws": 1})

    def create(self, data: SplitData, output_dir: Path | None = None) -> ActionErrorEvaluator:
        """
        Args:
            data: has the parts `train`, `val`, `test`.
            output_dir: where reports go; None for nowhere.
        """
        return ActionErrorEvaluator(self, pick_samples(data, self.split, self.name, self.data_set), output_dir)


class ActionErrorEvaluator(HeldOutEvaluator):
    """See `ActionErrorConfig`."""

    def measure(self, model: Any, name: str, ranks: Ranks | None, result: Measurement) -> None:
        """See `HeldOutEvaluator`."""
        for steps in self.config.eval_timesteps:
            table, dimensions = self._errors(model, with_steps(model.sampler, steps), ranks)
            result.tables[f"{name}/by_index[steps={steps}]"] = table
            result.tables[f"{name}/by_dimension[steps={steps}]"] = dimensions
            executed = [row for row in table if row["executed"]]
            for kind, rows in (("", executed), ("_chunk", table)):
                for error in ("mse", "mae"):
                    result.metrics[f"{name}/{error}{kind}[steps={steps}]"] = _mean(rows, error)
        if self.config.shown and self.output_dir is not None:
            sampler = with_steps(model.sampler, self.config.eval_timesteps[0])
            result.arrays[f"{name.rpartition('/')[2]}_chunks"] = self._chunks(model, sampler, ranks)

    def _errors(
        self, policy: Any, sampler: SamplerConfig, ranks: Ranks | None
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """One row per index of the chunk: mse, mae and how many real actions they are over; and one per dimension of
        the executed actions, in which a rotation has the six of its matrix's first two columns."""
        config, layout = self.config, policy.spec.layout("x")
        first = policy.n_obs_steps - 1
        executed = slice(first, first + policy.n_action_steps)
        width = policy.spec.x_shape[-1] if layout is None else layout.width_inside
        dimensions = torch.zeros(2, width, dtype=torch.float64)  # squared, absolute; by dimension
        totals = torch.zeros(3, policy.horizon, dtype=torch.float64)  # squared, absolute, count; by index
        for batch in shared_batches(self.samples, config.n_samples, config.batch_size, ranks, device_of(policy)):
            random = Randomness.from_counts(config.seed, "action_error", batch.ids)
            found = policy.predict(batch.cond, random, sampler)
            error = found - batch.x if layout is None else layout.encode(found) - layout.encode(batch.x)  # (B, H, A)
            parts = torch.stack([(error**2).mean(-1), error.abs().mean(-1), torch.ones_like(error[..., 0])])
            totals += torch.where(batch.mask, parts, 0.0).cpu().double().sum(1)  # where: padding may hold NaN
            real = torch.where(batch.mask[..., None], error, 0.0)[:, executed].cpu().double()
            dimensions += torch.stack([(real**2).sum((0, 1)), real.abs().sum((0, 1))])
        squared, absolute, count = pad_gather_reduce(ranks, totals[None], "sum", dim=0).cpu().tolist()
        table = [
            {
                "index": index,
                "executed": first <= index < first + policy.n_action_steps,
                "n": int(count[index]),
                "mse": squared[index] / count[index] if count[index] else float("nan"),
                "mae": absolute[index] / count[index] if count[index] else float("nan"),
            }
            for index in range(policy.horizon)
        ]
        found = pad_gather_reduce(ranks, dimensions[None], "sum", dim=0).cpu().T.tolist()
        n = sum(row["n"] for row in table if row["executed"])
        return table, [
            {"dimension": number, "mse": squares / n if n else float("nan"), "mae": sizes / n if n else float("nan")}
            for number, (squares, sizes) in enumerate(found)
        ]

    def _chunks(self, policy: Any, sampler: SamplerConfig, ranks: Ranks | None) -> np.ndarray:
        """Several chunks at each of some moments, whose noise is fixed by the moment and the number of the draw.

        Returns:
            (moments, 1 + draws, horizon, D) float32, rotations as 6D; the first of axis 1 is the recorded chunk, NaN
            where it is padding. D is at most MOST_DIMENSIONS.
        """
        config, samples, layout, device = self.config, self.samples, policy.spec.layout("x"), device_of(policy)
        moments = min(config.shown, len(samples))
        rows = (2 * torch.arange(moments) + 1) * len(samples) // (2 * moments)

        def shown(chunks: Tensor) -> Tensor:
            return (chunks if layout is None else layout.encode(chunks))[..., :MOST_DIMENSIONS].float()

        def sample(ids: Tensor) -> Tensor:
            batch = samples.fetch(rows[ids // config.draws].to(samples.device)).to(device)
            numbers = batch.ids * MOST_DRAWS + (ids % config.draws).to(device)
            random = Randomness.from_counts(config.seed, "chunks", numbers)
            return shown(policy.predict(batch.cond, random, sampler))

        batch = samples.fetch(rows.to(samples.device)).to(device)
        recorded = torch.where(batch.mask[..., None], shown(batch.x), torch.nan)[:, None]
        drawn = dealt(moments * config.draws, config.batch_size, ranks, sample, like=recorded[:0, 0])
        return torch.cat([recorded, drawn.unflatten(0, (moments, config.draws))], dim=1).cpu().numpy()


def _mean(rows: list[dict[str, Any]], error: str) -> float:
    """Mean over the real actions of some rows of the table; NaN if there are none."""
    count = sum(row["n"] for row in rows)
    return sum(row[error] * row["n"] for row in rows if row["n"]) / count if count else float("nan")
