"""Blocks of episodes, divided among ranks.

A rank takes whole blocks, so the arithmetic of a block is the same on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from dp_prior.evaluation.samples import rank_and_size, work_of
from dp_prior.tensors.metrics import ReducingRanks, pad_gather_reduce

_NONE, _FAILED = -1.0, -2.0  # in place of an episode


def run_blocks(
    run: Callable[[range], np.ndarray], n_episodes: int, block: int, width: int, ranks: ReducingRanks | None, name: str
) -> np.ndarray:
    """Run all episodes; a collective after each round of blocks when there are several ranks.

    Args:
        run: the episodes of a block -> (episodes, at most `width`) numbers, of which the first is the episode.
        block: episodes in a block; the last block may have fewer.
        name: the evaluator's, for messages.

    Returns:
        (n_episodes, width) by episode, 0 where `run` returned fewer numbers; equal on all ranks.

    Raises:
        Exception: the error of `run`, on the rank where `run` failed.
        RuntimeError: on all other ranks.
    """
    rank, size = rank_and_size(ranks)
    starts = range(0, n_episodes, block)
    rounds = []
    for first in work_of(ranks).parts(range(0, len(starts), size)):
        rows = np.zeros((block, width))
        rows[:, 0] = _NONE
        error = None
        if first + rank < len(starts):
            start = starts[first + rank]
            episodes = range(start, min(start + block, n_episodes))
            try:
                found = run(episodes)
                rows[: len(episodes), : found.shape[1]] = found
            except Exception as caught:  # raised after the gather, in which the other ranks wait
                error = caught
                rows[:, 0] = _FAILED
        places = np.zeros((1, size, block, width))  # every rank fills its own place; the sum joins all places
        places[0, rank] = rows
        gathered = pad_gather_reduce(ranks, torch.from_numpy(places), "sum", dim=0).cpu().numpy()
        if error is not None:
            raise error
        failed = np.flatnonzero((gathered[:, :, 0] == _FAILED).any(axis=1))
        if len(failed):
            raise RuntimeError(f"evaluator {name!r} failed on rank {failed[0]}; see the output of that rank")
        rounds.append(gathered.reshape(-1, width))
    found = np.concatenate(rounds)
    found = found[found[:, 0] >= 0]
    return found[np.argsort(found[:, 0])]
