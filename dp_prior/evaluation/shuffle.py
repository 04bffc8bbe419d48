"""Shuffled instructions: gives a policy another episode's instruction, to check whether the policy listens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dp_prior.tensors.batch import Spec


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
    found = texts.copy()
    for place, row in enumerate(order):
        following = np.roll(order, -place - 1)
        found[row] = next(texts[other] for other in following if texts[other] != texts[row])
    return found
