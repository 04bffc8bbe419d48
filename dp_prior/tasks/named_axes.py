"""Axes of a policy's tensors along which numbers have names: numbers of the action, of observations, and features that
encoders make of an observation. `transfer` takes a part of a tensor by these names, not by places.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import product

from dp_prior.tasks.pretrained import Pretrained
from dp_prior.tensors.batch import X

Names = tuple[Hashable, ...]


def named_axes(policy: Pretrained, other: Pretrained) -> dict[str, tuple[int, Names]]:
    """By tensor of `policy` its named axis, and names that are equal where they mean the same in `other`."""
    numbers = {key: number_names(policy, other, key) for key in policy.normalizer.shapes}
    stored = {name: tensor for name, tensor in policy.normalizer.state_dict().items() if tensor.dim() == 1}
    axes = {f"normalizer.{name}": (0, numbers[name.rpartition("/")[0]]) for name in stored}
    token: list[Hashable] = []
    for index, key in enumerate(policy.encoder.keys):
        encoder, read = policy.encoder.encoder_of(key), numbers.get(key, ())
        token += [(key, feature) for feature in encoder.features(read)]
        axes |= {f"encoder.encoders.{index}.{name}": (axis, read) for name, axis in encoder.number_axes.items()}
    token += policy.encoder.further_features
    shapes = {name: tensor.shape for name, tensor in policy.backbone.state_dict().items()}
    for pattern, (axis, kind) in getattr(policy.backbone, "named_axes", {}).items():
        for name in [name for name in shapes if fnmatchcase(name, pattern)]:
            size, n_tokens = shapes[name][axis], policy.encoder.cond_shape[0]
            axes[f"backbone.{name}"] = axis, tuple(_names(kind, size, numbers[X], token, n_tokens))
    return axes


def differing_names(policy: Pretrained, other: Pretrained) -> Iterator[str]:
    """Describe, a line each, how the numbers of the action and of observations differ between two policies."""
    for key in (X, *sorted({*policy.spec.cond_shapes, *other.spec.cond_shapes})):
        names, other_names = number_names(policy, other, key), number_names(other, policy, key)
        called = "action" if key == X else key
        if key != X and key not in other.spec.cond_shapes:
            yield f"{called}: anew"
        elif key != X and key not in policy.spec.cond_shapes:
            yield f"{called}: not used"
        elif names != other_names:
            common = [str(name) for name in names if name in other_names]
            fresh = [str(name) for name in names if name not in other_names]
            unused = [str(name) for name in other_names if name not in names]
            how = "place" if names == tuple(range(len(names))) else "name"
            groups = [(common, f"taken by {how}"), (fresh, "anew"), (unused, "not used")]
            yield f"{called}: " + "; ".join(f"{', '.join(numbers)} {remark}" for numbers, remark in groups if numbers)


def misplaced(policy: Pretrained, other: Pretrained, by_name: bool) -> Iterator[str]:
    """A line for the action and each observation whose numbers are taken in the places of numbers with other names, and
    for an action that is relative to something else.

    Args:
        by_name: numbers are taken by name where any is common.
    """
    for key in (X, *sorted({*policy.spec.cond_shapes} & {*other.spec.cond_shapes})):
        names, other_names = _own_names(policy, key), _own_names(other, key)
        if len(names) == len(other_names) and names != other_names and not (by_name and {*names} & {*other_names}):
            called = "action" if key == X else key
            yield f"{called}: {', '.join(names)} stand in the places of {', '.join(other_names)}"
    frames, other_frames = _frames(policy), _frames(other)
    width = min(_width(policy, X), _width(other, X))
    if any(frames.get(place) != other_frames.get(place) for place in range(width)):
        yield "action: task.relative_to and task.arms make other numbers relative than in these weights"


def _frames(policy: Pretrained) -> dict[int, str]:
    """The observation to which a number of the action is relative, by its place in the data."""
    if policy.record.relative_to is not None:
        return dict.fromkeys(range(policy.spec.x_shape[-1]), policy.record.relative_to)
    frames: dict[int, str] = {}
    for arm in policy.record.arms:
        for reference in arm.references:
            frames |= dict.fromkeys(range(*reference.action), reference.key)
    return frames


def number_names(policy: Pretrained, other: Pretrained, key: str) -> Names:
    """Names of the numbers of a vector as the network sees them, or their places: where a policy's data name none, or
    where vectors of one length share no name."""
    names, other_names = _own_names(policy, key), _own_names(other, key)
    width = _width(policy, key)
    if not names or (width == _width(other, key) and not {*names} & {*other_names}):
        return tuple(range(width))
    return names


def _own_names(policy: Pretrained, key: str) -> Names:
    """Names that the data set gives to the numbers of a vector; none unless each has one of its own."""
    names = policy.spec.names_inside(key)
    return names if len({*names}) == len(names) else ()


def _width(policy: Pretrained, key: str) -> int:
    return math.prod(policy.normalizer.shapes.get(key, (0,)))


def _names(kind: str, size: int, x: Names, token: list[Hashable], n_tokens: int) -> Iterable[Hashable]:
    """Names along an axis of a backbone; see `NamedAxes`. Steps of observations are counted from the newest."""
    if kind == "x":
        return list(product(range(size // len(x)), x))
    if kind == "chunk":
        return [(size // len(x), place, name) for place, name in product(range(size // len(x)), x)]
    if kind == "token":
        return token
    before = size - n_tokens * len(token)
    places = [(before, place) for place in range(before)]
    return places + [(step - n_tokens, *feature) for step, feature in product(range(n_tokens), token)]
