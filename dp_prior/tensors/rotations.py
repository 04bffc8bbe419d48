"""The forms in which robots write rotations, and where the rotations of a vector lie.

Inside a policy rotations are 6D; `six_d` converts them, and is imported for vectors that have a rotation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import AfterValidator
from torch import Tensor

from dp_prior.config import Config
from dp_prior.tensors.slices import Slice, covering
from dp_prior_client.onboard.rotation_check import WIDTHS

_AXES = [*itertools.product("xyz", repeat=3), *itertools.product("XYZ", repeat=3)]
ORDERS = ["".join(axes) for axes in _AXES if axes[0] != axes[1] != axes[2]]
FORMS = {**WIDTHS, **{f"euler_{order}{unit}": 3 for order, unit in itertools.product(ORDERS, ("", "_degrees"))}}
"""Length of every form; angles in radians unless the name says degrees."""


def _known_form(form: str) -> str:
    if form not in FORMS:
        raise ValueError(
            f"form {form!r} is not known; expected {', '.join(WIDTHS)}, or euler_ and the axes in their order: small "
            f"letters turn about fixed axes (euler_xyz, ROS's roll pitch yaw), capitals about turned ones (euler_ZYX); "
            f"in degrees euler_xyz_degrees"
        )
    return form


class RotationSlice(Config):
    """Elements of a vector that are a rotation."""

    slice: Slice
    """The elements, as [start, stop], stop excluded."""

    form: Annotated[str, AfterValidator(_known_form)]
    """Form of the rotation: axis_angle (length in radians), quaternion_xyzw or quaternion_wxyz, matrix (row by row),
    6d_columns (the first two columns), 6d_rows (the first two rows, as in Diffusion Policy and UMI), or Euler angles
    such as euler_xyz, see `dp_prior.tensors.rotations`."""

    def faults(self) -> Iterator[str]:
        length, width = self.slice[1] - self.slice[0], FORMS[self.form]
        if length != width:
            yield f"slice {list(self.slice)} has {length} elements, but a rotation of form {self.form!r} has {width}"


@dataclass(frozen=True)
class Layout:
    """A vector whose rotations become 6D inside the policy; other elements, and the order, are unchanged."""

    width: int
    rotations: tuple[RotationSlice, ...] = ()

    @property
    def parts(self) -> list[tuple[int, int, str | None]]:
        """Start, stop and form of consecutive parts that make up the vector; the form is None between rotations."""
        return covering({rotation.slice: rotation.form for rotation in self.rotations}, self.width, None)

    def inside(self, slice: tuple[int, int]) -> tuple[int, int]:
        """The position inside the policy of a slice that cuts no rotation."""
        shifts = [(stop, 6 - (stop - start)) for start, stop, form in self.parts if form]
        start, stop = slice
        return (
            start + sum(shift for before, shift in shifts if before <= start),
            stop + sum(shift for before, shift in shifts if before <= stop),
        )

    @property
    def width_inside(self) -> int:
        """Number of elements inside the policy."""
        return self.inside((0, self.width))[1]

    def names(self, names: Sequence[str]) -> list[str]:
        """Names of the elements inside the policy, by those of the vector: 6D numbers are counted."""
        inside: list[str] = []
        for start, stop, form in self.parts:
            inside += names[start:stop] if form is None else [f"{names[start]} 6D {number}" for number in range(6)]
        return inside

    def encode(self, value: Tensor) -> Tensor:
        """(..., width) -> (..., width_inside) float32."""
        if not self.rotations:
            return value
        from dp_prior.tensors.six_d import to_6d

        value = value.to(torch.float32)
        parts = [(value[..., start:stop], form) for start, stop, form in self.parts]
        return torch.cat([part if form is None else to_6d(part, form) for part, form in parts], dim=-1)

    def decode(self, value: Tensor) -> Tensor:
        """(..., width_inside) -> (..., width); 6D numbers give the nearest rotation by Gram-Schmidt."""
        if not self.rotations:
            return value
        from dp_prior.tensors.six_d import from_6d

        forms = [form for _, _, form in self.parts]
        parts = value.split([6 if form else stop - start for start, stop, form in self.parts], dim=-1)
        pairs = zip(parts, forms, strict=True)
        return torch.cat([part if form is None else from_6d(part, form) for part, form in pairs], dim=-1)

    def weights(self, value: Tensor) -> Tensor:
        """(..., width) weights or bool -> (..., width_inside); all 6D numbers get the least weight of the rotation."""
        parts = [(value[..., start:stop], form) for start, stop, form in self.parts]
        return torch.cat(
            [part if form is None else part.amin(-1, keepdim=True).expand(*part.shape[:-1], 6) for part, form in parts],
            dim=-1,
        )
