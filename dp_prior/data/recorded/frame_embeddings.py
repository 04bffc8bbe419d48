"""Embeddings as observations: which row of a folder belongs to which frame of the recorded episodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import torch

from dp_prior.config import Change, Config
from dp_prior.data.columns import Column
from dp_prior.data.embeddings.embedding_column import EmbeddingColumn
from dp_prior.data.embeddings.folder import EmbeddingFolder, FolderConfig
from dp_prior.data.errors import DataError
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import step_of
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.recorded.extra import Extra


class ObservationEmbeddingsConfig(Config):
    """Where the embeddings of one observation are stored, and which row belongs to which frame."""

    folder: Annotated[FolderConfig, Change("data", {"path": "harmless", "metadata": "harmless"})]
    """The embeddings and their metadata; a row for every frame of every episode, in any order."""

    episode: str = "episode"
    """Metadata column with the number of the episode, from 0, in the order of `data.episodes`."""

    frame: str = "frame"
    """Metadata column with the number of the frame in its episode, from 0."""

    def create(self, chosen: Chosen) -> FrameEmbeddings:
        """Open the folder and find the row of every chosen frame; it may hold rows of others too.

        Raises:
            DataError: a frame has no row or several, a row has no frame, or rows cannot be trained on.
        """
        folder = self.folder.create()
        folder.scan()
        return FrameEmbeddings(folder, _rows_of_frames(folder, self.episode, self.frame, chosen))


@dataclass(frozen=True)
class FrameEmbeddings:
    """One observation of every frame, in files.

    Attributes:
        folder: the embeddings.
        row_of: (N,) int64 row of the folder for every frame of the chosen episodes, one episode after another.
    """

    folder: EmbeddingFolder
    row_of: np.ndarray

    def column(self, source: np.ndarray) -> Column:
        """The embeddings of some frames. Args: source: (m,) number of each frame."""
        return EmbeddingColumn(self.folder).taking(torch.from_numpy(self.row_of[source]))

    def digest(self) -> bytes:
        """Digest of the embeddings and of their order over the frames."""
        folder = self.folder.fingerprint().encode()
        if (np.diff(self.row_of, prepend=-1) != 1).any():
            return folder + self.row_of.astype("<i8").tobytes()
        return folder  # in recorded order the folder's fingerprint says it all


@dataclass(frozen=True)
class Embeddings(Extra):
    """The observations that are embeddings, by the policy's name."""

    observations: Mapping[str, FrameEmbeddings]

    @classmethod
    def open(
        cls, record: Mapping[str, ObservationEmbeddingsConfig], opened: OpenedEpisodes
    ) -> tuple[Self, OpenedEpisodes]:
        observations = {name: embeddings.create(opened.chosen) for name, embeddings in record.items()}
        return cls(observations, in_blocks=True), opened

    def spec(self, opened: OpenedEpisodes, steps: int) -> Mapping[str, Mapping[str, Any]]:
        return {"cond_shapes": {name: (steps, *frames.folder.shape) for name, frames in self.observations.items()}}

    def columns(self, rows: np.ndarray) -> Mapping[str, Column]:
        return {name: frames.column(rows) for name, frames in self.observations.items()}

    def digest(self) -> bytes:
        return b"".join(name.encode() + self.observations[name].digest() for name in sorted(self.observations))


def _rows_of_frames(folder: EmbeddingFolder, episode: str, frame: str, chosen: Chosen) -> np.ndarray:
    ends = chosen.recorded
    starts = np.concatenate([[0], ends[:-1]])
    lengths = ends - starts
    row_of = np.full(int(ends[-1]), -1, np.int64)
    done = 0
    for part in folder.columns([episode, frame]):
        e, f = part[episode], part[frame]
        if e.dtype.kind not in "iu" or f.dtype.kind not in "iu":
            finding = f"{e.dtype} and {f.dtype}"
            raise DataError(folder.path, [f"columns {episode!r} and {frame!r} hold {finding}; expected whole numbers"])
        e, f = e.astype(np.int64), f.astype(np.int64)  # unsigned 64 bits and signed ones would give floats
        is_recorded = (e >= 0) & (e < len(ends))
        is_recorded &= (f >= 0) & (f < lengths[np.where(is_recorded, e, 0)])
        if not is_recorded.all():
            at = int(np.flatnonzero(~is_recorded)[0])
            finding = f"belongs to episode {e[at]}, frame {f[at]}, which the {len(ends)} recorded episodes do not have"
            raise DataError(folder.path, [f"{folder.rows.locate(done + at)}: {finding}"])
        steps = starts[e] + f
        is_again = np.ones(len(steps), bool)
        is_again[np.unique(steps, return_index=True)[1]] = False
        is_again |= row_of[steps] >= 0
        if is_again.any():
            at = int(np.argmax(is_again))
            finding = f"episode {e[at]}, frame {f[at]} has a row already"
            raise DataError(folder.path, [f"{folder.rows.locate(done + at)}: {finding}"])
        row_of[steps] = np.arange(done, done + len(steps))
        done += len(steps)
    row_of = row_of[chosen.rows]
    missing = np.flatnonzero(row_of < 0)
    if len(missing):
        e, f = step_of(int(chosen.rows[missing[0]]), ends)
        finding = f"{len(missing)} frames have no embedding; the first is episode {e}, frame {f}"
        raise DataError(folder.path, [finding])
    return row_of
