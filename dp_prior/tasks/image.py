"""The image task: diffuses an image (H, W, C), given its label, an image of lower resolution, both or nothing.

In data units pixels are 0 to 255, inside -1 to 1. Likelihoods are those of 8-bit values: bits per dimension as
published for images.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Change, ConfigError, errors_of
from dp_prior.diffusion.denoiser import Network
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw, drawn_in_batches, rows_of_noise
from dp_prior.diffusion.guidance import BoundsClip
from dp_prior.diffusion.process import DiffusionProcess, Loss
from dp_prior.diffusion.process_config import DiffusionConfig
from dp_prior.diffusion.sampler import DDIM, SamplerConfig
from dp_prior.networks.backbones import ImageBackboneConfig
from dp_prior.networks.backbones.unet2d import UNet2DConfig
from dp_prior.tasks.model import DiffusionModel
from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tasks.task_record import TaskRecord
from dp_prior.tensors.batch import LABEL, LOW_RES, Batch, Spec
from dp_prior.tensors.normalizer import FixedUnits
from dp_prior.tensors.randomness import Randomness


class ImageDiffusionConfig(DiffusionConfig):
    """The diffusion process, with the defaults of images."""

    data_step: ClassVar = 2 / 255

    horizon_weights: ClassVar = None


class ImageTaskConfig(TaskRecord):
    """Diffusion of images."""

    type: Literal["image"] = "image"

    kind: ClassVar = "image"

    data_types: ClassVar = ("images",)

    backbone: ImageBackboneConfig = UNet2DConfig.model_construct()
    """The network that predicts from a noisy image, its timestep and the conditions."""

    diffusion: ImageDiffusionConfig = ImageDiffusionConfig.model_construct()
    """Noise schedule, objective, loss weighting and timesteps."""

    sampler: Annotated[SamplerConfig, Change("harmless")] = DDIM(steps=50)
    """Sampler of images; `predict` can replace it."""

    label_dropout: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of dropping a sample's label in training; guidance needs it."""

    flip: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of mirroring a sample left to right in training, with its image of lower resolution."""

    def faults(self) -> Iterator[str]:
        diffusion = self.diffusion
        for fault in diffusion.sampler_faults(self.sampler):
            yield f"sampler does not fit diffusion.schedule: {fault}"
        if diffusion.guidance is not None and not self.label_dropout:
            yield (
                "diffusion.guidance needs a model without label, but training never drops the label; set "
                "label_dropout, for example to 0.1"
            )
        if isinstance(diffusion.clip, BoundsClip):
            yield "diffusion.clip 'bounds' needs ranges of the data, but those of pixels are -1 to 1; use 'fixed'"

    def create(self, spec: Spec) -> ImageDiffusion:
        """An untrained model of images of this shape.

        Raises:
            ConfigError: the samples are no images, have conditions of other kinds, or the network does not fit them.
        """
        problems = list(self._spec_faults(spec))
        if problems:
            raise ConfigError("task", problems)
        process, encoder = DiffusionProcess(self.diffusion), ImageConditions(spec, self.backbone.cond_dim)
        input_factor = process.input_factor + (LOW_RES in spec.cond_shapes)
        with errors_of("task.backbone"):
            network = self.backbone.create(spec.x_shape, encoder.cond_shape, process.output_factor, input_factor)
        return ImageDiffusion(
            record=self,
            spec=spec,
            normalizer=PixelRange(),
            encoder=encoder,
            backbone=network,
            process=process,
            sampler=self.sampler,
            cond_dropout={LABEL: self.label_dropout} if LABEL in spec.cond_shapes else {},
        )

    def _spec_faults(self, spec: Spec) -> Iterator[str]:
        if len(spec.x_shape) != 3:
            yield f"task 'image' diffuses images (height, width, channels); these data have shape {spec.x_shape}"
        kinds = {LABEL: "label", LOW_RES: "image"}
        odd = sorted(key for key in spec.cond_shapes if spec.kind(key) != kinds.get(key))
        if odd:
            yield f"task 'image' is conditioned on a label and an image of lower resolution; these data have {odd}"
        if LABEL not in spec.cond_shapes and (self.label_dropout or self.diffusion.guidance is not None):
            yield "task.label_dropout and task.diffusion.guidance need labels, which are not read; set data.labels"


class PixelRange(FixedUnits):
    """The normalizer of images: pixels 0 to 255 <-> -1 to 1; labels pass through."""

    def normalize(self, key: str, value: Tensor) -> Tensor:
        """uint8 or float, of any shape -> float32."""
        return value if key == LABEL else value.to(torch.float32) / 127.5 - 1

    def unnormalize(self, key: str, value: Tensor) -> Tensor:
        """The inverse, float32."""
        return (value.to(torch.float32) + 1) * 127.5


class ImageConditions(nn.Module):
    """Conditions of an image, packed into one tensor: the token of the label, and the image of lower resolution."""

    def __init__(self, spec: Spec, dim: int):
        super().__init__()
        self.label = LabelToken(len(spec.classes[LABEL]), dim) if LABEL in spec.cond_shapes else None
        self.low_res = spec.cond_shapes.get(LOW_RES)
        self.size = spec.x_shape[:2]
        self.cond_shape = (0, dim) if self.label is None else self.label.cond_shape
        """(N, D): tokens for the network, and their size."""

    def forward(
        self, cond: Mapping[str, Tensor], keep: Mapping[str, Tensor] | None = None, random: Randomness | None = None
    ) -> Tensor:
        """Normalised conditions by key -> (B, D + h * w * C); (0,) for a model without conditions."""
        parts = []
        if self.label is not None:
            parts.append(self.label(cond[LABEL], None if keep is None else keep[LABEL])[:, 0])
        if self.low_res is not None:
            parts.append(cond[LOW_RES].flatten(1))
        return torch.cat(parts, dim=1) if parts else torch.zeros(0)

    def unpack(self, packed: Tensor, x_t: Tensor) -> tuple[Tensor, Tensor | None]:
        """Unpack the result of `forward`: (B, N, D) tokens, and (B, H, W, C) the enlarged image of lower resolution."""
        count, dim = self.cond_shape
        tokens = packed[:, None, :dim] if count else x_t.new_zeros(len(x_t), 0, dim)
        if self.low_res is None:
            return tokens, None
        low_res = packed[:, count * dim :].view(len(packed), *self.low_res).movedim(-1, 1)
        return tokens, F.interpolate(low_res, self.size, mode="bilinear", align_corners=False).movedim(1, -1)


class ImageDiffusion(Pretrained, DiffusionModel):
    """Images, from labels or nothing."""

    task = "image"

    def __init__(self, *, record: ImageTaskConfig, **parts: Any):
        super().__init__(**parts)
        self.record = record

    def _repr_html_(self) -> str:
        facts = {key: f"{self.spec.kind(key)} {shape}" for key, shape in self.spec.cond_shapes.items()}
        facts |= {key: f"{len(names):,} classes" for key, names in self.spec.classes.items()}
        facts["image"] = f"{self.spec.x_shape}"
        return self.table("diffusion of images", facts, self.record.backbone.type)

    def forward(self, batch: Batch, random: Randomness, self_condition: bool = True) -> Loss:
        """See `DiffusionModel.forward`; in training some samples are mirrored."""
        if self.training and self.record.flip:
            batch = mirrored(batch, random.stream("flip").uniform() < self.record.flip)
        return super().forward(batch, random, self_condition)

    def network(self, cond: Tensor, random: Randomness | None = None, *, in_loss: bool = False) -> Network:
        """See `DiffusionModel.network`; an image of lower resolution is enlarged and joined to x_t along channels."""

        def predict(x_t: Tensor, t: Tensor) -> Tensor:
            tokens, low_res = self.encoder.unpack(cond, x_t)
            return self.backbone(x_t if low_res is None else torch.cat([x_t, low_res.to(x_t)], dim=-1), t, tokens)

        return predict

    @property
    def guidance_keys(self) -> tuple[str, ...]:
        """See `DiffusionModel.guidance_keys`; both sides of guidance are given the image of lower resolution."""
        return tuple(key for key in self.spec.cond_shapes if key == LABEL)

    def draw(self, cond: dict[str, Tensor], random: Randomness, how: Draw = AS_CONFIGURED) -> Tensor:
        return self.sample(cond, random, how).round().clamp(0, 255).to(torch.uint8)

    def predict(
        self,
        labels: int | Sequence[int | str] | Tensor,
        *,
        low_res: Tensor | None = None,
        random: Randomness | None = None,
        sampler: SamplerConfig | None = None,
        guidance_scale: float | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Draw images.

        Args:
            labels: of B images, the name or the number of a class for each; without labels in the data the number B.
            low_res: (B, h, w, C) uint8, for a model that enlarges images; a tensor or an array of NumPy.
            random: B rows; None for the same noise at every call.
            sampler, guidance_scale: see `Draw`.
            batch_size: most rows drawn at a time: bounds the memory and changes rounding alone; None for all.

        Returns:
            (B, H, W, C) uint8.

        Raises:
            ValueError: no image is asked for, a label is unknown, a condition is missing, superfluous or of another
                shape, `random` has other rows, batch_size is less than 1, or the model was trained without dropout of
                the label, which guidance needs.
        """
        device = next(self.parameters()).device
        labels = labels.tolist() if isinstance(labels, Tensor) else labels
        count = int(labels) if isinstance(labels, Integral) else len(labels)
        if count < 1:
            raise ValueError(f"found {count} images to draw; expected 1 or more")
        cond = self._given(labels, None if low_res is None else torch.as_tensor(low_res), count)
        random = rows_of_noise(random, count, device, "images")
        cond = {key: value.to(device) for key, value in cond.items()}
        how = Draw(sampler, guidance_scale=guidance_scale)
        return drawn_in_batches(lambda cond, random: self.draw(cond, random, how), cond, random, batch_size)

    def _given(self, labels: int | Sequence[int | str], low_res: Tensor | None, count: int) -> dict[str, Tensor]:
        """The conditions of `count` images, checked."""
        cond, shape = {}, self.spec.cond_shapes.get(LOW_RES)
        is_count = isinstance(labels, Integral)
        if is_count == (LABEL in self.spec.cond_shapes):
            expected = "labels, one for each image" if is_count else "the number of images: it knows no labels"
            raise ValueError(f"the model expects {expected}; found {labels!r}")
        if not is_count:
            cond[LABEL] = self._numbers(labels)
        if (low_res is None) != (shape is None) or (
            low_res is not None and (low_res.shape[1:] != shape or low_res.dtype != torch.uint8)
        ):
            finding = "none" if low_res is None else f"{low_res.dtype} of shape {tuple(low_res.shape)}"
            expected = (
                "no low_res" if shape is None else f"low_res of uint8 and shape (B, {', '.join(map(str, shape))})"
            )
            raise ValueError(f"the model expects {expected}; found {finding}")
        if low_res is not None:
            if len(low_res) != count:
                raise ValueError(f"found {len(low_res)} low_res images for {count} to draw; expected one for each")
            cond[LOW_RES] = low_res
        return cond

    def _numbers(self, labels: Sequence[int | str]) -> Tensor:
        """(B,) int64 numbers of classes."""
        classes = self.spec.classes[LABEL]
        number = {name: index for index, name in enumerate(classes)}
        numbers = [number.get(label) if isinstance(label, str) else label for label in labels]
        for label, index in zip(labels, numbers, strict=True):
            if not (isinstance(index, Integral) and 0 <= index < len(classes)):
                choices = f"0 to {len(classes) - 1}, or a name of {classes[:20]}"
                raise ValueError(f"unknown label {label!r}; expected {choices}")
        return torch.tensor(numbers, dtype=torch.int64)


def mirrored(batch: Batch, flipped: Tensor) -> Batch:
    """The batch with some samples mirrored left to right; flipped is (B,) bool."""
    cond = dict(batch.cond)
    if LOW_RES in cond:
        cond[LOW_RES] = _mirrored(cond[LOW_RES], flipped)
    return replace(batch, x=_mirrored(batch.x, flipped), cond=cond)


def _mirrored(images: Tensor, flipped: Tensor) -> Tensor:
    return torch.where(flipped[:, None, None, None], images.flip(2), images)


class LabelToken(nn.Module):
    """A learned token for each class, and one for a dropped label."""

    def __init__(self, n_classes: int, dim: int):
        super().__init__()
        self.tokens = nn.Embedding(n_classes + 1, dim)
        self.n_classes = n_classes
        self.cond_shape = (1, dim)
        """(N, D): one token, and its size."""

    def forward(self, label: Tensor, keep: Tensor | None = None) -> Tensor:
        """(B,) int64 -> (B, 1, D).

        Args:
            keep: (B,) 1 to keep a sample's label, 0 to replace it by the token for a dropped label; None keeps all.
        """
        number = label if keep is None else torch.where(keep.bool(), label, self.n_classes)
        return self.tokens(number)[:, None]
