"""Data units <-> about [-1, 1] or unit variance, per key. Fitted once on train episodes, saved with the weights.

    normalised = clip((value - offset) * scale)        value = normalised / scale + offset

A dimension that was constant in the data is always unnormalised to the constant. Its scale is arbitrary: dividing a
small prediction error by this scale would move an actuator that never moved in the data.

The offset is subtracted first: a channel that varies by micrometres around a metre stays exact, where a single
multiply-add would round the range away. Always computed in float32, whatever the model is cast to.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Config, family
from dp_prior.tensors.slices import Slice, covering, slice_faults

log = logging.getLogger(__name__)

SMALLEST_RANGE = 1e-12
"""A dimension with a smaller range counts as constant: numerical noise, in any unit in use."""

QUANTITIES = ("scale", "offset", "min", "max", "mean", "std", "q01", "q99")
DERIVED = ("divisor", "clip")


@dataclass(frozen=True)
class Statistics:
    """Statistics of one key over frames. Arrays are float64 of the key's feature shape; std is the population's."""

    count: int
    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    q01: np.ndarray
    q99: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Statistics:
        """Statistics of (count, *feature_shape) values."""
        flat = values.reshape(len(values), -1)
        columns = (flat[:, i].astype(np.float64) for i in range(flat.shape[1]))  # one at a time: bounded memory
        quantities = [(c.min(), c.max(), c.mean(), c.std(), *np.quantile(c, [0.01, 0.99])) for c in columns]
        return cls(len(values), *(row.reshape(values.shape[1:]) for row in np.array(quantities).reshape(-1, 6).T))

    @property
    def varies(self) -> np.ndarray:
        """Bool of the feature shape: which dimensions are not constant for a normalizer of the default settings."""
        return varies_in(self.min, self.max, Limits().range_eps)

    def part(self, start: int, stop: int) -> Statistics:
        """The statistics of some elements of a vector."""
        return Statistics(self.count, *(getattr(self, field.name)[start:stop] for field in fields(self)[1:]))


class NormalizerRecord(Config):
    """How one key is normalised. A subclass has a `type`, `fit`, and `clip`: a field or a class attribute, the bound of
    normalised values, None for no clipping."""

    @abstractmethod
    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        """Scale and offset, float64, of the statistics' shape."""

    def varies(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Which dimensions of the data vary, bool of the shape of their least and greatest values `low` and `high`.

        `unnormalize` returns the constant of the other dimensions."""
        return varies_in(low, high, Limits().range_eps)

    def clips(self, width: int) -> Tensor | None:
        """(width,) float32: the bound of each element where these differ; None if `clip` holds for all."""
        return None


class RangeNormalizer(NormalizerRecord):
    """A normalizer whose field `range_eps` says which dimensions count as constant."""

    def varies(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return varies_in(low, high, self.range_eps)


class Limits(RangeNormalizer):
    """Maps the smallest and largest value seen to -1 and 1."""

    type: Literal["limits"] = "limits"

    range_eps: float = Field(default=1e-6, ge=0, lt=1)
    """A dimension whose range is at most this fraction of its largest magnitude counts as constant and maps to 0."""

    clip: float | None = Field(default=5.0, ge=1)
    """Normalised values are clipped to +- this, which bounds live input far from the data; null does not clip."""

    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        return _fit_range(statistics.min, statistics.max, self.range_eps)


class Quantile(RangeNormalizer):
    """Maps the 1 % and 99 % quantiles to -1 and 1; for data with outliers."""

    type: Literal["quantile"] = "quantile"

    range_eps: float = Field(default=1e-6, ge=0, lt=1)
    """If the quantiles differ by at most this fraction of their magnitude, the limits are used instead."""

    clip: float | None = Field(default=5.0, ge=1)
    """Normalised values are clipped to +- this, outliers of the data included; null does not clip."""

    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        varies = varies_in(statistics.q01, statistics.q99, self.range_eps)
        low = np.where(varies, statistics.q01, statistics.min)
        high = np.where(varies, statistics.q99, statistics.max)
        return _fit_range(low, high, self.range_eps)


class Gaussian(RangeNormalizer):
    """Subtracts the mean and divides by the standard deviation."""

    type: Literal["gaussian"] = "gaussian"

    range_eps: float = Field(default=1e-6, ge=0, lt=1)
    """A dimension whose range is at most this fraction of its largest magnitude counts as constant and maps to 0."""

    clip: float | None = Field(default=10.0, ge=1)
    """Normalised values are clipped to +- this; dimensions with a larger range are scaled to fit. null: no clipping and
    no scaling to fit."""

    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        scale, offset = _fit_range(statistics.min, statistics.max, self.range_eps)
        varies = varies_in(statistics.min, statistics.max, self.range_eps)
        offset = np.where(varies, _float32(statistics.mean), offset)
        reach = np.maximum(statistics.max - offset, offset - statistics.min)
        deviation = np.maximum(statistics.std, 0.0 if self.clip is None else reach / self.clip)
        return np.where(varies, 1 / np.where(varies, deviation, 1), scale), offset


class MaxAbs(RangeNormalizer):
    """Divides by the largest magnitude seen: zero stays zero, and signs are kept; for actions around zero such as
    velocities."""

    type: Literal["max_abs"] = "max_abs"

    range_eps: float = Field(default=1e-6, ge=0, lt=1)
    """A dimension whose range is at most this fraction of its largest magnitude counts as constant and maps to 0."""

    clip: float | None = Field(default=5.0, ge=1)
    """Normalised values are clipped to +- this, which bounds live input far from the data; null does not clip."""

    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        scale, offset = _fit_range(statistics.min, statistics.max, self.range_eps)
        varies = varies_in(statistics.min, statistics.max, self.range_eps)
        magnitude = np.maximum(np.abs(statistics.min), np.abs(statistics.max))
        return np.where(varies, 1 / np.where(varies, magnitude, 1), scale), np.where(varies, 0.0, offset)


class Identity(NormalizerRecord):
    """Changes nothing; for angles that are encoded as cosine and sine, and for data already in [-1, 1]."""

    type: Literal["identity"] = "identity"

    clip: ClassVar[None] = None

    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        return np.ones_like(statistics.min), np.zeros_like(statistics.min)

    def varies(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return np.ones(low.shape, bool)


UniformConfig = family(
    "slice_normalizers",
    *(Limits, Quantile, Gaussian, MaxAbs, Identity),
    needs=("fit", "clip"),
    base=NormalizerRecord,
)


class SliceConfig(Config):
    """How some elements of a vector are normalised."""

    slice: Slice
    """The elements, as [start, stop], stop excluded."""

    normalizer: UniformConfig
    """Their normalizer."""


class Slices(NormalizerRecord):
    """Normalises slices of a vector differently, for example a gripper and a position."""

    type: Literal["slices"] = "slices"

    slices: tuple[SliceConfig, ...] = Field(min_length=1)
    """Slices and their normalizers."""

    others: UniformConfig = Limits()
    """Normalizer of all other elements."""

    clip: ClassVar[None] = None

    def faults(self) -> Iterator[str]:
        yield from slice_faults(part.slice for part in self.slices)

    def parts(self, width: int) -> list[tuple[int, int, UniformConfig]]:
        """Consecutive slices that make up a vector, each with its normalizer."""
        return covering({part.slice: part.normalizer for part in self.slices}, width, self.others)

    def fit(self, statistics: Statistics) -> tuple[np.ndarray, np.ndarray]:
        fitted = [mode.fit(statistics.part(start, stop)) for start, stop, mode in self.parts(len(statistics.min))]
        scale, offset = map(np.concatenate, zip(*fitted, strict=True))
        return scale, offset

    def varies(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        parts = self.parts(len(low))
        return np.concatenate([mode.varies(low[start:stop], high[start:stop]) for start, stop, mode in parts])

    def clips(self, width: int) -> Tensor:
        """(width,) float32: the clipping bound of each element; the largest float for no clipping."""
        unbounded = torch.finfo(torch.float32).max
        parts = self.parts(width)
        return torch.cat([torch.full((stop - start,), mode.clip or unbounded) for start, stop, mode in parts])


NormalizerConfig = family(
    "normalizers",
    *(Limits, Quantile, Gaussian, MaxAbs, Identity, Slices),
    needs=("fit", "clip"),
    base=NormalizerRecord,
)


def _float32(values: np.ndarray) -> np.ndarray:
    """Round to float32, as float64. Offsets are rounded before the scale is computed, so that the scale is exact."""
    return values.astype(np.float32).astype(np.float64)


def varies_in(low: np.ndarray, high: np.ndarray, range_eps: float) -> np.ndarray:
    """Whether each dimension varies: its range exceeds `range_eps` times its magnitude, and numerical noise."""
    magnitude = np.maximum(np.abs(low), np.abs(high))
    return high - low > np.maximum(range_eps * magnitude, SMALLEST_RANGE)


def _fit_range(low: np.ndarray, high: np.ndarray, range_eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Map [low, high] to [-1, 1], and a constant dimension to 0.

    The scale of a constant dimension is a power of two, hence exact, and brings the magnitude to at most 1: a live
    value off by one per cent is normalised to at most 0.01, in any unit.
    """
    offset = _float32((low + high) / 2)
    half = np.maximum(high - offset, offset - low)
    varies = varies_in(low, high, range_eps)
    constant = np.exp2(-np.ceil(np.log2(np.maximum(np.abs(offset), 1.0))))
    return np.where(varies, 1 / np.where(varies, half, 1), constant), offset


class FixedUnits(nn.Module):
    """A normalizer by units that are known: nothing is fitted, and no key has ranges."""

    def fit(self, statistics: Mapping[str, Statistics]) -> None:
        """See `Normalizer.fit`; nothing."""

    def bounds(self, key: str, low: str = "min", high: str = "max") -> None:
        """See `Normalizer.bounds`; none."""


class Normalizer(nn.Module):
    """Normalises each key by fitted or loaded statistics.

    The statistics are buffers named `key/quantity`, always float32, and NaN until `fit` or `load_state_dict`. A key
    without statistics, such as an image, has no buffers and passes through in its own type.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], modes: Mapping[str, NormalizerConfig | None]):
        """Args:
        shapes: feature shape of each key, without batch and time; the diffused variable has the key "x".
        modes: how to normalise each key, None for no normalisation; keys left out get `Limits()`.
        """
        super().__init__()
        unknown = sorted(set(modes) - set(shapes))
        if unknown:
            raise ValueError(f"normalizer modes name {unknown}, which are not among the keys {sorted(shapes)}")
        dotted = sorted(key for key in shapes if "." in key)
        if dotted:
            raise ValueError(f"normalizer keys {dotted} contain a dot; rename them (keys are ours, not the data set's)")
        self._untouched = {key: tuple(shape) for key, shape in shapes.items() if modes.get(key, Limits()) is None}
        self.shapes = {key: tuple(shape) for key, shape in shapes.items() if key not in self._untouched}
        self.modes = {key: modes.get(key, Limits()) for key in self.shapes}
        self.has_statistics = False
        for key, shape in self.shapes.items():
            for quantity in QUANTITIES:
                self.register_buffer(f"{key}/{quantity}", torch.full(shape, math.nan, dtype=torch.float32))
            self.register_buffer(f"{key}/count", torch.zeros((), dtype=torch.int64))
            self.register_buffer(f"{key}/divisor", torch.full(shape, math.nan, dtype=torch.float32), persistent=False)
            clips = self.modes[key].clips(math.prod(shape))
            if clips is not None:
                self.register_buffer(f"{key}/clip", clips, persistent=False)

    def fit(self, statistics: Mapping[str, Statistics]) -> None:
        """Store the statistics of every key and derive scales and offsets.

        Raises:
            ValueError: statistics of a key are missing, not finite or of another shape; names all faults.
        """
        values: dict[str, Tensor] = {}
        problems = [f"key {key!r}: no statistics given" for key in self.shapes if key not in statistics]
        for key in self.shapes.keys() & statistics.keys():
            quantities = statistics[key]
            arrays = {name: np.asarray(getattr(quantities, name), dtype=np.float64) for name in QUANTITIES[2:]}
            if any(array.shape != self.shapes[key] for array in arrays.values()):
                shapes = sorted({array.shape for array in arrays.values()})
                problems.append(f"key {key!r}: statistics have shape {shapes}; expected {self.shapes[key]}")
                continue
            arrays["scale"], arrays["offset"] = self.modes[key].fit(quantities)
            values |= {f"{key}/{name}": torch.tensor(arrays[name], dtype=torch.float32) for name in QUANTITIES}
            values[f"{key}/count"] = torch.tensor(quantities.count)
        problems += self._problems(values)
        if problems:
            raise ValueError("\n".join(["normalizer cannot be fitted:", *(f"  {problem}" for problem in problems)]))
        for name, value in values.items():
            self._buffers[name].copy_(value)
        self._set_divisors()

    def normalize(self, key: str, value: Tensor) -> Tensor:
        """(..., *feature_shape) in data units of any dtype -> float32, normalised; unchanged if the mode is None."""
        if key in self._untouched:
            return value
        self._check(key, value)
        normalized = (value.to(torch.float32) - self._buffers[f"{key}/offset"]) * self._buffers[f"{key}/scale"]
        clip = self._buffers.get(f"{key}/clip", self.modes[key].clip)
        return normalized if clip is None else normalized.clamp(-clip, clip)

    def unnormalize(self, key: str, value: Tensor) -> Tensor:
        """The inverse of `normalize` within the clipping range, float32; constant dimensions give their constant."""
        if key in self._untouched:
            return value
        self._check(key, value)
        return torch.addcdiv(self._buffers[f"{key}/offset"], value.to(torch.float32), self._buffers[f"{key}/divisor"])

    def bounds(self, key: str, low: str = "min", high: str = "max") -> tuple[Tensor, Tensor] | None:
        """Smallest and largest normalised value of the data, of the key's feature shape; equal in constant dimensions.
        None for a key without statistics.

        Args:
            low, high: two of `QUANTITIES`, for other bounds such as quantiles.
        """
        if key in self._untouched:
            return None
        return self.normalize(key, self._buffers[f"{key}/{low}"]), self.normalize(key, self._buffers[f"{key}/{high}"])

    def cuts(self, key: str) -> dict[int, tuple[float, float]]:
        """The farthest value of each dimension that clipping moves by over 5 % of the data's range, and the clipped
        value; empty without statistics."""
        moved: dict[int, tuple[float, float]] = {}
        if key not in self._untouched:
            ends = [self._buffers[f"{key}/{end}"] for end in ("min", "max")]
            for value in ends:
                normalised = Normalizer.normalize(self, key, value)  # of this key alone; a subclass may join keys
                left = Normalizer.unnormalize(self, key, normalised)
                is_cut = (value - left).abs().flatten() > 0.05 * (ends[1] - ends[0]).flatten()
                for place in is_cut.nonzero().flatten().tolist():
                    moved[place] = value.flatten()[place].item(), left.flatten()[place].item()
        return moved

    def _set_divisors(self) -> None:
        """Set the divisors of `unnormalize`: the scale, or infinity where the data were constant."""
        for key, mode in self.modes.items():
            low, high, scale = (
                self._buffers[f"{key}/{name}"].cpu().double().numpy() for name in ("min", "max", "scale")
            )
            varies = mode.varies(low, high)
            divisor = self._buffers[f"{key}/divisor"]
            moved = divisor.isfinite()
            divisor.copy_(torch.from_numpy(np.where(varies, scale, math.inf)))
            stuck = (moved & divisor.isinf()).nonzero().flatten().tolist()
            if key == "x" and stuck:
                log.warning(
                    "dimensions %s of x vary in these data, but were constant in those that the loaded normalizer was "
                    "fitted to; their predictions stay constant",
                    stuck,
                )
        self.has_statistics = True

    def _check(self, key: str, value: Tensor) -> None:
        if not self.has_statistics:
            raise RuntimeError("normalizer has no statistics yet; call fit() or load a checkpoint first")
        shape = self.shapes[key]
        if value.shape[value.dim() - len(shape) :] != shape:
            raise ValueError(f"value of {key!r} has shape {tuple(value.shape)}; its last dimensions should be {shape}")

    def _problems(self, values: Mapping[str, Tensor]) -> list[str]:
        """Every dimension of every statistic that is not finite, and every scale that is not positive."""
        problems = []
        for name, value in values.items():
            key, quantity = name.rsplit("/", 1)
            if quantity == "count":
                continue
            good = torch.isfinite(value) & ((value > 0) if quantity == "scale" else True)
            for index in torch.nonzero(~good).tolist():
                dimension = ", ".join(map(str, index)) or "0"
                number = value[tuple(index)].item()
                problems.append(f"key {key!r}, dimension {dimension}: {quantity} is {number}; expected a finite number")
        return problems

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        problems, loaded = [], {}
        for name, buffer in self._buffers.items():
            key, quantity = name.rsplit("/", 1)
            if quantity in DERIVED:
                continue
            value = state_dict.get(prefix + name)
            if value is None:
                problems.append(f"key {key!r}, all dimensions: {quantity} is missing")
            elif (value.shape, value.dtype) != (buffer.shape, buffer.dtype):
                declared, expected = (f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (value, buffer))
                problems.append(f"key {key!r}, all dimensions: {quantity} is {declared}; expected {expected}")
            else:
                loaded[name] = value
        problems += self._problems(loaded)
        if problems:
            head = f"statistics of {prefix.rstrip('.') or 'the normalizer'} cannot be loaded:"
            raise ValueError("\n".join([head, *(f"  {problem}" for problem in problems)]))
        super()._load_from_state_dict(state_dict, prefix, *args)
        self._set_divisors()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Normalizer:
        """Move the statistics with the module to another device, but never cast them to another precision."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, buffer in before.items():
            if self._buffers[name].dtype != buffer.dtype:
                self._buffers[name] = buffer.to(self._buffers[name].device)
        return self
