"""Played episodes of an expert, stored in a folder until their file is written, so that a killed recording resumes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dp_prior.data.files import load_npz
from dp_prior.files.durable import replacing
from dp_prior_worlds.expert_demonstrations import record


@dataclass(frozen=True)
class PlayedEpisodes:
    """Plays the episode of a seed by `demonstrate`, once: a later call reads the result from the folder."""

    demonstrate: partial
    """See `Demonstrate`; the arguments determine the folder."""

    path: Path
    """File that the episodes are recorded for; the folder lies beside it."""

    @property
    def folder(self) -> Path:
        """The folder of the episodes, different for another expert or other arguments."""
        arguments = sorted(self.demonstrate.keywords.items())
        call = f"{self.demonstrate.func.__module__}.{self.demonstrate.func.__qualname__} {arguments!r}"
        return self.path.with_name(f"{self.path.name}.{hashlib.sha256(call.encode()).hexdigest()[:8]}.episodes")

    def __call__(self, seed: int) -> tuple[np.ndarray, ...]:
        """See `Demonstrate`."""
        path = self.folder / f"{seed}.npz"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary, open(temporary, "wb") as file:
                np.savez_compressed(file, *self.demonstrate(seed))
        return tuple(load_npz(path).values())

    def remove_written(self) -> None:
        """Remove the folder if the file is written, also after a call that was killed before the removal."""
        if self.path.exists():
            shutil.rmtree(self.folder, ignore_errors=True)


def record_resumably(
    path: str | Path,
    demonstrate: partial,
    episodes: int,
    seed: int,
    workers: int | None,
    instructions: Sequence[str] = (),
) -> int:
    """Write demonstrations, see `record` for the arguments; after an interruption the same call resumes after the
    stored episodes."""
    played = PlayedEpisodes(demonstrate, Path(path))
    try:
        return record(path, played, episodes, seed, workers, instructions)
    finally:
        played.remove_written()
