"""Action error: sampled against demonstrated chunks on held-out samples, in data units.

Says more about behaviour than the denoising loss, and is far cheaper than a rollout. Noise is fixed for each sample.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import ConfigError
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.draw import Draw
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.evaluation.held_out import HeldOutEvaluator, SampledConfig
from dp_prior.evaluation.measured_models import device_of, evaluation_mode, pick_models, with_steps
from dp_prior.evaluation.measurement import EvaluatorName, Measurement
from dp_prior.evaluation.samples import dealt, evenly_spread, pick_samples, rank_and_size, work_of
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior.tensors.randomness import Randomness
from dp_prior.tracking.metric_names import Metric

if TYPE_CHECKING:
    from dp_prior.evaluation.open_loop import OpenLoop

Table = list[dict[str, Any]]

log = logging.getLogger(__name__)

CONSTANT = 1e-6
"""A dimension counts as constant if its deviation is at most this fraction of its largest magnitude."""

MOST_DRAWS = 64
TALLEST_FRAME = 128
"""Pixels of a stored frame's height."""

MOST_DIMENSIONS = 24
"""Dimensions of each stored chunk, so that the page of a run stays readable, and small."""


class ActionErrorConfig(SampledConfig):
    """Distances between sampled and recorded actions, for each number of sampling steps.

    `mse` and `mae` are means over the executed actions of a chunk, `mse_chunk` and `mae_chunk` over the whole chunk.
    `lower_quartile` is the mean absolute error, in standard deviations, that the best quarter of the sampled chunks do
    not exceed. Where several actions are right, the recorded action is one choice among them; such moments dominate the
    means but not the quartile, which ranks policies more like their scores (docs/study.md). Padding is ignored, unless
    `data.mask_padding` is false: then padding counts as in training. Rotations are compared as 6D, so that neither a
    quaternion's sign nor an angle's jump counts. The report on disk has the errors for each index of the chunk and for
    each dimension of the executed actions; several chunks, sampled at a few moments, are stored beside the report.
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
    ) + (
        Metric(
            "<name>/<model>/lower_quartile[steps=<steps>]", "standard deviation", "lower",
            "Lower quartile over chunks of the mean absolute error of the executed actions, sampled in N steps.",
        ),
    )  # fmt: skip

    name: EvaluatorName = "action_error"
    """First part of the metrics' names: `action_error/ema/mse[steps=16]`."""

    every: Cadence = Cadence(epochs=5)
    """How often to run, besides at the end."""

    n_samples: int = Field(default=512, ge=1)
    """At most this many samples, evenly spread over the split."""

    shown: int = Field(default=4, ge=0, le=16)
    """Moments, evenly spread over the split, at which the page of the run shows recorded and sampled chunks, sampled
    with the first number of steps; 0 for none."""

    draws: int = Field(default=16, ge=1, le=MOST_DRAWS)
    """Chunks sampled at each moment of `shown`."""

    filmed: int = Field(default=0, ge=0, le=16)
    """Number of episodes, the first of the split, that are filmed: camera frames above the recorded actions and the
    actions that the first of `models` predicts from recorded observations; 0 for none. At most `n_samples` chunks of
    each are predicted."""

    def trial(self) -> Self:
        few = {"shown": min(self.shown, 1), "filmed": min(self.filmed, 1)}
        return self.model_copy(update={"n_samples": 4, "draws": 1, **few})

    def create(self, data: SplitData, output_dir: Path | None = None) -> ActionErrorEvaluator:
        """
        Args:
            data: has the parts `train`, `val`, `test`.
            output_dir: where reports go; None for nowhere.

        Raises:
            ConfigError: the part is empty, or the samples are of no episodes, which can be filmed.
        """
        samples = pick_samples(data, self.split, self.name, self.data_set)
        chosen = data if self.data_set is None else data.sets[self.data_set]
        place = partial(chosen.recorded_at, self.split)
        record = self._without_impossible_films(place, output_dir) if self.filmed else self
        return ActionErrorEvaluator(record, samples, output_dir, place=place)

    def _without_impossible_films(
        self, place: Callable[[int], tuple[int, int] | None], output_dir: Path | None
    ) -> Self:
        """These settings; without films where the packages for them are missing, which is told.

        Raises:
            ConfigError: the samples are of no episodes.
        """
        from dp_prior.evaluation.open_loop import episode_runs, import_film_packages

        if not episode_runs(place, 1, 1):
            finding = f"filmed is {self.filmed}, but the samples are of no recorded episodes; set it to 0"
            raise ConfigError(f"evaluator {self.name!r}", [finding])
        try:
            if output_dir is not None:
                import_film_packages()
        except ImportError as error:
            log.warning("evaluator %r makes no films, only numbers, as with filmed 0: %s", self.name, error)
            return self.model_copy(update={"filmed": 0})
        return self


class ActionErrorEvaluator(HeldOutEvaluator):
    """See `ActionErrorConfig`."""

    def __init__(
        self,
        config: ActionErrorConfig,
        samples: Samples,
        output_dir: Path | None = None,
        *,
        place: Callable[[int], tuple[int, int] | None] = lambda sample: None,
    ):
        """
        Args:
            place: episode and step of a sample, see `SplitData.recorded_at`.
        """
        super().__init__(config, samples, output_dir)
        self._place = place

    def run(self, models: dict[str, nn.Module], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """See `HeldOutEvaluator`; also writes the films."""
        result, config = super().run(models, ranks, progress), self.config
        if config.filmed and self.output_dir is not None:
            policy = pick_models(models, config.models[:1], config.name)[config.models[0]]
            path = self.file(progress, ".mp4")
            with evaluation_mode(policy), result.writing():
                self._film(path, policy, ranks)
                result.media[f"{config.name}/video"] = path
        return result

    def measure(self, model: Any, name: str, ranks: ReducingRanks | None, result: Measurement) -> None:
        first = model.n_obs_steps - 1
        executed, whole = slice(first, first + model.n_action_steps), slice(None)
        for steps in work_of(ranks).parts(self.config.eval_timesteps):
            rows = evenly_spread(len(self.samples), self.config.n_samples)
            error, recorded, mask = self.errors(model, with_steps(model.sampler, steps), ranks, rows)
            counts = mask.sum(0)  # (horizon,)
            values = {"mse": error**2, "mae": error.abs()}  # 0 where not real
            for kind, part in (("", executed), ("_chunk", whole)):
                for name_of_error, errors in values.items():
                    value = float(errors[:, part].mean(-1).sum() / counts[part].sum())
                    result.metrics[f"{name}/{name_of_error}{kind}[steps={steps}]"] = value
            quartile = lower_quartile(error[:, executed], recorded[:, executed], mask[:, executed])
            result.metrics[f"{name}/lower_quartile[steps={steps}]"] = quartile
            result.tables[f"{name}/by_index[steps={steps}]"] = _by_index(values, counts, executed)
            names = model.spec.names_inside("x")
            result.tables[f"{name}/by_dimension[steps={steps}]"] = _by_dimension(values, counts, executed, names)
        if self.config.shown and self.output_dir is not None:
            sampler = with_steps(model.sampler, self.config.eval_timesteps[0])
            result.arrays[f"{name.rpartition('/')[2]}_chunks"] = self._chunks(model, sampler, ranks)
            self._tell_moments(model, result)

    def errors(
        self, policy: Any, sampler: SamplerConfig, ranks: ReducingRanks | None, rows: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One chunk for each of n samples, on every rank.

        Args:
            rows: (n,) numbers of the samples.

        Returns:
            On the CPU: sampled minus recorded actions, and recorded actions, (n, horizon, D) float64, rotations as 6D,
            0 at padding; and (n, horizon) bool, False at padding.
        """
        config, samples, layout, device = self.config, self.samples, policy.spec.layout("x"), device_of(policy)
        n = len(rows)

        def sample(ids: Tensor) -> Tensor:
            batch = samples.fetch(rows[ids].to(samples.device)).to(device)
            random = Randomness.from_counts(config.seed, "action_error", batch.ids)
            predicted, recorded = policy.draw(batch.cond, random, Draw(sampler)), batch.x
            if layout is not None:
                predicted, recorded = layout.encode(predicted), layout.encode(recorded)
            is_real = batch.mask[..., None].expand_as(recorded)  # padding may hold NaN
            error, recorded = (torch.where(is_real, values, 0.0) for values in (predicted - recorded, recorded))
            return torch.stack([error, recorded, is_real.to(error.dtype)], dim=1)

        width = policy.spec.x_shape[-1] if layout is None else layout.width_inside
        like = torch.zeros(0, 3, policy.horizon, width, device=device)
        share = -(-n // rank_and_size(ranks)[1])  # smaller batches if needed, so that all ranks share the work
        error, recorded, is_real = dealt(n, min(config.batch_size, share), ranks, sample, like).cpu().double().unbind(1)
        return error, recorded, is_real[..., 0] > 0

    def _film(self, path: Path, policy: Any, ranks: ReducingRanks | None) -> None:
        """Film the first episodes. A collective; the first rank writes."""
        from dp_prior.evaluation.open_loop import episode_runs, write_film

        config, sampler = self.config, with_steps(policy.sampler, self.config.eval_timesteps[0])
        runs = [
            (episode, run[: config.n_samples * policy.n_action_steps])
            for episode, run in episode_runs(self._place, len(self.samples), config.filmed)
        ]
        episodes = [self.open_loop(policy, sampler, episode, run, ranks) for episode, run in runs]
        if rank_and_size(ranks)[0] == 0:
            pictures = (self._pictures(policy, run) for _, run in runs)
            write_film(path, policy.spec.fps, zip(episodes, pictures, strict=True))

    def open_loop(
        self, policy: Any, sampler: SamplerConfig, episode: int, run: range, ranks: ReducingRanks | None
    ) -> OpenLoop:
        """Recorded and predicted actions of an episode, whose samples are `run`."""
        from dp_prior.evaluation.open_loop import OpenLoop

        every = policy.n_action_steps
        error, recorded, mask = self.errors(policy, sampler, ranks, torch.tensor(run[::every]))
        first = policy.n_obs_steps - 1
        executed = slice(first, first + every)
        real = torch.where(mask[:, executed, None], recorded[:, executed], torch.nan).flatten(0, 1)
        predicted = (real + error[:, executed].flatten(0, 1)).numpy()
        width = min(real.shape[1], MOST_DIMENSIONS)
        names = policy.spec.names_inside("x") or [f"dimension {number}" for number in range(width)]
        title = f"episode {episode}: recorded actions (grey), and predicted from recorded observations (blue)"
        return OpenLoop(title, real.numpy()[:, :width], predicted[:, :width], names, every)

    def _pictures(self, policy: Any, run: range) -> Iterator[np.ndarray]:
        """Pictures of the cameras at each sample; an empty picture, one pixel high, without cameras."""
        keys = policy.spec.cameras
        if not keys:
            yield from np.full((len(run), 1, 1, 3), 255, np.uint8)
            return
        from dp_prior.evaluation.view import CameraView

        view = CameraView(policy, keypoints=False, fitted=True)
        for ids in torch.tensor(run).split(self.config.batch_size):
            observed = self.samples.seeing(keys).fetch(ids.to(self.samples.device)).cond
            yield from view({key: observed[key][:, -1].cpu().numpy() for key in keys}, range(len(ids)))

    def _moments(self) -> Tensor:
        """(moments,) the samples that the page of the run shows."""
        n, moments = len(self.samples), min(self.config.shown, len(self.samples))
        return (2 * torch.arange(moments) + 1) * n // (2 * moments)

    def _tell_moments(self, policy: Any, result: Measurement) -> None:
        """Add where the moments were recorded, and what the cameras saw there."""
        rows = self._moments()
        places = [self._place(row) for row in rows.tolist()]
        keys = policy.spec.cameras
        if None not in places:
            result.tables[f"{self.config.name}/moments"] = [
                {"moment": number, "episode": episode, "step": step, "cameras": ", ".join(keys)}
                for number, (episode, step) in enumerate(places, 1)
            ]
        written = self.output_dir.glob(f"{glob.escape(self.config.name)}_{'[0-9]' * 8}_frames.npy")
        if keys and not any(written):  # the moments stay the same
            from dp_prior.evaluation.grid import beside

            observed = self.samples.seeing(keys).fetch(rows.to(self.samples.device)).cond
            result.arrays["frames"] = beside([_small(observed[key][:, -1].cpu().numpy()) for key in keys])

    def _chunks(self, policy: Any, sampler: SamplerConfig, ranks: ReducingRanks | None) -> np.ndarray:
        """Several chunks at each of some moments; moment and number of the draw determine the noise.

        Returns:
            (moments, 1 + draws, horizon, D) float32, rotations as 6D; index 0 of axis 1 is the recorded chunk, NaN at
            padding. D is at most MOST_DIMENSIONS.
        """
        config, samples, layout, device = self.config, self.samples, policy.spec.layout("x"), device_of(policy)
        rows = self._moments()
        moments = len(rows)

        def shown(chunks: Tensor) -> Tensor:
            return (chunks if layout is None else layout.encode(chunks))[..., :MOST_DIMENSIONS].float()

        def sample(ids: Tensor) -> Tensor:
            batch = samples.fetch(rows[ids // config.draws].to(samples.device)).to(device)
            numbers = batch.ids * MOST_DRAWS + (ids % config.draws).to(device)
            random = Randomness.from_counts(config.seed, "chunks", numbers)
            return shown(policy.draw(batch.cond, random, Draw(sampler)))

        batch = samples.fetch(rows.to(samples.device)).to(device)
        recorded = torch.where(batch.mask[..., None], shown(batch.x), torch.nan)[:, None]
        drawn = dealt(moments * config.draws, config.batch_size, ranks, sample, like=recorded[:0, 0])
        return torch.cat([recorded, drawn.unflatten(0, (moments, config.draws))], dim=1).cpu().numpy()


def _by_index(errors: dict[str, Tensor], counts: Tensor, executed: slice) -> Table:
    """Mean errors at each index of the horizon. Args: errors: (n, horizon, D) by name; counts: (horizon,) real ones."""
    means = {name: values.mean(-1).sum(0) / counts for name, values in errors.items()}
    table = []
    for index, count in enumerate(counts):
        row = {"index": index, "executed": executed.start <= index < executed.stop, "n": int(count)}
        table.append(row | {name: float(mean[index]) for name, mean in means.items()})
    return table


def _by_dimension(errors: dict[str, Tensor], counts: Tensor, executed: slice, names: Sequence[str]) -> Table:
    """Mean errors of the executed actions in each dimension. Args: names: of the dimensions; empty without names."""
    count = counts[executed].sum()
    means = {name: values[:, executed].sum((0, 1)) / count for name, values in errors.items()}
    table = []
    for number in range(len(next(iter(means.values())))):
        row = {"dimension": number, "name": names[number]} if names else {"dimension": number}
        table.append(row | {name: float(mean[number]) for name, mean in means.items()})
    return table


def _small(frames: np.ndarray) -> np.ndarray:
    """(n, height, width, 3) uint8 of (n, height, width, channels) frames, every n-th pixel of large ones."""
    stride = -(-frames.shape[1] // TALLEST_FRAME)
    rgb = frames[:, ::stride, ::stride, :3]
    return np.broadcast_to(rgb, (*rgb.shape[:3], 3)).astype(np.uint8)


def lower_quartile(error: Tensor, recorded: Tensor, mask: Tensor) -> float:
    """Lower quartile over chunks of the mean absolute error, in standard deviations of the recorded actions.

    Leaves out dimensions with constant recorded actions, and chunks of padding only; NaN if no chunk is left.

    Args:
        error, recorded: (n, H, D); 0 where `mask` (n, H) is False.
    """
    n = mask.sum()
    from_mean = torch.where(mask[..., None], recorded - recorded.sum((0, 1)) / n, 0.0)
    deviation = (from_mean.square().sum((0, 1)) / n).sqrt()
    varies = deviation > CONSTANT * recorded.abs().amax((0, 1))
    distances = (error[..., varies].abs() / deviation[varies]).mean(-1).sum(1) / mask.sum(1)
    distances = distances[mask.any(1)]
    return float(distances.quantile(0.25)) if len(distances) else float("nan")
