"""Blinding: replaces observations by constants, or instructions by other episodes', to check whether a policy uses
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dp_prior.tensors.batch import SENSED, UNMEASURED, Spec

GREY = 128

BLINDED = ("vector", "text", *SENSED)
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
    if policy.spec.kind(key) in SENSED:
        return np.full_like(obs[key], {"image": GREY, "depth": UNMEASURED, "points": np.nan}[policy.spec.kind(key)])
    mean, layout = policy.normalizer.get_buffer(f"{key}/mean"), policy.spec.layout(key)
    mean = (mean if layout is None else layout.decode(mean)).cpu().numpy()
    rows = len(next(iter(obs.values())))  # not len(obs[key]): an environment does not return the previous action
    return np.broadcast_to(mean, (rows, *mean.shape))


def refuse_shuffling(spec: Spec, keys: Sequence[str]) -> None:
    """Raises ValueError unless the policy reads these observations as texts."""
    odd = [key for key in keys if key not in spec.cond_shapes or spec.kind(key) != "text"]
    if odd:
        texts = [key for key in spec.cond_shapes if spec.kind(key) == "text"]
        raise ValueError(f"shuffle names {odd}, which the policy does not read as texts; it reads {texts}")


def shuffled(obs: Mapping[str, np.ndarray], keys: Sequence[str], seed: int) -> dict[str, np.ndarray]:
    """The observations, with each row's text replaced by a different text of another row.

    The choice of rows depends only on seed, number of rows and texts, so it is the same at every step of an episode.

    Raises:
        ValueError: all rows have the same text.
    """
    return {key: _exchanged(key, value, seed) if key in keys else value for key, value in obs.items()}


def _exchanged(key: str, texts: np.ndarray, seed: int) -> np.ndarray:
    if len(np.unique(texts)) < 2:
        raise ValueError(
            f"all {len(texts)} episodes that run side by side have the same {key!r}, {str(texts[0])!r}, so none can "
            f"have another's; raise n_episodes and env.n_envs, or remove it from shuffle"
        )
    order = np.random.default_rng(seed).permutation(len(texts))
    exchanged = texts.copy()
    for place, row in enumerate(order):
        following = np.roll(order, -place - 1)
        exchanged[row] = next(texts[other] for other in following if texts[other] != texts[row])
    return exchanged
