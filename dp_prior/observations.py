"""The one check of observations that come from outside: a robot, an environment, a client.

Everything that hands observations to a policy calls `check_obs` first and stores only what it returns.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dp_prior.batch import Kind, Spec
from dp_prior.client.rotation_check import is_rotation, not_a_rotation

MOST_NAMES_SHOWN = 20

NUMPY = {torch.float32: np.float32, torch.uint8: np.uint8, torch.int64: np.int64}


def check_obs(
    obs: Mapping[str, Any],
    spec: Spec,
    *,
    rows: int,
    steps: Collection[int] = (),
    active: Sequence[int] | np.ndarray | None = None,
) -> dict[str, Tensor]:
    """Check the observations that a policy reads and bring them into the types of their kinds.

    Args:
        obs: (rows, *shape) by key, or (rows, steps, *shape); arrays, tensors or nested lists. Other keys are ignored.
        spec: of the policy; its shapes begin with the axis of observation steps.
        rows: samples or environments.
        steps: lengths that the axis of steps may have; empty where observations have no such axis.
        active: rows whose values are read; None for all. Those of other rows need not be finite.

    Returns:
        The keys of `spec`. Tensors stay on their device and are not copied if their type is right. Camera frames of any
        size are resized as those of training were.

    Raises:
        ValueError: a key is missing, is no array of numbers, has the wrong shape or type, or holds a value that is not
            finite in float32, or numbers that are no rotation where `spec.rotations` has one.
    """
    shapes = {key: shape[1:] for key, shape in spec.cond_shapes.items()}
    missing = [key for key in shapes if key not in obs]
    if missing:
        raise _missing(missing[0], obs, spec)
    checked = {}
    for key, shape in shapes.items():
        value = _tensor(key, obs[key], spec.dtype(key), spec.kind(key))
        if spec.kind(key) == "image":
            value = _fitted(key, value, spec, has_steps=bool(steps))
        wanted = [(count, *shape) for count in dict.fromkeys(steps)] or [shape]
        if value.dim() == 0 or tuple(value.shape[1:]) not in wanted:
            found = tuple(value.shape[1:]) if value.dim() else "no axis of rows"
            expected = " or ".join(map(str, wanted))
            is_stacked = not steps and len(found) > len(shape) and found[len(found) - len(shape) :] == tuple(shape)
            remedy = ": give the newest observation alone, the agent keeps the history" if is_stacked else ""
            raise ValueError(f"observation {key!r} has shape {found} per row; the policy reads {expected}{remedy}")
        if len(value) != rows:
            raise ValueError(f"observation {key!r} has {len(value)} rows; expected {rows}, one for each row that acts")
        checked[key] = value
    rows_read = None if active is None else torch.as_tensor(np.asarray(active, dtype=np.int64), device="cpu")
    _check_finite(checked, rows_read)
    _check_rotations(checked, spec, rows_read)
    return checked


def _missing(key: str, obs: Mapping[str, Any], spec: Spec) -> ValueError:
    names = [str(name) for name in itertools.islice(obs, MOST_NAMES_SHOWN)]
    close = difflib.get_close_matches(key, names, n=1)
    listed = ", ".join(f"{name} {shape[1:]}" for name, shape in spec.cond_shapes.items()) or "none"
    return ValueError(
        f"observation {key!r} is missing; the policy reads {listed}, found {', '.join(names) or 'none'}."
        f"{f' Is {close[0]!r} meant? Name it {key!r}.' if close else ''}{_previous_action(key, spec)}"
    )


def _previous_action(key: str, spec: Spec) -> str:
    """What to give for the previous action, which only callers that keep the queue of actions are asked for."""
    if key not in spec.previous_actions:
        return ""
    start = [float(f"{number:.6g}") for number in spec.previous_actions[key]]
    return f" It is the action executed before each observation, first {start}; `act` of an agent fills it in."


def _tensor(key: str, value: Any, wanted: torch.dtype, kind: Kind) -> Tensor:
    """An observation in the type of its kind: a vector takes any real numbers, other kinds only their own type."""
    if isinstance(value, Tensor):
        if value.dtype != wanted and (wanted != torch.float32 or value.is_complex()):
            raise _wrong_type(key, value.dtype, wanted, kind)
        return value.detach().to(wanted)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"observation {key!r} is not an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"observation {key!r} holds {array.dtype}; expected numbers")
    if wanted != torch.float32 and array.dtype.newbyteorder("=") != NUMPY[wanted]:
        raise _wrong_type(key, array.dtype, wanted, kind)
    with np.errstate(over="ignore"):  # what is too large for float32 is reported as not finite
        return torch.from_numpy(np.array(array, NUMPY[wanted], order="C"))  # any layout, width and byte order


def _wrong_type(key: str, found: Any, wanted: torch.dtype, kind: Kind) -> ValueError:
    remedy = "; give the camera's RGB from 0 to 255 unscaled" if kind == "image" else ""
    return ValueError(f"observation {key!r} holds {found}; a policy reads {wanted} for kind {kind!r}{remedy}")


def _fitted(key: str, value: Tensor, spec: Spec, *, has_steps: bool) -> Tensor:
    """Camera frames (rows, height, width, channels), or with steps, in the size that the policy sees."""
    shape, fit = spec.cond_shapes[key][1:], spec.fits.get(key)
    found = tuple(value.shape[1 + has_steps :])
    height, width, channels = shape[-3:]
    if len(found) == 3 and found[-1] == channels and (fit is not None or found == shape) and 0 not in found:
        if fit is None or found == shape:
            return value
        frames = fit.apply(value.cpu().reshape(-1, *found))  # other kernels round differently, see `Fit`
        return frames.view(*value.shape[: 1 + has_steps], *shape).to(value.device)
    if len(found) == 3 and found[0] == channels:
        remedy = "move the channels to the end"
    elif len(found) == 2 or (len(found) == 3 and found[-1] == 1):
        remedy = "it is greyscale; repeat it for the three channels"
    elif len(found) == 3 and found[-1] == 4:
        remedy = "drop the fourth channel"
    else:
        remedy = "give one frame per row" + (" and observation step" if has_steps else "")
    size = f"{height}, {width}" if fit is None else "height, width"
    raise ValueError(
        f"observation {key!r} has shape {found} per frame; the policy reads uint8 ({size}, {channels}): {remedy}"
    )


def _check_finite(values: Mapping[str, Tensor], active: Tensor | None) -> None:
    bad = {key: ~value.isfinite() for key, value in values.items() if value.is_floating_point()}
    if active is not None:
        bad = {key: here[active.to(here.device)] for key, here in bad.items()}
    if not any(here.any().item() for here in bad.values()):
        return
    for key, here in bad.items():
        for at in here.nonzero()[:1].tolist():
            row = at[0] if active is None else int(active[at[0]])
            found = values[key][(row, *at[1:])].item()
            raise ValueError(
                f"observation {key!r}, row {row}, element {at[1:]} is {found}; expected a finite number. The "
                f"observation was not remembered: call again with a good one"
            )


def _check_rotations(values: Mapping[str, Tensor], spec: Spec, active: Tensor | None) -> None:
    for key, rotations in spec.rotations.items():
        if key not in values:
            continue
        value = values[key] if active is None else values[key][active.to(values[key].device)]
        for rotation in rotations:
            numbers = value[..., slice(*rotation.slice)].cpu().numpy()
            for at in np.argwhere(~is_rotation(numbers, rotation.form))[:1].tolist():
                row = at[0] if active is None else int(active[at[0]])
                raise ValueError(
                    f"observation {key!r}, row {row}, slice {list(rotation.slice)}: "
                    f"{not_a_rotation(numbers[tuple(at)].tolist(), rotation.form)}. The observation was not "
                    f"remembered: call again with a good one"
                )
