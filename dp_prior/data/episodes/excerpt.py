"""Some episodes of a data set, without the others where the format allows it."""

from __future__ import annotations

import numpy as np

from dp_prior.data.episodes import EpisodeStore
from dp_prior.data.episodes.lerobot import LeRobotStore
from dp_prior.data.episodes.npz import NpzStore
from dp_prior.data.episodes.robomimic import RobomimicStore
from dp_prior.data.episodes.zarr import ZarrStore
from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding


def read_episodes(store: EpisodeStore, key: str, ends: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """(n, *feature_shape) rows of some episodes, one after another, in the stored type.

    Args:
        ends: (E,) exclusive end row of each episode, checked.
        numbers: (k,) sorted numbers of the episodes.

    Raises:
        DataError: the key cannot be read, or has not one row for each step.
    """
    spans = list(zip((ends - np.diff(ends, prepend=0))[numbers].tolist(), ends[numbers].tolist(), strict=True))
    match store:
        case LeRobotStore() if len(numbers) < len(ends):
            return store.read_episodes(key, numbers.tolist())
        case RobomimicStore():
            store.layout(key)
            return np.concatenate([block for span in spans for block in store.blocks(key, *span, span[1] - span[0])])
        case NpzStore() if len(numbers) < len(ends) and store.rows(key) >= ends[-1]:
            return store.read_spans(key, spans)
        case ZarrStore():
            values = store.open(key)
        case _:
            values = store.read(key)
    if values.shape[0] < ends[-1]:
        raise DataError(
            store.locate(key, 0), [f"has {values.shape[0]} rows; expected one for each of {ends[-1]} steps"]
        )
    with decoding(store.locate(key, 0)):
        return np.concatenate([np.asarray(values[begin:end]) for begin, end in spans])
