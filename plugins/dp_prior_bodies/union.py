"""One batch for robots of several bodies: the union of their observations, padded to the widest vectors.

A batch of several bodies names the body of each sample in the observation `BODY`. `narrowed` takes the padding and the
absent observations away again, before anything is normalised, encoded or measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from dp_prior.tensors.batch import Batch, DepthRange, Kind, Spec

BODY = "body"
"""Key of the observation that holds the number of a sample's body, in the order of `Spec.bodies`."""


def joint_spec(bodies: Mapping[str, Spec]) -> Spec:
    """The spec of batches of several bodies: every observation of any body, each vector as wide as the widest.

    Args:
        bodies: the spec of each body by name; observations of one name have one kind and as many axes.
    """
    specs = [*bodies.values()]
    shapes: dict[str, tuple[int, ...]] = {}
    kinds: dict[str, Kind] = {}
    depths: dict[str, DepthRange] = {}
    for spec in specs:
        for key, shape in spec.cond_shapes.items():
            shapes[key] = tuple(map(max, shapes.get(key, shape), shape))
        kinds |= spec.kinds
        depths |= spec.depths
    horizon = specs[0].x_shape[0]
    steps = next(iter(shapes.values()))[0]
    return Spec(
        x_shape=(horizon, max(spec.x_shape[1] for spec in specs)),
        cond_shapes={**shapes, BODY: (steps,)},
        kinds={**kinds, BODY: "label"},
        depths=depths,
        classes={BODY: tuple(bodies)},
        bodies=dict(bodies),
    )


def widened(value: Tensor, width: int) -> Tensor:
    """(..., n) -> (..., width), with zeros behind the n numbers."""
    return F.pad(value, (0, width - value.shape[-1]))


def narrowed(batch: Batch, spec: Spec) -> Batch:
    """The samples of one body as that body has them. Args: spec: of the body."""
    return replace(batch, x=batch.x[..., : spec.x_shape[-1]], cond=narrowed_obs(batch.cond, spec))


def narrowed_obs(cond: Mapping[str, Tensor], spec: Spec) -> dict[str, Tensor]:
    """The observations of one body without padding, by key, as far as they are present. Args: spec: of the body."""
    observations = {}
    for key, shape in spec.cond_shapes.items():
        if key in cond:
            is_padded = spec.kind(key) == "vector" and len(shape) == 2
            observations[key] = cond[key][..., : shape[-1]] if is_padded else cond[key]
    return observations
