"""The model of a checkpoint on every rank of a command, whose ranks end together."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from dp_prior.config import errors_of
from dp_prior.job.ranks import Ranks
from dp_prior.job.stop import PATIENCE
from dp_prior.places.reference import resolve
from dp_prior.run.exit_file import explain
from dp_prior.tasks.pretrained import Pretrained

TIMEOUT_S = 120.0
"""Limit of a collective, and of a rank without progress."""


def load_model(reference: str, ranks: Ranks, *, weights: str | None, guidance_scale: float | None) -> tuple[Path, Any]:
    """The model of any task, on the device of this rank. A collective.

    Args:
        reference: of a checkpoint, a run or an export; see `dp_prior.places.reference`.
        weights, guidance_scale: see `Pretrained.from_pretrained`.

    Returns:
        The directory of the checkpoint, and the model.

    Raises:
        ConfigError: it cannot be loaded, or not guided.
    """
    directory = ranks.decide(lambda: resolve(reference, whole=weights is not None), PATIENCE * TIMEOUT_S)
    how = {"weights": weights, "guidance_scale": guidance_scale, "device": ranks.device}
    with errors_of(str(directory)):  # for example, there are no such weights
        return directory, Pretrained.from_pretrained(directory, **how)


def watched(ranks: Ranks, stacks: Path) -> contextlib.AbstractContextManager[None]:
    """Inside, several ranks exchange heartbeats and end together.

    Args:
        stacks: folder for the stacks of ranks that fail or hang.
    """
    return ranks.watched(TIMEOUT_S, stacks, lambda error: explain(error, ranks.process_index), lambda verdict: None)
