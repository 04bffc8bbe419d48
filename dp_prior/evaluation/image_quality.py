"""Images: draws and shows images during training, and measures the distance between their distribution and the data's.

Features are pixels, or embeddings by a model that the user names; the metric's name contains the features' name.
Distances on pixels notice colours, brightness and blur but no content: good enough to spot a broken model, but not to
rank working models. Numbers of papers need their own features: see docs/sampling.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import ConfigError, errors_of
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.draw import Draw
from dp_prior.embedders import Embedder, EmbedderConfig
from dp_prior.embedders.transformers import TransformersConfig
from dp_prior.evaluation.grid import grid, write_png
from dp_prior.evaluation.held_out import HeldOutEvaluator, SampledConfig
from dp_prior.evaluation.measured_models import device_of, evaluation_mode, pick_models, with_steps
from dp_prior.evaluation.measurement import EvaluatorName, Measurement
from dp_prior.evaluation.samples import dealt, evenly_spread, pick_samples, work_of
from dp_prior.tasks import TaskConfig
from dp_prior.tasks.image import ImageTaskConfig
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior.tensors.pixels.picture_files import import_pillow
from dp_prior.tensors.randomness import Randomness
from dp_prior.tracking.metric_names import Metric

PIXELS = "pixels"
NEAREST, PROBED = 3, 8
"""`NEAREST` training images are shown beside each of the first `PROBED` samples."""


def _distance_metrics(kind: str, title: str) -> tuple[Metric, Metric]:
    """The metrics of a distance: of drawn images, and of training images."""
    drawn = f"{title} between drawn images and those of the split, in these features."
    trained = f"{title} between as many training images and those of the split: the value of a perfect model."
    return (
        Metric(f"<name>/<model>/{kind}_<features>[steps=<steps>]", "1", "lower", drawn),
        Metric(f"<name>/{kind}_<features>_of_training_images", "1", None, trained),
    )


class DrawnImagesConfig(SampledConfig):
    """Compares drawn images with the images of the split: Fréchet and kernel distance of their features, for each
    number of sampling steps. Pictures show the first samples, and some samples with their nearest training images.

    Sample i has the conditions of the i-th of the split's images, evenly spread, and noise determined by i.
    """

    type: Literal["images"] = "images"

    tasks: ClassVar = ("image",)

    metrics: ClassVar = (
        *_distance_metrics("frechet", "Fréchet distance"),
        *_distance_metrics("kernel", "Kernel distance, unbiased,"),
    )

    name: EvaluatorName = "images"
    """First part of the metrics' names: `images/ema/kernel_pixels[steps=16]`."""

    every: Cadence = Cadence(epochs=20)
    """How often to run, besides at the end."""

    n_samples: int = Field(default=512, ge=2)
    """Images drawn for each number of steps."""

    max_reference: int = Field(default=4096, ge=2)
    """At most this many images of the split, and of the training set, evenly spread; all features are held in
    memory."""

    features: EmbedderConfig | None = None
    """Model that embeds images, for the distances and the nearest training images; null compares pixels."""

    guidance_scale: float | None = None
    """Replaces the scale of `task.diffusion.guidance`; null keeps the scale."""

    shown: int = Field(default=64, ge=0)
    """Samples in the picture; 0 for no pictures."""

    def placeholders(self) -> dict[str, Iterable[object]]:
        return {**super().placeholders(), "features": [self.features_name]}

    @property
    def downloads(self) -> bool:
        """See `EvaluatorRecord`; the model of the features."""
        return self.features is not None

    @property
    def features_name(self) -> str:
        """Name of the features in names of metrics."""
        if isinstance(self.features, TransformersConfig):
            return Path(self.features.model.partition("@")[0]).name
        return PIXELS if self.features is None else self.features.type

    def task_faults(self, task: TaskConfig) -> Iterator[str]:
        """Guidance needs a task that drops labels in training."""
        yield from super().task_faults(task)
        if self.guidance_scale not in (None, 1) and isinstance(task, ImageTaskConfig) and not task.label_dropout:
            yield (
                f"guidance_scale is {self.guidance_scale:g}, but training never drops the label; set "
                f"task.label_dropout, for example to 0.1"
            )

    def trial(self) -> Self:
        return self.model_copy(update={"n_samples": 4, "max_reference": 4, "shown": min(self.shown, 4)})

    def create(self, data: SplitData, output_dir: Path | None = None) -> DrawnImagesEvaluator:
        """
        Args:
            data: has the parts `train`, `val`, `test`.
            output_dir: where reports and pictures go; None for nowhere.

        Raises:
            ConfigError: there are fewer than two images, or the model of the features cannot be used.
            ImportError: Pillow, which draws pictures, is missing.
        """
        if self.shown and output_dir is not None:
            import_pillow()
        samples = pick_samples(data, self.split, self.name, self.data_set)
        if min(len(samples), len(data.train)) < 2:
            raise ConfigError("data.split", [f"evaluator {self.name!r} compares distributions, so needs 2 images"])
        with errors_of(f"features of evaluator {self.name!r}", FileNotFoundError):
            embedder = None if self.features is None else self.features.create()
            return DrawnImagesEvaluator(self, samples, data.train, output_dir, embedder)


class DrawnImagesEvaluator(HeldOutEvaluator):
    """See `DrawnImagesConfig`."""

    def __init__(
        self,
        config: DrawnImagesConfig,
        samples: Samples,
        train: Samples,
        output_dir: Path | None,
        embedder: Embedder | None = None,
    ):
        super().__init__(config, samples, output_dir)
        self.train, self._embedder = train, embedder
        self._known: dict[str, Tensor] = {}
        probe = samples.fetch(torch.arange(1, device=samples.device)).x.cpu()
        self._none = torch.zeros(0, self._embed(probe).shape[1])

    def run(self, models: dict[str, nn.Module], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """Measure; a collective when there are several ranks."""
        config, result, work = self.config, Measurement({}), work_of(ranks)
        with work.named(f"{config.name}, features of the data"):
            sources = work.parts((("real", self.samples), ("train", self.train)))
            real, train = (self._features(*source, config.max_reference, ranks) for source in sources)
        baseline = train[evenly_spread(len(train), config.n_samples)]
        self._compare(result, f"{config.name}/<kind>_{config.features_name}_of_training_images", baseline, real)
        with work.named(config.name):
            for name, model in work.parts(pick_models(models, config.models, config.name).items()):
                for steps in work.parts(config.eval_timesteps):
                    with evaluation_mode(model):
                        drawn = self._draw(model, steps, ranks)
                    features = self._dealt(len(drawn), lambda ids, drawn=drawn: drawn[ids], ranks)
                    ending = f"{config.features_name}[steps={steps}]"
                    self._compare(result, f"{config.name}/{name}/<kind>_{ending}", features, real)
                    if steps == config.eval_timesteps[0] and config.shown and self.writes(ranks):
                        self._show(result, name, drawn, features, train, progress)
        return self.report(result, progress, ranks)

    def _compare(self, result: Measurement, name: str, features: Tensor, real: Tensor) -> None:
        result.metrics[name.replace("<kind>", "frechet")] = frechet_distance(features, real)
        result.metrics[name.replace("<kind>", "kernel")] = kernel_distance(features, real)

    def _draw(self, model: Any, steps: int, ranks: ReducingRanks | None) -> Tensor:
        """(n, H, W, C) uint8; a rank draws whole batches, so that no bit depends on the number of ranks."""
        config, device = self.config, device_of(model)
        sampler, n = with_steps(model.sampler, steps), config.n_samples

        def draw(ids: Tensor) -> Tensor:
            rows = (ids * len(self.samples) // n).to(self.samples.device)
            cond = self.samples.fetch(rows).to(device).cond
            random = Randomness.from_counts(config.seed, "images", ids.to(device))
            return model.draw(cond, random, Draw(sampler, guidance_scale=config.guidance_scale))

        like = torch.zeros(0, *model.spec.x_shape, dtype=torch.uint8, device=device)
        return dealt(n, config.batch_size, ranks, draw, like).cpu()

    def _features(self, name: str, samples: Samples, count: int, ranks: ReducingRanks | None) -> Tensor:
        """(n, D) features of at most `count` images, evenly spread; computed once."""
        if name not in self._known:
            rows = evenly_spread(len(samples), count)
            self._known[name] = self._dealt(len(rows), lambda ids: _pixels(samples, rows[ids]), ranks)
        return self._known[name]

    def _dealt(self, n: int, images: Callable[[Tensor], Tensor], ranks: ReducingRanks | None) -> Tensor:
        """(n, D) features of `images`: ids (B,) -> (B, H, W, C) uint8. Ranks share the work."""
        return dealt(n, self.config.batch_size, ranks, lambda ids: self._embed(images(ids)), self._none)

    def _embed(self, images: Tensor) -> Tensor:
        """(n, H, W, C) uint8 -> (n, D) float32 features of mean square about 1."""
        if self._embedder is None:
            return images.flatten(1).float() / 127.5 - 1
        features = self._embedder.frames(images.expand(*images.shape[:3], 3).numpy())  # of length 1
        return torch.from_numpy(features) * features.shape[1] ** 0.5

    def _show(
        self, result: Measurement, name: str, drawn: Tensor, features: Tensor, train: Tensor, progress: Progress
    ) -> None:
        """Write a picture of drawn images, and one of each drawn image beside the nearest of the training data.

        Args:
            name: of the model.
            drawn: (n, H, W, C) uint8.
            features, train: (n, D) and (m, D) of drawn images, and of those of the training data.
        """
        config = self.config
        pictures = drawn[: config.shown].numpy()
        neighbours = nearest(features[:PROBED], train)  # (probed, nearest)
        rows = evenly_spread(len(self.train), config.max_reference)[neighbours]
        beside = [_pixels(self.train, rows[:, place]).numpy() for place in range(rows.shape[1])]
        pairs = np.stack([drawn[:PROBED].numpy(), *beside], axis=1)  # (probed, 1 + nearest, H, W, C)
        for kind, picture in (
            ("samples", grid(pictures, max(1, round(len(pictures) ** 0.5)))),
            ("nearest", grid(pairs.reshape(-1, *pairs.shape[2:]), pairs.shape[1], after_first=8)),
        ):
            path = self.file(progress, f"_{name}_{kind}.png")
            with result.writing():
                write_png(path, picture)
                result.media[f"{config.name}/{name}/{kind}"] = path


def nearest(queries: Tensor, gallery: Tensor, count: int = NEAREST) -> Tensor:
    """(n, min(count, m)) int64: for each of (n, D) features the indices of the nearest of (m, D), nearest first."""
    return torch.cdist(queries.double(), gallery.double()).topk(min(count, len(gallery)), largest=False).indices


def _pixels(samples: Samples, rows: Tensor) -> Tensor:
    """(n, H, W, C) uint8 on the CPU."""
    return samples.fetch(rows.to(samples.device)).x.cpu()


def frechet_distance(first: Tensor, second: Tensor) -> float:
    """|m_1 - m_2|^2 + tr(S_1 + S_2 - 2 (S_1 S_2)^(1/2)) of means and covariances (Heusel et al. 2017,
    arXiv:1706.08500).

    Estimated from n vectors it is biased upwards by about a constant over n, so only values with equal n can be
    compared.

    With S = R^T R the trace of the root is the sum of the singular values of R_1 R_2^T. This avoids the root of a
    matrix, and a large covariance matrix from few vectors of many dimensions.

    Args:
        first, second: (n, D) and (m, D), n and m at least 2.
    """
    first, second = first.double(), second.double()
    roots = [_root(features) for features in (first, second)]
    shift = (first.mean(0) - second.mean(0)).square().sum()
    cross = torch.linalg.svdvals(roots[0] @ roots[1].T).sum()
    return float(shift + sum(root.square().sum() for root in roots) - 2 * cross)


def _root(features: Tensor) -> Tensor:
    """R (min(n, D), D) such that R^T R is the covariance."""
    centred = (features - features.mean(0)) / (len(features) - 1) ** 0.5
    return centred if len(centred) <= centred.shape[1] else torch.linalg.qr(centred, mode="r").R


def kernel_distance(first: Tensor, second: Tensor) -> float:
    """Unbiased estimate of the squared maximum mean discrepancy under the kernel (x y / D + 1)^3 (Binkowski et al.
    2018, arXiv:1801.01401); useful with few samples, may be negative.

    Args:
        first, second: (n, D) and (m, D), n and m at least 2; features of mean square about 1.
    """
    first, second = first.double(), second.double()
    n, m = len(first), len(second)
    within = [(_kernel_sum(x, x) - _kernel(x.square().sum(1) / x.shape[1]).sum()) / (len(x) * (len(x) - 1))
              for x in (first, second)]  # fmt: skip
    return float(sum(within) - 2 * _kernel_sum(first, second) / (n * m))


def _kernel_sum(first: Tensor, second: Tensor) -> Tensor:
    return torch.stack([_kernel(part @ second.T / first.shape[1]).sum() for part in first.split(1024)]).sum()


def _kernel(products: Tensor) -> Tensor:
    return (products + 1) ** 3
