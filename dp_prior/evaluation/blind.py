"""Blinding: replaces observations by constants, to check whether a policy uses these observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dp_prior.tensors.batch import SEEN, Spec
from dp_prior.tensors.depth import UNMEASURED

GREY = 128

BLINDED = ("vector", "text", *SEEN)
"""Kinds that can be taken away."""


def refuse_blinding(spec: Spec, keys: Sequence[str]) -> None:
    """Raises ValueError unless every key is an observation of the policy, of a kind that can be taken away."""
    unknown = sorted(set(keys) - set(spec.cond_shapes))
    if unknown:
        raise ValueError(f"blind names {unknown}, which the policy does not see; it sees {sorted(spec.cond_shapes)}")
    odd = [key for key in keys if spec.kind(key) not in BLINDED]
    if odd:
        raise ValueError(f"blind names {odd[0]!r} of kind {spec.kind(odd[0])!r}; expected {', '.join(BLINDED)}")


def blinded(obs: Mapping[str, np.ndarray], policy: Any, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Observations (n, *shape) by key with some replaced: frames by mid-grey, depth and points by none, vectors and the
    embeddings of texts by their mean in training."""
    return {**obs, **{key: _constant(policy, key, obs) for key in keys}}


def _constant(policy: Any, key: str, obs: Mapping[str, np.ndarray]) -> np.ndarray:
    if policy.spec.kind(key) in SEEN:
        return np.full_like(obs[key], {"image": GREY, "depth": UNMEASURED, "points": np.nan}[policy.spec.kind(key)])
    mean, layout = policy.normalizer.get_buffer(f"{key}/mean"), policy.spec.layout(key)
    mean = (mean if layout is None else layout.decode(mean)).cpu().numpy()
    rows = len(next(iter(obs.values())))  # not len(obs[key]): an environment does not return the previous action
    return np.broadcast_to(mean, (rows, *mean.shape))
