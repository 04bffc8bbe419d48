"""`Batch`: the diffused variable (`x`) and its conditions (`cond`). `Spec`: shape and kind of each of its keys.

Nothing below `tasks/` knows more about the data than this file says.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from dp_prior.config import Config, late
from dp_prior.embedders import EmbedderConfig
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.rotations import Layout, RotationSlice
from dp_prior.tensors.slices import slice_faults
from dp_prior_client.onboard.scene import Scene

UNMEASURED = 0.0
"""Metres of a pixel at which the sensor measured nothing, in data and from a robot."""


Fit = late("dp_prior.tensors.pixels.resize:Fit")


class DepthRange(Config):
    """The distances that a policy tells apart, of one observation of kind depth."""

    near: float = Field(ge=0)
    """In metres; what is nearer reads as this."""

    far: float = Field(gt=0)
    """In metres; what is farther reads as this."""

    camera: str | None = None
    """The camera whose pixels are those of the depth; both are cropped alike in training."""

    def faults(self) -> Iterator[str]:
        if self.near >= self.far:
            yield f"near is {self.near:g} and far {self.far:g} metres; expected near below far"

    def scaled(self, metres: Tensor) -> Tensor:
        """Metres of any shape -> [0, 1], and -1 where nothing was measured."""
        share = ((metres - self.near) / (self.far - self.near)).clamp(0, 1)
        return torch.where(metres > UNMEASURED, share, -1.0)

    def metres(self, scaled: Tensor) -> Tensor:
        """The inverse of `scaled` within near and far."""
        return torch.where(scaled < 0, UNMEASURED, self.near + scaled * (self.far - self.near))


Kind = Literal["vector", "image", "depth", "points", "tokens", "label", "text"]
"""vector: numbers with a unit, such as a state; image: pixels (height, width, 1, 3 or 4 channels); depth: metres of
each pixel (height, width, 1), 0 where nothing was measured; points: a cloud (points, 3 or 6), not finite where there is
no point; tokens: numbers of words; label: the number of a class; text: the embedding of a text, such as an
instruction."""

FRAMES: tuple[Kind, ...] = ("image", "depth")
"""Kinds of observations that are frames of a camera, of a fixed height and width."""

SENSED: tuple[Kind, ...] = (*FRAMES, "points")
"""Kinds of sensor readings without statistics: encoders read these in the units of the data."""

NORMALISED: tuple[Kind, ...] = ("vector", "text")
"""Kinds of observations that are normalised by statistics."""

X, LABEL, LOW_RES = "x", "label", "low_res"
"""Keys of the diffused variable, and of a picture's class and reduced copy, where these are conditions."""

DTYPES: dict[Kind, torch.dtype] = {
    "vector": torch.float32,
    "image": torch.uint8,
    "depth": torch.float32,
    "points": torch.float32,
    "tokens": torch.int64,
    "label": torch.int64,
    "text": torch.float32,
}


_LEARNED: dict[str, Any] = {"scenes": {}, "motion": None, "instructions": {}}
"""Fields that describe the content of the training data rather than shapes, with their empty values."""

_OMITTED = ("kinds", "fits", "depths", "embedders", "rotations", "classes", "previous_actions", "fps", "names",
            "bodies", *_LEARNED)  # fmt: skip
"""Fields of a spec that are not written while they are empty."""


class Spec(Config):
    """Shapes and kinds of one sample, without the batch axis. It comes from the data and is saved with the weights."""

    x_shape: tuple[int, ...]
    """Shape of the diffused variable; (horizon, action_dim) for a policy."""

    cond_shapes: dict[str, tuple[int, ...]]
    """Shape of each conditioning input by key; (n_obs_steps, ...) for a policy's observations."""

    kinds: dict[str, Kind] = {}
    """Kind of each conditioning input that is not a vector."""

    fits: dict[str, Fit] = {}
    """How camera frames of any size become those of `cond_shapes`, by the key of an image or of depth."""

    depths: dict[str, DepthRange] = {}
    """Range of each observation of kind depth."""

    embedders: dict[str, EmbedderConfig] = {}
    """Model that embeds texts, by the key of a text; a key that has none is given as embeddings only."""

    rotations: dict[str, tuple[RotationSlice, ...]] = {}
    """Elements of vectors that are rotations, by the key of a conditioning input, or "x"."""

    classes: dict[str, tuple[str, ...]] = {}
    """Names of the classes, in the order of their numbers, by the key of a label."""

    previous_actions: dict[str, tuple[float, ...]] = {}
    """Value at the first step of an episode, before any action, in data units, by the key of an observation that is the
    action of the step before. Agents fill it in."""

    fps: float | None = None
    """Control steps per second of observations and actions; None if nothing says."""

    names: dict[str, tuple[str, ...]] = {}
    """The data set's names of the numbers of a vector, such as joints, in order, by the key of a conditioning input, or
    "x"; a vector whose data set names none has no entry."""

    motion: ActionMotion | None = None
    """How the actions of training moved; None for data that are no actions, and in files of earlier versions."""

    instructions: dict[str, tuple[str, ...]] = {}
    """Texts of training, by the key of a text; a key with too many texts to be listed has no entry."""

    scenes: dict[str, Scene] = {}
    """Summary of each camera's frames in training, with which robots compare theirs; by key of an image or depth."""

    bodies: dict[str, Spec] = {}
    """Of batches of robots of several bodies: the spec of each body by name."""

    def faults(self) -> Iterator[str]:
        for field, kind in (("classes", "label"), ("embedders", "text")):
            odd = sorted(key for key in getattr(self, field) if self.kind(key) != kind)
            if odd:
                yield f"{field} name {odd}, which are not of kind {kind!r}"
        for field in ("kinds", "depths", "fits", "scenes"):
            unknown = sorted(set(getattr(self, field)) - set(self.cond_shapes))
            if unknown:
                yield f"{field} name {unknown}, which are not among the keys {sorted(self.cond_shapes)}"
        yield from self._vector_faults()
        yield from self._motion_faults()
        for key, fit in self.fits.items():
            shape = self.cond_shapes.get(key)
            if shape is not None and (self.kind(key) not in FRAMES or shape[-3:-1] != fit.size):
                yield (
                    f"fits.{key} makes images of size {list(fit.size)}, but {key!r} is of kind {self.kind(key)!r} and "
                    f"shape {shape}"
                )
        for key in self.cond_shapes:
            yield from self._shape_faults(key)

    def _vector_faults(self) -> Iterator[str]:
        """Rotations, names and first values that do not fit their vectors."""
        for key, rotations in self.rotations.items():
            shape = self.feature_shape(key)
            if self.kind(key) != "vector" or len(shape) != 1:
                yield f"rotations.{key}: {key!r} is of kind {self.kind(key)!r} and shape {shape}; expected a vector"
            else:
                slices = [rotation.slice for rotation in rotations]
                yield from (f"rotations.{key}: {fault}" for fault in slice_faults(slices, shape[0]))
        for key, names in self.names.items():
            if (len(names),) != self.feature_shape(key):
                yield f"names.{key} has {len(names)} names, but {key!r} has shape {self.feature_shape(key)}"
        for key, start in self.previous_actions.items():
            shape, action = self.feature_shape(key), self.feature_shape(X)
            if key not in self.cond_shapes or not shape == action == (len(start),):
                yield f"previous_actions.{key} has {len(start)} numbers, {key!r} shape {shape}, an action {action}"

    def _motion_faults(self) -> Iterator[str]:
        """Numbers of `motion` that actions or observations do not have."""
        if self.motion is None:
            return
        if (len(self.motion.low),) != self.feature_shape(X):
            yield f"motion has {len(self.motion.low)} numbers, but an action has shape {self.feature_shape(X)}"
        for key, dimension in filter(None, self.motion.answers):
            shape = self.feature_shape(key) if key in self.cond_shapes else ()
            if len(shape) != 1 or not 0 <= dimension < shape[0]:
                yield f"motion.answers names number {dimension} of {key!r}, which has shape {shape}"

    def _shape_faults(self, key: str) -> Iterator[str]:
        """A shape that does not fit the kind of a conditioning input."""
        kind, shape, has_range = self.kind(key), self.cond_shapes[key], key in self.depths
        if (kind == "depth") != has_range or (has_range and shape[-1:] != (1,)):
            ranges = "a range" if has_range else "no range"
            yield (
                f"{key!r} is of kind {kind!r} and shape {shape}, with {ranges} in depths; depth has one channel, and a "
                f"range"
            )
        if kind == "points" and shape[-1:] not in ((3,), (6,)):
            yield f"{key!r} is a point cloud of shape {shape}; expected (..., points, 3 or 6)"
        if kind == "image" and (len(shape) < 3 or shape[-1] not in (1, 3, 4)):
            yield f"{key!r} is an image of shape {shape}; expected (..., height, width, 1, 3 or 4)"

    @model_serializer(mode="wrap")
    def _leave_out_vectors(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`spec.json` of vectors alone is the one of versions that knew nothing else."""
        return {name: value for name, value in write(self).items() if name not in _OMITTED or value}

    def without_content(self) -> Spec:
        """Leave out the content of the training data, which differs between data sets of equal shapes."""
        return self.model_copy(update=_LEARNED)

    @property
    def cameras(self) -> list[str]:
        """The observations that are camera frames, in alphabetical order."""
        return sorted(key for key in self.cond_shapes if self.kind(key) == "image")

    @property
    def texts(self) -> list[str]:
        """The observations that are embedded texts."""
        return [key for key in self.cond_shapes if self.kind(key) == "text"]

    def kind(self, key: str) -> Kind:
        """Kind of a conditioning input."""
        return self.kinds.get(key, "vector")

    def feature_shape(self, key: str) -> tuple[int, ...]:
        """Shape of a conditioning input, or of "x", without the axis of time; () for an unknown key."""
        return (self.x_shape if key == "x" else self.cond_shapes.get(key, ()))[1:]

    def layout(self, key: str) -> Layout | None:
        """Where the rotations of a key lie, or of "x"; None for a key without any."""
        rotations = self.rotations.get(key)
        return Layout(*self.feature_shape(key), rotations) if rotations else None

    def names_inside(self, key: str) -> tuple[str, ...]:
        """Names of the numbers of a vector, or of "x", with rotations as 6D; () for a key without names."""
        names, layout = self.names.get(key, ()), self.layout(key)
        return tuple(layout.names(names)) if names and layout is not None else names

    def dtype(self, key: str) -> torch.dtype:
        """Type of the values of a conditioning input, which follows from its kind."""
        return DTYPES[self.kind(key)]


@dataclass(frozen=True)
class Batch:
    """B samples on one device, in data units until the model normalises them.

    Attributes:
        x: (B, *x_shape) float32; uint8 for images.
        cond: (B, *shape) by key, in the type of its kind, see `Spec.dtype`.
        mask: (B, *x_shape[:-1]) bool, True where x is real rather than padding; (B, horizon) for a policy.
        ids: (B,) int64 index of each sample in its data set; the key of random numbers that must not depend on order.
        positions: (B,) int64 position of each sample in the order of training; None outside training.
        denominator: () float32, divisor of a mean over this batch; None for the number of valid positions in `mask`.
            Micro-batches of a global batch share the divisor, so that their losses add up to the global mean.
    """

    x: Tensor
    cond: dict[str, Tensor]
    mask: Tensor
    ids: Tensor
    positions: Tensor | None = None
    denominator: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        moved = {name: value.to(device, non_blocking=True) for name, value in tensors.items()}
        cond = {key: value.to(device, non_blocking=True) for key, value in self.cond.items()}
        return replace(self, cond=cond, **moved)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """The samples at `rows`; the denominator stays."""
        cond = {key: value[rows] for key, value in self.cond.items()}
        positions = None if self.positions is None else self.positions[rows]
        return replace(self, x=self.x[rows], cond=cond, mask=self.mask[rows], ids=self.ids[rows], positions=positions)
