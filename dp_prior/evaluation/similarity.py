"""Similarity: compares embeddings sampled from a prior with the images and texts of the whole split.

The five similarities, cosines between embeddings, follow DALLE2-pytorch's prior.md; docs/prior.md explains each with
the values of a run. Noise is fixed for each sample.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import ConfigError
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.split_data import SplitData
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.evaluation.held_out import HeldOutEvaluator, SampledConfig
from dp_prior.evaluation.interval import COSINE, mean_interval, of_difference
from dp_prior.evaluation.measured_models import device_of, evaluation_mode, pick_models, with_steps
from dp_prior.evaluation.measurement import EvaluatorName, Measurement
from dp_prior.evaluation.samples import dealt, evenly_spread, heartbeat, pick_samples, rank_and_size, work_of
from dp_prior.networks.encoders.text import EMBEDDING
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior.tensors.randomness import Randomness
from dp_prior.tracking.metric_names import Metric

RECALL_AT = (1, 5, 10)
ROWS_OF_THE_MEAN = 16_384
"""The mean image is computed from at most this many rows of the training set, evenly spread."""

_OF_DRAWN_IMAGES = (
    ("similarity_with_text", "cosine", None, "Of drawn images with the texts."),
    ("similarity_with_original_image", "cosine", "higher", "Of drawn images with the images of their rows."),
    ("similarity_with_unrelated_caption", "cosine", "lower", "Of drawn images with the texts of other rows."),
    ("difference_from_baseline_similarity", "cosine", None, "Similarity with the text minus the baseline similarity."),
    ("margin_over_<base>", "cosine", "higher", "Similarity with the original image minus that of a baseline."),
    (
        "margin_over_<base>_ci_<end>",
        "cosine",
        "higher",
        "Ends of its 95 % interval over distinct images (Student's t).",
    ),
    ("recall_at_<k>", "share", "higher", "Drawn images whose image is among the k nearest to them."),
)


class SimilarityConfig(SampledConfig):
    """Similarity between a sampled embedding and the image of its text, for each number of sampling steps.

    In addition to DALLE2-pytorch's metrics: recall of the right image among the distinct images of the split; and the
    margins by which the similarity with the original image exceeds two baselines, the text embedding and the mean
    image, with a 95 % interval over distinct images.
    """

    type: Literal["similarity"] = "similarity"

    tasks: ClassVar = ("prior",)

    metrics: ClassVar = (
        Metric("<name>/baseline_similarity", "cosine", None, "Of each text embedding with the image of its row."),
        Metric("<name>/mean_image_similarity", "cosine", None, "Of the mean training image with each image."),
        Metric("<name>/baseline_recall_at_<k>", "share", None, "Texts whose image is among the k nearest to them."),
        *(Metric(f"<name>/<model>/{kind}[steps=<steps>]", *others) for kind, *others in _OF_DRAWN_IMAGES),
    )

    name: EvaluatorName = "similarity"
    """First part of the metrics' names: `similarity/ema/similarity_with_text[steps=64]`."""

    every: Cadence = Cadence(epochs=5)
    """How often to run, besides at the end."""

    models: tuple[str, ...] = Field(default=("ema", "online"), min_length=1)
    """Weights to measure: names of averages in `train.ema`, or `online` for the trained weights themselves."""

    max_samples: int | None = Field(default=None, ge=1)
    """At most this many samples, evenly spread over the split; null for all. Embeddings are held in memory."""

    eval_timesteps: tuple[int, ...] = Field(default=(64,), min_length=1)
    """Numbers of sampling steps to measure with, otherwise using the prior's own sampler."""

    candidates: int | None = Field(default=None, ge=1)
    """Embeddings sampled per text, of which the most similar to the text is kept; null for the prior's setting."""

    def placeholders(self) -> dict[str, Iterable[object]]:
        return {**super().placeholders(), "base": ("text", "mean_image"), "end": ("low", "high"), "k": RECALL_AT}

    def create(self, data: SplitData, output_dir: Path | None = None) -> SimilarityEvaluator:
        """
        Args:
            data: has the parts `train`, `val`, `test` and a `spec`.
            output_dir: where reports go; None for nowhere.

        Raises:
            ConfigError: text embeddings of the images' size are missing, or there are too few samples.
        """
        if data.spec.cond_shapes.get(EMBEDDING) != data.spec.x_shape:
            requirement = f"compares images {data.spec.x_shape} with text embeddings of the same size"
            raise ConfigError(
                "data.text", [f"evaluator {self.name!r} {requirement}; the data have {data.spec.cond_shapes}"]
            )
        samples = pick_samples(data, self.split, self.name, self.data_set)
        if len(samples) < 2:
            problem = f"evaluator {self.name!r} needs an unrelated caption, so 2 samples; found 1"
            raise ConfigError("data.split", [problem])
        return SimilarityEvaluator(self, samples, data.train, output_dir)


class SimilarityEvaluator(HeldOutEvaluator):
    """See `SimilarityConfig`."""

    def __init__(self, config: SimilarityConfig, samples: Samples, train: Samples, output_dir: Path | None):
        super().__init__(config, samples, output_dir)
        self.train = train
        count = None if config.max_samples is None else max(2, config.max_samples)  # for an unrelated caption
        self.ids = evenly_spread(len(samples), count)
        self._mean_image: Tensor | None = None

    def run(self, models: dict[str, nn.Module], ranks: ReducingRanks | None, progress: Progress) -> Measurement:
        """Measure; a collective when there are several ranks."""
        config = self.config
        images, texts = self._originals(ranks)
        gallery, place = torch.unique(images, dim=0, return_inverse=True)  # an image with five captions appears once
        baseline, mean = _cosine(texts, images), _cosine(self._mean(ranks), images)
        values = {"baseline_similarity": baseline, "mean_image_similarity": mean}
        values |= {f"baseline_{name}": hit for name, hit in recalls(texts, gallery, place).items()}
        metrics = {f"{config.name}/{name}": float(value.double().mean()) for name, value in values.items()}
        unrelated = (torch.arange(len(images)) + len(images) // 2) % len(images)
        work, picked = work_of(ranks), pick_models(models, config.models, config.name)
        pairs = [*product(picked.items(), config.eval_timesteps)]
        with work.named(config.name):
            for (name, model), steps in work.parts(pairs):
                with evaluation_mode(model):
                    drawn = self._draw(model, with_steps(model.sampler, steps), ranks)
                original, with_text = _cosine(drawn, images), _cosine(drawn, texts)
                values = {
                    "similarity_with_text": with_text,
                    "similarity_with_original_image": original,
                    "similarity_with_unrelated_caption": _cosine(drawn[unrelated], texts),
                    "difference_from_baseline_similarity": with_text - baseline,
                    **recalls(drawn, gallery, place),
                }
                measures = {kind: float(value.double().mean()) for kind, value in values.items()}
                for base, value in (("text", baseline), ("mean_image", mean)):
                    measures |= margin(f"margin_over_{base}", original - value, place)
                metrics |= {f"{config.name}/{name}/{kind}[steps={steps}]": value for kind, value in measures.items()}
        result = Measurement({name: metrics[name] for name in config.metric_names()})
        return self.report(result, progress, ranks)

    def _originals(self, ranks: ReducingRanks | None) -> tuple[Tensor, Tensor]:
        """(n, D) unit images and texts of the split."""
        batches = []
        for ids in self.ids.split(self.config.batch_size):
            heartbeat(ranks)
            batches.append(self.samples.fetch(ids))
        parts = torch.cat([batch.x for batch in batches]), torch.cat([batch.cond[EMBEDDING] for batch in batches])
        return F.normalize(parts[0], dim=-1), F.normalize(parts[1], dim=-1)

    def _mean(self, ranks: ReducingRanks | None) -> Tensor:
        """(1, D) mean image of the training set."""
        if self._mean_image is None:
            total = torch.zeros((), dtype=torch.float64)
            for ids in evenly_spread(len(self.train), ROWS_OF_THE_MEAN).split(4096):
                heartbeat(ranks)
                total = total + F.normalize(self.train.fetch(ids).x, dim=-1).double().sum(0)
            self._mean_image = F.normalize(total, dim=0).float()[None]
        return self._mean_image

    def _draw(self, model: Any, sampler: SamplerConfig, ranks: ReducingRanks | None) -> Tensor:
        """(n, D): a sampled embedding for every text. Ranks share the work; every rank gets the whole result."""
        config, device, n = self.config, device_of(model), len(self.ids)

        def draw(places: Tensor) -> Tensor:
            batch = self.samples.fetch(self.ids[places]).to(device)
            return model.predict(
                batch.cond[EMBEDDING],
                text_encodings=batch.cond.get("text_encodings"),
                candidates=config.candidates,
                random=Randomness.from_counts(config.seed, "similarity", batch.ids),
                sampler=sampler,
            )

        like = torch.zeros(0, *model.spec.x_shape, device=device)
        share = -(-n // rank_and_size(ranks)[1])  # smaller batches if needed, so that all ranks share the work
        return F.normalize(dealt(n, min(config.batch_size, share), ranks, draw, like).cpu(), dim=-1)


def recalls(queries: Tensor, gallery: Tensor, place: Tensor) -> dict[str, Tensor]:
    """Whether each query's own image is among the first k of the gallery, as `recall_at_k`.

    Args:
        queries: (n, D) unit embeddings.
        gallery: (m, D) distinct unit images.
        place: (n,) index in the gallery of each query's own image. On equal similarity the own image ranks first.
    """
    better = []
    for part, place_of_query in zip(queries.split(1024), place.split(1024), strict=True):
        similarity = part @ gallery.T
        better.append((similarity > similarity.gather(1, place_of_query[:, None])).sum(1))
    rank = torch.cat(better)
    return {f"recall_at_{k}": (rank < k).double() for k in RECALL_AT}


def margin(name: str, differences: Tensor, place: Tensor) -> dict[str, float]:
    """Mean difference and its 95 % interval (Student's t) over distinct images, the rows of an image averaged first."""
    n = int(place.max()) + 1
    sums = torch.zeros(n, dtype=torch.float64).index_add_(0, place, differences.double())
    means = (sums / torch.bincount(place, minlength=n)).numpy()
    low, high = mean_interval(means, limits=of_difference(COSINE))
    return {name: float(np.mean(means)), f"{name}_ci_low": low, f"{name}_ci_high": high}


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a.double() * b.double()).sum(-1)
