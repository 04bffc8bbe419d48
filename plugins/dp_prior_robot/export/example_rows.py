"""Observations to trace and to compare policies with: random, within the range of the training data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dp_prior.tasks.policy import DiffusionPolicy
from dp_prior.tensors.randomness import Randomness


def observations(
    policy: DiffusionPolicy, seed: int, rows: int, frames: Mapping[str, tuple[int, int]] | None = None
) -> dict[str, Tensor]:
    """Random observations (rows, n_obs_steps, *shape) by key, within the range of the training data."""
    random = Randomness.from_counts(seed, "observations", torch.arange(rows))
    arrays = {}
    for key, shape in frame_shapes(policy, frames or {}).items():
        draws = random.stream(key)
        if policy.spec.kind(key) == "vector":
            low, high = (policy.normalizer.get_buffer(f"{key}/{end}") for end in ("min", "max"))
            arrays[key] = low + draws.uniform(shape[0], *low.shape) * (high - low)
        elif policy.spec.kind(key) == "points":
            arrays[key] = draws.normal(*shape)
        elif policy.spec.kind(key) == "depth":
            arrays[key] = 1.25 * draws.uniform(*shape) - 0.25  # scaled: a fifth was not measured
        elif policy.spec.kind(key) == "text":
            arrays[key] = F.normalize(draws.normal(*shape), dim=-1)
        else:
            arrays[key] = draws.integers(256 if policy.spec.kind(key) == "image" else 2, *shape).to(
                policy.spec.dtype(key)
            )
    layouts = policy.transforms.layouts
    rotations = {key: layouts[key].decode(arrays[key]) for key in policy.transforms.keys}
    depths = {key: depth.metres(arrays[key]) for key, depth in policy.spec.depths.items()}
    return {**arrays, **rotations, **depths}


def frame_shapes(policy: DiffusionPolicy, frames: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the observations, cameras in the size of the frames that go in."""
    shapes = policy.spec.cond_shapes
    return {key: (shape[0], *frames[key], shape[-1]) if key in frames else shape for key, shape in shapes.items()}
