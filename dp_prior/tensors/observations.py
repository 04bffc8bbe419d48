"""The check of observations on tensors; `ObsSpec` defines observations and names their faults. Everything that hands
observations to a policy calls `check_obs` first and stores only its result.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.tensors.batch import FRAMES, Spec, X
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads, TrainedMotion

if TYPE_CHECKING:
    from dp_prior.tensors.pixels.resize import Fit


def policy_reads(policy: Any) -> ObsSpec:
    """`obs_spec` of a policy, with the ranges of its normalizer; those that an export says of itself."""
    reads = getattr(policy, "reads", None)
    if isinstance(reads, ObsSpec):
        return reads
    transforms = getattr(policy, "transforms", None)
    moved = () if transforms is None else transforms.relative
    normalizer = getattr(policy, "normalizer", None)
    return obs_spec(policy.spec, normalizer if isinstance(normalizer, nn.Module) else None, moved)


def obs_spec(spec: Spec, normalizer: nn.Module | None = None, moved: Collection[str] = ()) -> ObsSpec:
    """The observations that a policy reads.

    Args:
        normalizer: of the policy, which knows the range of vectors in training.
        moved: keys of vectors, or "x", that the normalizer sees relative to an observation.
    """
    buffers = {} if normalizer is None else dict(normalizer.named_buffers())
    observations = {}
    for key, shape in spec.cond_shapes.items():
        size = tuple(shape[-3:-1]) if spec.kind(key) in FRAMES else None
        fit = spec.fits.get(key)
        observations[key] = Reads(
            shape=(None, None, shape[-1]) if key in spec.fits else shape[1:],
            dtype=str(spec.dtype(key)).removeprefix("torch."),
            kind=spec.kind(key),
            rotations=[(*rotation.slice, rotation.form) for rotation in spec.rotations.get(key, ())],
            start=spec.previous_actions.get(key),
            range=None if key in moved else _range(key, spec, buffers),
            names=spec.names.get(key, ()),
            size=size,
            region=fit and fit.region,
            turn=fit and fit.turn,
            bgr=fit is not None and fit.bgr,
            texts=spec.instructions.get(key, ()),
            scene=spec.scenes.get(key),
        )
    action = Reads(
        shape=spec.x_shape[1:],
        dtype="float32",
        rotations=[(*rotation.slice, rotation.form) for rotation in spec.rotations.get(X, ())],
        range=_moved_range(spec) if X in moved else _range(X, spec, buffers),
        names=spec.names.get(X, ()),
        motion=_motion(spec),
    )
    return ObsSpec(observations, action, spec.fps)


def _motion(spec: Spec) -> TrainedMotion | None:
    """The motion of training, with infinity for unknown numbers."""
    if spec.motion is None:
        return None
    step, distance = (np.array(numbers, np.float64) for numbers in (spec.motion.step, spec.motion.distance))
    step, distance = (np.where(np.isnan(numbers), np.inf, numbers) for numbers in (step, distance))
    return TrainedMotion(step, distance, spec.motion.answers)


def _moved_range(spec: Spec) -> tuple[np.ndarray, np.ndarray] | None:
    """Lowest and highest actions of training of a policy whose normalizer sees them relative to an observation."""
    if spec.motion is None:
        return None
    low, high = (np.array(numbers, np.float32) for numbers in (spec.motion.low, spec.motion.high))
    return np.where(np.isnan(low), -np.inf, low), np.where(np.isnan(high), np.inf, high)


def _range(key: str, spec: Spec, buffers: Mapping[str, Tensor]) -> tuple[np.ndarray, np.ndarray] | None:
    """Lowest and highest values of training in data units; infinite where a vector holds a rotation, which the
    normalizer sees as 6D. None for statistics that are not of data, such as those of imported policies."""
    count = buffers.get(f"{key}/count")
    if count is None or not int(count):
        return None
    low, high = (buffers[f"{key}/{end}"].cpu().numpy() for end in ("min", "max"))
    layout = spec.layout(key)
    if layout is None:
        return low, high
    ends = np.full((2, layout.width), [[-np.inf], [np.inf]], np.float32)
    for start, stop, form in layout.parts:
        if form is None:
            ends[:, start:stop] = [end[slice(*layout.inside((start, stop)))] for end in (low, high)]
    return ends[0], ends[1]


def check_obs(
    obs: Mapping[str, Any],
    spec: Spec,
    *,
    rows: int,
    steps: Collection[int] = (),
    active: Sequence[int] | np.ndarray | None = None,
    fitted: bool = False,
) -> dict[str, Tensor]:
    """Check the observations that a policy reads and bring them into the types of their kinds, see `ObsSpec.check`.

    Args:
        obs: (rows, *shape) by key, or (rows, steps, *shape); arrays, tensors or nested lists. Other keys are ignored.
        spec: of the policy; its shapes begin with the axis of observation steps.
        fitted: whether camera frames of the policy's size may be fitted already; otherwise these are cut and turned.

    Returns:
        The keys of `spec`. Tensors stay on their device and are not copied if their type is right. Camera frames of any
        size are resized as those of training were.
    """
    reads, checked = obs_spec(spec), {}
    reads.check_names(obs)
    for key, shape in spec.cond_shapes.items():
        value = _tensor(key, obs[key], spec.dtype(key), reads)
        reads.check_shape(key, value.shape, rows, steps)
        fit = spec.fits.get(key)
        if fit is not None and (value.shape[-3:] != shape[-3:] or (fit.changes_all and not fitted)):
            value = _fit(key, value, fit)
        checked[key] = value
    read = None if active is None else np.asarray(active, np.int64)
    for key, value in checked.items():
        if spec.kind(key) == "points":  # what is not finite is no point
            continue
        is_read_here = value.device.type == "cpu" or reads.observations[key].rotations
        if is_read_here or (value.is_floating_point() and (~value.isfinite()).any()):
            reads.check_values(key, value.cpu().numpy(), read)
    return checked


def _fit(key: str, value: Tensor, fit: Fit) -> Tensor:
    """(..., H, W, C) frames as those of training, on their device."""
    try:
        frames = fit.apply(value.cpu().reshape(-1, *value.shape[-3:]))  # see `Fit` for other kernels
    except ValueError as error:
        raise ValueError(f"observation {key!r}: {error}") from None
    return frames.view(*value.shape[:-3], *fit.size, value.shape[-1]).to(value.device)


def _tensor(key: str, value: Any, dtype: torch.dtype, reads: ObsSpec) -> Tensor:
    if not isinstance(value, Tensor):
        return torch.from_numpy(reads.array(key, value))
    is_depth = reads.observations[key].kind == "depth"
    is_fit = value.dtype == dtype or (dtype == torch.float32 and not value.is_complex())
    if not is_fit or (is_depth and not value.is_floating_point()):
        raise reads.wrong_type(key, value.dtype)
    value = value.detach().to(dtype)
    if reads.observations[key].kind == "points":
        return reads.evenly(key, value)
    return torch.where((value > 0) & value.isfinite(), value, 0.0) if is_depth else value
