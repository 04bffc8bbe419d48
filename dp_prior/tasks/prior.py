"""The prior task: diffuses an image embedding, conditioned on the embedding or the encodings of its text.

Ramesh et al. 2022 (arXiv:2204.06125), section 2.2. In data units an embedding has length 1; inside, `embedding_scale`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dp_prior.config import Change, ConfigError, errors_of
from dp_prior.diffusion.denoiser import Network
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw, drawn_in_batches, rows_of_noise
from dp_prior.diffusion.guidance import BoundsClip, ClipConfig, L2NormClip
from dp_prior.diffusion.objective import X0, ObjectiveConfig
from dp_prior.diffusion.process import DiffusionProcess
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.networks.backbones import PriorBackboneConfig
from dp_prior.networks.backbones.prior_transformer import PriorTransformerConfig
from dp_prior.networks.encoders.text import EMBEDDING, ENCODINGS
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.task_record import TaskRecord
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import FixedUnits
from dp_prior.tensors.randomness import Randomness


class PriorDiffusionConfig(DiffusionConfig):
    """The diffusion process, with the defaults of a prior."""

    start: ClassVar = "noise"  # from zeros all candidates would be the same

    objective: ObjectiveConfig = X0()
    """The prediction target of the network."""

    clip: ClipConfig | None = L2NormClip()
    """Limits the estimates of the embedding during sampling; null for no limit."""


class PriorConfig(TaskRecord):
    """A diffusion prior: an image embedding from a text."""

    type: Literal["prior"] = "prior"

    kind: ClassVar = "prior"

    data_types: ClassVar = ("embeddings",)

    backbone: PriorBackboneConfig = PriorTransformerConfig()
    """The network that predicts from a noisy embedding, its timestep and the text; its `type` defaults to
    prior_transformer."""

    diffusion: PriorDiffusionConfig = PriorDiffusionConfig.model_construct()
    """Noise schedule, objective, loss weighting and timesteps."""

    sampler: Annotated[SamplerConfig, Change("harmless")] = DDIM(steps=64)
    """Sampler of embeddings; `predict` can replace it."""

    embedding_scale: float | None = Field(default=None, gt=0)
    """Length to which embeddings are scaled before unit-variance noise is added; null: the root of the dimension."""

    text_dropout: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Probability of dropping a sample's text, embedding and encodings together, in training; guidance needs it."""

    image_dropout: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of dropping the network's own estimate from a sample in training, with self-conditioning. The noisy
    embedding is never dropped."""

    clamp_start: bool = False
    """Rescale the noise that sampling starts from to the length of an embedding."""

    clamp_training: bool = False
    """Rescale predictions to the length of an embedding before the loss, too; objective x0 only."""

    clamp_end: bool = True
    """Rescale a drawn embedding to length 1."""

    candidates: int = Field(default=2, ge=1)
    """Embeddings drawn for a text, of which the one most similar to the text embedding is returned."""

    @classmethod
    def complete(cls, data: dict[str, Any]) -> None:
        """Fill in the network's type, which files of earlier versions omit."""
        if isinstance(data.get("backbone"), dict):
            data["backbone"].setdefault("type", PriorTransformerConfig().type)

    def faults(self) -> Iterator[str]:
        diffusion = self.diffusion
        for fault in diffusion.sampler_faults(self.sampler):
            yield f"sampler does not fit diffusion.schedule: {fault}"
        for fault in self.backbone.timestep_faults(diffusion.schedule.steps):
            yield f"backbone.{fault}"
        if diffusion.guidance is not None and not self.text_dropout:
            yield (
                "diffusion.guidance needs a model without text, but training never drops the text; "
                "set text_dropout, for example to 0.1"
            )
        if self.image_dropout and not diffusion.self_condition:
            yield (
                "image_dropout drops the network's own estimate, which diffusion.self_condition 0 never passes in; "
                "raise the one or remove the other"
            )
        if self.clamp_training and diffusion.objective.type != "x0":
            yield (
                f"clamp_training needs a network that predicts the embedding; diffusion.objective is "
                f"{diffusion.objective.type!r}, use 'x0'"
            )
        if isinstance(diffusion.clip, BoundsClip):
            yield "diffusion.clip 'bounds' needs ranges, which embeddings have none of; use 'l2norm'"
        if isinstance(diffusion.clip, L2NormClip) and diffusion.clip.radius != self.embedding_scale:
            yield (
                f"diffusion.clip.radius is {diffusion.clip.radius}, but embeddings have length embedding_scale, "
                f"{self.embedding_scale}; give both the same value (null: the root of the dimension)"
            )

    def create(self, spec: Spec) -> DiffusionPrior:
        """An untrained prior for data of this shape.

        Raises:
            ConfigError: a condition is no vector or text, or candidates need a text embedding that the data do not
                have.
        """
        odd = {key: kind for key, kind in spec.kinds.items() if kind != "text"}
        if odd:
            raise ConfigError("task", [f"a prior reads vectors; found {odd}"])
        axes = {EMBEDDING: 1, ENCODINGS: 2}
        if len(spec.x_shape) != 1 or any(len(shape) != axes.get(key, 0) for key, shape in spec.cond_shapes.items()):
            requirement = f"image embeddings (D,) from {EMBEDDING!r} (D,) and {ENCODINGS!r} (n, D)"
            raise ConfigError("task", [f"a prior predicts {requirement}; found {spec.x_shape} and {spec.cond_shapes}"])
        text = spec.cond_shapes.get(EMBEDDING)
        if self.candidates > 1 and text != spec.x_shape:
            finding = (
                "there are none" if text is None else f"these have {text[0]} numbers, an image's {spec.x_shape[0]}"
            )
            requirement = f"task.candidates is {self.candidates}, of which the nearest to the text embedding is kept"
            raise ConfigError("task", [f"{requirement}, but {finding}; use 1"])
        process = DiffusionProcess(self.diffusion)
        scale = math.sqrt(spec.x_shape[0]) if self.embedding_scale is None else self.embedding_scale
        with errors_of("task.backbone"):
            encoder = self.backbone.encoder(spec.cond_shapes, spec.x_shape[0])
            sizes = spec.x_shape, encoder.cond_shape, process.output_factor, process.input_factor
            network = self.backbone.create(*sizes)
        return DiffusionPrior(
            record=self,
            spec=spec,
            normalizer=UnitLength(scale),
            encoder=encoder,
            backbone=network,
            process=process,
            sampler=self.sampler,
            cond_dropout=dict.fromkeys(spec.cond_shapes, self.text_dropout),
        )


class UnitLength(FixedUnits):
    """A prior's normalizer: data units <-> length `scale`. Conditions pass through."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def normalize(self, key: str, value: Tensor) -> Tensor:
        """(B, D) of any length -> length `scale`."""
        value = value.to(torch.float32)
        return self.scale * F.normalize(value, dim=-1) if key == "x" else value

    def unnormalize(self, key: str, value: Tensor) -> Tensor:
        """(B, D) of length `scale` -> length 1."""
        return value.to(torch.float32) / self.scale


class DiffusionPrior(Pretrained, DiffusionModel):
    """Image embeddings from texts."""

    task = "prior"

    def __init__(self, *, record: PriorConfig, **parts: Any):
        super().__init__(**parts)
        self.record = record

    def _repr_html_(self) -> str:
        facts = {
            **{key: f"{shape}" for key, shape in self.spec.cond_shapes.items()},
            "image": f"{self.spec.x_shape}, the best of {self.record.candidates}",
        }
        return self.table("diffusion prior", facts, self.record.backbone.type)

    def encode(self, cond: dict[str, Tensor], random: Randomness | None = None, *, keep: bool = True) -> Tensor:
        """See `DiffusionModel.encode`; embedding and encodings of a sample are dropped together."""
        keep_rows = None
        if not keep:
            keep_rows = {key: torch.zeros(len(value), device=value.device) for key, value in cond.items()}
        elif random is not None:
            keep_rows = dict.fromkeys(cond, random.stream("text").uniform() >= self.record.text_dropout)
        return self.encoder({key: self.normalizer.normalize(key, value) for key, value in cond.items()}, keep_rows)

    def network(self, cond: Tensor, random: Randomness | None = None, *, in_loss: bool = False) -> Network:
        """See `DiffusionModel.network`; drops self-conditioning estimates and clamps predictions in the loss."""
        scale, dim = self.normalizer.scale, self.spec.x_shape[0]
        keep_image = None
        if random is not None and self.record.image_dropout:
            keep_image = (random.stream("image").uniform() >= self.record.image_dropout)[:, None]

        def predict(x_t: Tensor, t: Tensor) -> Tensor:
            if keep_image is not None:
                x_t = torch.cat([x_t[:, :dim], x_t[:, dim:] * keep_image], dim=1)
            output = self.backbone(x_t, t, cond)
            if in_loss and self.record.clamp_training:
                embedding = scale * F.normalize(output[:, :dim].float(), dim=-1)
                output = torch.cat([embedding, output[:, dim:].float()], dim=1)
            return output

        return predict

    def start(self, noise: Tensor) -> Tensor:
        return self.normalizer.scale * F.normalize(noise, dim=-1) if self.record.clamp_start else noise

    def decode_x(self, x: Tensor, cond: dict[str, Tensor]) -> Tensor:
        """(B, D) drawn embeddings, scaled to length 1 if `clamp_end` is set."""
        return F.normalize(x, dim=-1) if self.record.clamp_end else x

    def draw(self, cond: dict[str, Tensor], random: Randomness, how: Draw = AS_CONFIGURED) -> Tensor:
        return self._best(self._checked(cond), self.record.candidates, random, how)

    def predict(
        self,
        text_embed: Tensor | None = None,
        *,
        text_encodings: Tensor | None = None,
        candidates: int | None = None,
        random: Randomness | None = None,
        sampler: SamplerConfig | None = None,
        guidance_scale: float | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Predict image embeddings.

        Args:
            text_embed: (B, D) text embeddings, as the prior was trained on them; a tensor or an array of NumPy.
            text_encodings: (B, n, D) text encodings, zeros where a text is shorter; likewise.
            candidates: embeddings drawn, of which the most similar to `text_embed` is returned; None as configured.
            random: B rows; None for the same noise at every call.
            sampler, guidance_scale: see `Draw`.
            batch_size: most rows drawn at a time: bounds the memory and changes rounding alone; None for all.

        Returns:
            (B, D) float32 of length 1, unless `clamp_end` is false.

        Raises:
            ValueError: a condition is missing, empty, of another shape or not finite, `random` has other rows,
                candidates cannot be compared, batch_size is less than 1, or the prior was trained without dropout of
                the text, which guidance needs.
        """
        cond = self._checked({EMBEDDING: text_embed, ENCODINGS: text_encodings})
        candidates = self.record.candidates if candidates is None else candidates
        if candidates < 1 or (candidates > 1 and self.spec.cond_shapes.get(EMBEDDING) != self.spec.x_shape):
            raise ValueError(
                f"candidates is {candidates}; it is at least 1, and above 1 needs text embeddings of the images' size"
            )
        count = len(next(iter(cond.values())))
        random = rows_of_noise(random, count, next(self.parameters()).device, "texts")
        how = Draw(sampler, guidance_scale=guidance_scale)
        return drawn_in_batches(
            lambda cond, random: self._best(cond, candidates, random, how), cond, random, batch_size
        )

    def _checked(self, texts: Mapping[str, Any]) -> dict[str, Tensor]:
        """Check the conditions, and move them to the device of the prior."""
        cond = {key: torch.as_tensor(value) for key, value in texts.items() if value is not None}
        shapes = {key: tuple(value.shape[1:]) for key, value in cond.items()}
        argument = {EMBEDDING: "text_embed", ENCODINGS: "text_encodings"}
        if shapes != self.spec.cond_shapes:
            expected = {argument[key]: shape for key, shape in self.spec.cond_shapes.items()}
            passed = {argument[key]: shape for key, shape in shapes.items()}
            raise ValueError(f"the prior reads {expected} for each text; found {passed or 'nothing'}")
        counts = {argument[key]: len(value) for key, value in cond.items()}
        if len(set(counts.values())) > 1 or 0 in counts.values():
            raise ValueError(f"found {counts} texts; expected one or more, as many of each")
        for key, value in cond.items():
            bad = ~value.isfinite()
            if bad.any().item():
                row, *element = bad.nonzero()[0].tolist()
                raise ValueError(
                    f"{argument[key]}, row {row}, element {element} is not finite; expected finite numbers"
                )
        device = next(self.parameters()).device
        return {key: value.to(device) for key, value in cond.items()}

    @torch.no_grad()
    def _best(self, cond: dict[str, Tensor], candidates: int, random: Randomness, how: Draw) -> Tensor:
        """Draw `candidates` samples for each text; returns (B, D), the most similar to the text embedding."""
        drawn = [self.sample(cond, random.stream("candidate", index), how) for index in range(candidates)]
        if candidates == 1:
            return drawn[0]
        candidates_drawn = torch.stack(drawn)  # (candidates, B, D)
        nearest = F.cosine_similarity(candidates_drawn, cond[EMBEDDING].float()[None], dim=-1).argmax(0)
        return candidates_drawn[nearest, torch.arange(candidates_drawn.shape[1], device=candidates_drawn.device)]
