"""Actions and observations as the policy learns them, and back: rotations as 6D, actions relative to the robot.

Absolute targets mostly repeat the robot's position, which the observation already contains. Relative targets look alike
all over the workspace and need fewer demonstrations (Chi et al. 2024, UMI, arXiv:2402.10329, section IV-B).

    data units -> rotations as 6D -> relative to the newest observation -> normalizer

Data, predictions, prefixes and everything else outside a policy are in data units, absolute.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config
from dp_prior.tensors.batch import Spec, X
from dp_prior.tensors.rotations import FORMS, Layout
from dp_prior.tensors.slices import Slice, slice_faults

SUSPICIOUS_RADIANS = 0.5
"""Radians between an action and the observation of its step; teleoperated arms follow within a few hundredths."""


class ReferenceConfig(Config):
    """Elements of the action, and the elements of an observation to which these are relative. Both in data units."""

    action: Slice
    """Elements of the action, as [start, stop], stop excluded."""

    key: str
    """The observation."""

    slice: Slice | None = None
    """Elements of the observation; null takes all."""


class OffsetArm(ReferenceConfig):
    """Joints, or a position, as offsets from their newest observed value: delta actions, as in openpi."""

    type: Literal["offset"] = "offset"

    @property
    def references(self) -> tuple[ReferenceConfig, ...]:
        """What its actions are relative to."""
        return (self,)


class PoseArm(Config):
    """A pose relative to the newest observed pose, in the observed frame: inverse(T_observed) T_action, as in UMI."""

    type: Literal["pose"] = "pose"

    position: ReferenceConfig
    """The three numbers of the position."""

    rotation: ReferenceConfig
    """A rotation of the action and a rotation of the observation, both listed under `rotations` in `data`; forms may
    differ."""

    observed: Literal["absolute", "relative"] = "absolute"
    """relative: observed poses are also expressed relative to the newest observed pose, so that the policy knows only
    how the robot moved, not where the robot is. All other observations are unchanged."""

    @property
    def references(self) -> tuple[ReferenceConfig, ...]:
        """What its actions are relative to."""
        return self.position, self.rotation


ArmConfig = Annotated[OffsetArm | PoseArm, Field(discriminator="type")]


def arm_keys(arms: Iterable[ArmConfig]) -> set[str]:
    """Observations that actions are relative to."""
    return {reference.key for reference in itertools.chain.from_iterable(arm.references for arm in arms)}


def arm_faults(arms: Iterable[ArmConfig], spec: Spec) -> Iterator[str]:
    """Reasons why the data do not fit these arms."""
    changed: dict[str, list[tuple[int, int]]] = {}
    for index, arm in enumerate(arms):
        names = ("position", "rotation") if isinstance(arm, PoseArm) else ("",)
        for name, reference in zip(names, arm.references, strict=True):
            where = f"task.arms.{index}.{name}".rstrip(".")
            shape = spec.feature_shape(reference.key)
            if len(shape) != 1 or reference.key == X or spec.kind(reference.key) != "vector":
                finding = "the data do not have"
                if shape:
                    finding = f"is of kind {spec.kind(reference.key)!r} and shape {shape}"
                known_keys = sorted(spec.cond_shapes)
                yield f"{where}.key is {reference.key!r}, which {finding}; the observations are {known_keys}"
                continue
            slices = {X: reference.action, reference.key: reference.slice or (0, *shape)}
            faults = []
            for key, bounds in slices.items():
                outside = slice_faults([bounds], *spec.feature_shape(key))
                faults += [f"{where}: {fault} of {_called(key)}" for fault in outside]
            yield from faults or _form_faults(where, name, slices, spec)
            is_seen_relative = isinstance(arm, PoseArm) and arm.observed == "relative"
            for key in (X, reference.key) if is_seen_relative else (X,):
                changed.setdefault(key, []).append(slices[key])
    for key, slices in changed.items():
        yield from (f"task.arms: {fault} in {_called(key)}; name each once" for fault in slice_faults(slices))


def _form_faults(where: str, name: str, slices: dict[str, tuple[int, int]], spec: Spec) -> Iterator[str]:
    """Slices of the wrong width, rotations that `data` does not list, and positions that overlap listed rotations."""
    widths = [stop - start for start, stop in slices.values()]
    if name == "position" and widths != [3, 3]:
        yield f"{where}: slices {[list(bounds) for bounds in slices.values()]} have {widths} elements; a position has 3"
    if not name and widths[0] != widths[1]:
        yield f"{where}: slices {[list(bounds) for bounds in slices.values()]} have {widths} elements; expected as many"
    for key, (start, stop) in slices.items():
        label = _called(key)
        rotations = [bounds.slice for bounds in spec.rotations.get(key, ())]
        if name == "rotation" and (start, stop) not in rotations:
            yield (
                f"{where}: {label}.rotations does not have the slice {[start, stop]}, but "
                f"{list(map(list, rotations))}; "
                f'add {{"slice": {[start, stop]}, "form": ...}} there'
            )
        cut = [bounds for bounds in rotations if name != "rotation" and bounds[0] < stop and start < bounds[1]]
        if cut:
            yield f"{where}: slice {[start, stop]} of {label} overlaps the rotation {list(cut[0])}; leave it out"


def _called(key: str) -> str:
    return "data.action" if key == X else f"data.obs.{key}"


class Transforms:
    """A pair of inverse maps between data units and the normalizer's input, given the observations of a sample.

    Attributes:
        layouts: of each vector with one axis, by key.
        keys: vectors that `encode_obs` changes.
        relative: keys, or "x", that the policy sees relative to the newest observation.
        references: observations that actions are relative to.
        changes_x: whether `encode` changes actions.
    """

    def __init__(self, spec: Spec, arms: tuple[ArmConfig, ...], newest: int):
        """Args: newest: index of the newest observation, not the last if a task also diffuses later observations."""
        self._spec, self._arms, self._newest = spec, arms, newest
        self._relative = [arm for arm in arms if isinstance(arm, PoseArm) and arm.observed == "relative"]
        self.relative = arm_keys(self._relative) | ({X} if arms else set())
        shapes = {key: spec.feature_shape(key) for key in (X, *spec.cond_shapes) if spec.kind(key) == "vector"}
        self.layouts = {
            key: Layout(*shape, spec.rotations.get(key, ())) for key, shape in shapes.items() if len(shape) == 1
        }
        self.keys = {*spec.rotations, *self.relative} - {X}
        self.references = arm_keys(arms)
        self.changes_x = bool(arms) or X in spec.rotations

    def shape(self, key: str) -> tuple[int, ...]:
        """Feature shape of a key, as the normalizer sees it."""
        return (self.layouts[key].width_inside,) if key in self.layouts else self._spec.feature_shape(key)

    def encode_obs(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """(B, n, *shape) by key -> (B, n, *shape(key)); depth is scaled, see `DepthRange`, and other keys than
        `self.keys` are passed on unchanged."""
        encoded = {key: self.layouts[key].encode(obs[key]) for key in self.keys}
        absolute = dict(encoded)
        for arm in self._relative:
            for reference, *origin in self._origins(arm, absolute):
                place = self._place(reference)
                encoded[reference.key] = _replaced(encoded[reference.key], place, _into, origin)
        depths = {key: depth.scaled(obs[key]) for key, depth in self._spec.depths.items() if key in obs}
        return {**obs, **encoded, **depths}

    def encode(self, actions: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """(B, H, A) actions -> (B, H, *shape("x")); an isometry of positions and of the columns of rotations."""
        return self._moved(self.layouts[X].encode(actions), obs, _into) if self.changes_x else actions

    def decode(self, x: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """The inverse of `encode`."""
        return self.layouts[X].decode(self._moved(x, obs, _out_of)) if self.changes_x else x

    def weights(self, weights: Tensor) -> Tensor:
        """(B, H, A) weights, or bool, of actions -> weights of encoded actions. The numbers of a position or rotation
        are mixed by turning, so all get the least of their weights."""
        if not self.changes_x:
            return weights
        for arm in self._arms:
            if isinstance(arm, PoseArm):
                weights = _replaced(weights, arm.position.action, _least)
        return self.layouts[X].weights(weights)

    def form_faults(self, actions: Tensor, obs: dict[str, Tensor]) -> Iterator[str]:
        """Rotations whose form is probably wrong: actions turn far from the observed rotation, but hardly if action or
        observation is read in another form, such as a quaternion in the other order.

        Args:
            actions: (B, A) in data units, of the same step as the newest observation.
        """
        for index, arm in enumerate(self._arms):
            if not isinstance(arm, PoseArm):
                continue
            from dp_prior.tensors.six_d import median_angle, to_6d

            read = []
            for key, value, part in (
                (X, actions, arm.rotation.action),
                (arm.rotation.key, obs[arm.rotation.key][:, self._newest], arm.rotation.slice),
            ):
                start, stop = part or (0, self.layouts[key].width)
                form = next(rotation.form for rotation in self._spec.rotations[key] if rotation.slice == (start, stop))
                read.append((_called(key), value[:, start:stop], form))
            (_, action, form), (_, observed, form_observed) = read
            angle = median_angle(to_6d(action, form), to_6d(observed, form_observed))
            if angle <= SUSPICIOUS_RADIANS:
                continue
            readings = []
            for (label, value, form), (_, fixed, form_fixed) in (read, read[::-1]):
                for other in (rotation for rotation in FORMS if FORMS[rotation] == FORMS[form]):
                    turned = median_angle(to_6d(value, other), to_6d(fixed, form_fixed))
                    readings.append((turned, label, form, other))
            best, label, form, other = min(readings)
            if best < angle / 5:
                yield (
                    f"task.arms.{index}.rotation: actions turn {angle:.2f} rad (median) from the observed rotation, "
                    f"but {best:.2f} if {label} is read as {other!r} instead of {form!r}; correct the form there"
                )

    def _moved(self, x: Tensor, obs: dict[str, Tensor], move: Callable[..., Tensor]) -> Tensor:
        """x with the elements of every arm moved into or out of its origin."""
        encoded = {key: self.layouts[key].encode(obs[key]) for key in self.references}
        for arm in self._arms:
            for reference, *origin in self._origins(arm, encoded):
                x = _replaced(x, self.layouts[X].inside(reference.action), move, origin)
        return x

    def _place(self, reference: ReferenceConfig) -> tuple[int, int]:
        layout = self.layouts[reference.key]
        return layout.inside(reference.slice or (0, layout.width))

    def _origins(
        self, arm: ArmConfig, encoded: dict[str, Tensor]
    ) -> Iterator[tuple[ReferenceConfig, Tensor | None, Tensor | None]]:
        """Each reference with its newest value to subtract, (B, 1, n), and rotation to turn back, (B, 1, 3, 3)."""
        newest = [
            encoded[reference.key][:, self._newest, None, slice(*self._place(reference))]
            for reference in arm.references
        ]
        if isinstance(arm, OffsetArm):
            yield arm, newest[0], None
        else:
            from dp_prior.tensors.six_d import matrix_of

            rotation = matrix_of(newest[1])
            yield arm.position, newest[0], rotation
            yield arm.rotation, None, rotation


def _into(value: Tensor, shift: Tensor | None, rotation: Tensor | None) -> Tensor:
    """R^T (p - p_0) of positions, R^T c of the columns of rotations."""
    value = value if shift is None else value - shift
    return value if rotation is None else _turned(value, rotation.mT)


def _out_of(value: Tensor, shift: Tensor | None, rotation: Tensor | None) -> Tensor:
    """The inverse of `_into`."""
    value = value if rotation is None else _turned(value, rotation)
    return value if shift is None else value + shift


def _least(value: Tensor) -> Tensor:
    return value.amin(-1, keepdim=True).expand_as(value)


def _turned(value: Tensor, rotation: Tensor) -> Tensor:
    """R v for every three numbers of (..., 3 n). Not a matrix product, since autocast and TF32 would round."""
    vectors = value.unflatten(-1, (-1, 3))
    return (rotation[..., None, :, :] * vectors[..., None, :]).sum(-1).flatten(-2)


def _replaced(
    value: Tensor, place: tuple[int, int], change: Callable[..., Tensor], arguments: Iterable[Tensor | None] = ()
) -> Tensor:
    """A vector (..., n) with some elements changed."""
    start, stop = place
    return torch.cat([value[..., :start], change(value[..., start:stop], *arguments), value[..., stop:]], dim=-1)
