"""Instructions: the text of each frame, and its embedding, which was made once (`dp-prior embed`) and is looked up."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from pydantic import Field

from dp_prior.config import Change, Config, ConfigError
from dp_prior.data.columns import Column
from dp_prior.data.columns.lookup import LookupColumn
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.embeddings.embedding_column import read_rows
from dp_prior.data.embeddings.folder import EmbeddingFolder, FolderConfig
from dp_prior.data.embeddings.written import cut_warnings, read_record
from dp_prior.data.errors import DataError, first_few, nearest_name
from dp_prior.data.formats.choice import leaving_out
from dp_prior.data.formats.chosen import Chosen, plain_texts
from dp_prior.data.formats.episode_store import EpisodeStore
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.recorded.extra import Extra
from dp_prior.data.samples.order import INSTRUCTION_CHARACTERS, Successes
from dp_prior.data.samples.weighted_order import Share, shares
from dp_prior.files.regular_files import expanded

MOST_LISTED, LONGEST_LISTED = 256, 200
"""Most texts, and most characters of each, that a policy stores as the instructions of its training."""


class LanguageConfig(Config):
    """The instruction of each frame, which the policy sees as the embedding of its text."""

    key: str | None = None
    """Key in the data set that holds texts, or numbers of texts, for each frame or each episode. null: the key that the
    format defines, such as LeRobot's `task_index`; in other formats `texts` lists a text for each episode, or a single
    text for all."""

    texts: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The texts that the numbers stand for, from 0: a list, or the key of an array of them. null: those that the
    data set has (LeRobot's meta/tasks), or `key` holds texts itself."""

    folder: Annotated[FolderConfig, Change("data", {"path": "harmless", "metadata": "harmless"})]
    """The embeddings, as `dp-prior embed` writes them, in format parquet; texts that do not occur may be among them."""

    text: str = "text"
    """Metadata column that holds the text of each embedding."""

    weights: Annotated[
        Literal["balanced", "by_success"] | dict[str, Annotated[float, Field(gt=0)]] | None, Change("schedule-changing")
    ] = None
    """Weight of each text: its share of the data set's training samples is this over the sum of all weights, exact in
    every epoch. "balanced" gives all texts the same share; "by_success" begins so, and after each run of the evaluator
    `success_of` a text that was solved in s of n episodes weighs (n - s + 1) / (n + 2), the expected rate of failure.
    null: every window comes once per epoch."""

    success_of: Annotated[str, Change("schedule-changing")] = "rollout"
    """Name of the evaluator, one of `evaluate`, whose success rates by instruction decide weights "by_success"."""

    def faults(self) -> Iterator[str]:
        if self.weights != "by_success" and self.success_of != "rollout":
            yield f'success_of is {self.success_of!r}, but only weights "by_success" ask an evaluator; remove it'

    def keys(self) -> set[str]:
        """The keys of the data set that are named."""
        return {name for name in (self.key, self.texts) if isinstance(name, str)}

    def create(self, store: EpisodeStore, chosen: Chosen) -> FrameTexts:
        """Read the text of every chosen frame and find the embedding of every text.

        Raises:
            DataError: a frame has no text, a text has no embedding, or the embeddings cannot be trained on.
        """
        texts, index = read_texts(self, store, chosen)
        folder = self.folder.create()
        rows = _rows_of(folder, self.text, texts)
        table = read_rows(folder.rows, rows).astype(np.float32)
        folder.check(table, rows)
        record = read_record(expanded(self.folder.path))
        embedder = None if record is None else record.embedder
        weights = self._weights(texts, store)
        warnings = [*cut_warnings(record, self.folder.path), *_same_embeddings(texts, table)]
        table = table.reshape(len(texts), *folder.shape)
        follows = self.success_of if self.weights == "by_success" else None
        return FrameTexts(texts, index, table, embedder, store.text_files(), weights, follows, warnings)

    def _weights(self, texts: list[str], store: EpisodeStore) -> list[float] | None:
        """The weight of each text at the start; None without `weights`."""
        if self.weights is None or isinstance(self.weights, str):
            return None if self.weights is None else [1.0] * len(texts)
        problems = [
            f"language.weights names {text!r}, which no frame has. {nearest_name(text, texts)}"
            for text in sorted(self.weights.keys() - set(texts))
        ]
        missing = [text for text in texts if text not in self.weights]
        if missing:
            problems.append(f"language.weights has no weight for {_named(missing)}; give every text one")
        if problems:
            raise DataError(store.where, problems)
        return [self.weights[text] for text in texts]


@dataclass(frozen=True)
class FrameTexts:
    """The texts of all frames.

    Attributes:
        texts: K different ones, sorted.
        index: (N,) int64 number of each frame's text, one episode after another.
        table: (K, *shape) float32 embedding of each.
        embedder: record of the model that made them; None if nothing says.
        files: of the data set, that hold texts.
        weights: of each text, at the start; None if every window comes once per epoch.
        follows: name of the evaluator by whose success rates they change; None if they do not.
        warnings: about texts that a policy cannot tell apart.
    """

    texts: list[str]
    index: np.ndarray
    table: np.ndarray
    embedder: Any
    files: list[Path]
    weights: list[float] | None
    follows: str | None
    warnings: list[str]

    def column(self, source: np.ndarray) -> Column:
        """The embeddings of the texts of some frames. Args: source: (m,) number of each frame."""
        index = MemoryColumn(torch.from_numpy(self.index[source]))
        return LookupColumn(torch.from_numpy(self.table), index)

    def texts_at(self, frames: np.ndarray) -> tuple[str, ...]:
        """The texts of some frames (n,), sorted; none where they are too many, or too long, to be stored with a
        policy."""
        texts = tuple(self.texts[number] for number in np.unique(self.index[frames]))
        is_long = len(texts) > MOST_LISTED or any(len(text) > LONGEST_LISTED for text in texts)
        return () if is_long else texts

    def shares(self, index: np.ndarray, count: int, successes: Successes) -> list[Share]:
        """Divide samples among windows by the weights of their texts; texts without a window have no share.

        Args:
            index: (n,) number of each window's text.
            count: samples of an epoch.
            successes: see `FollowingOrder`.

        Raises:
            ConfigError: a text with a weight of its own would have no sample.
        """
        weights = self._weights_after(successes.get(self.follows, {}))
        texts, sizes = np.unique(index, return_counts=True)
        groups = np.split(np.argsort(index, kind="stable"), np.cumsum(sizes)[:-1])
        counts = shares(count, [weights[number] for number in texts])
        lost = [self.texts[number] for number, share in zip(texts, counts, strict=True) if not share]
        if lost and self.follows is None:
            finding = f"language.weights give {_named(lost)} none of the {count} samples of an epoch"
            raise ConfigError("data", [f"{finding}; raise them, or leave these episodes out"])
        return [Share(ids, share) for ids, share in zip(groups, counts, strict=True)]

    def _weights_after(self, successes: Mapping[str, Sequence[int]]) -> list[float]:
        """The weight of each text after (solved, played) episodes of some: the mean of the posterior of its rate of
        failure, under a uniform prior."""
        if not successes:
            return self.weights
        numbers = {text[:INSTRUCTION_CHARACTERS]: number for number, text in enumerate(self.texts)}
        rates = {numbers[text]: (n - s + 1) / (n + 2) for text, (s, n) in successes.items() if text in numbers}
        return [rates.get(number, 0.5) for number in range(len(self.texts))]

    def digest(self) -> bytes:
        """SHA-256 of texts, embeddings and which frame has which."""
        digest = hashlib.sha256("\0".join(self.texts).encode())
        digest.update(self.table.astype("<f4").tobytes())
        digest.update(self.index.astype("<i8").tobytes())
        return digest.digest()


@dataclass(frozen=True)
class InstructionTexts(Extra):
    """The observations that are instructions, by the policy's name."""

    observations: Mapping[str, FrameTexts]

    @classmethod
    def open(cls, record: Mapping[str, LanguageConfig], opened: OpenedEpisodes) -> tuple[Self, OpenedEpisodes]:
        observations = {name: language.create(opened.store, opened.chosen) for name, language in record.items()}
        keys = set().union(*(language.keys() for language in record.values()))
        files = [*chain.from_iterable(texts.files for texts in observations.values())]
        follows = {texts.follows: texts.texts for texts in observations.values() if texts.follows is not None}
        return cls(observations, keys=keys, files=files, follows=follows), opened

    @property
    def _weighted(self) -> FrameTexts | None:
        """The texts whose weights divide the samples of an epoch; None if every window comes once."""
        return next((texts for texts in self.observations.values() if texts.weights is not None), None)

    def spec(self, opened: OpenedEpisodes, steps: int) -> Mapping[str, Mapping[str, Any]]:
        texts = self.observations
        return {
            "cond_shapes": {name: (steps, *frames.table.shape[1:]) for name, frames in texts.items()},
            "kinds": dict.fromkeys(texts, "text"),
            "embedders": {name: frames.embedder for name, frames in texts.items() if frames.embedder is not None},
        }

    def columns(self, rows: np.ndarray) -> Mapping[str, Column]:
        return {name: texts.column(rows) for name, texts in self.observations.items()}

    def digest(self) -> bytes:
        return b"".join(name.encode() + self.observations[name].digest() for name in sorted(self.observations))

    def training_spec(self, rows: np.ndarray) -> Mapping[str, Any]:
        listed = {name: texts.texts_at(rows) for name, texts in self.observations.items()}
        return {"instructions": {name: texts for name, texts in listed.items() if texts}}

    def shares(self, newest: np.ndarray, count: int, successes: Successes) -> list[Share] | None:
        weighted = self._weighted
        return None if weighted is None else weighted.shares(weighted.index[newest], count, successes)

    def summary(self, windows: int, shares: Sequence[Share] | None) -> Iterator[str]:
        if self._weighted is not None:
            counts = sorted(share.count / windows for share in shares)
            how = f" until {' and '.join(self.follows)} measures their success" if self.follows else ""
            yield f"{len(counts)} instructions, shares {counts[0]:.3g} to {counts[-1]:.3g}{how}"

    def mixture_warnings(self) -> Iterator[str]:
        """See `Extra`: about texts that a policy cannot tell apart."""
        for name, texts in self.observations.items():
            yield from (f"{name!r}: {warning}" for warning in texts.warnings)

    def warnings(self) -> Iterator[str]:
        """See `Extra`: about an instruction that is the same in every frame."""
        for name, frames in self.observations.items():
            if len(frames.texts) == 1:
                yield f"{name!r} is {frames.texts[0]!r} in every frame, so it tells the policy nothing"


def read_texts(record: LanguageConfig, store: EpisodeStore, chosen: Chosen) -> tuple[list[str], np.ndarray]:
    """The K different texts that occur, sorted, and (n,) int64 the number of each chosen frame's.

    Raises:
        DataError: a key is missing, or a frame has no text.
    """
    key = store.text_key if record.key is None else record.key
    if key is None:
        listed, count = _listed(record, store), len(chosen.recorded)
        numbers = np.zeros(count, np.int64) if len(listed) == 1 else np.arange(len(listed))
        if len(numbers) != count:
            finding = f"language.texts lists {len(listed)} texts for {count} episodes"
            raise DataError(store.where, [f"{finding}; give one for each, one for all, or the key of numbers"])
        values = np.repeat(numbers[chosen.numbers], chosen.lengths)
    else:
        values = _texts_of(store, key, chosen.column(store, key, "language"))
    unique, index = np.unique(values, return_inverse=True)
    if values.dtype.kind in "iu":
        listed = _listed(record, store)
        unknown = [int(number) for number in unique if number not in listed]
        if unknown:
            episode, frame = chosen.place(int(np.argmax(values == unknown[0])))
            finding = f"episode {episode}, frame {frame}: {key!r} is {unknown[0]}"
            raise DataError(store.where, [f"{finding}, but the texts are numbered {_span(listed)}"])
        unique = np.array([listed[int(number)] for number in unique])
    empty = [number for number, text in enumerate(unique) if not str(text).strip()]
    if empty:
        rows = np.flatnonzero(np.isin(index, empty))
        episode, frame = chosen.place(int(rows[0]))
        remedy = leaving_out(chosen.owners(rows))
        finding = f"episode {episode}, frame {frame}: the instruction is an empty text"
        raise DataError(store.where, [f"{finding}; write one, or {remedy}"])
    texts, merged = np.unique(unique, return_inverse=True)  # numbers may share a text
    return [str(text) for text in texts], merged[index.ravel()].astype(np.int64)


def _texts_of(store: EpisodeStore, key: str, values: np.ndarray) -> np.ndarray:
    """(rows,) numbers or texts, given the values of a key."""
    values = plain_texts(values.reshape(len(values)) if values.size == len(values) else values, store.locate(key, 0))
    if values.ndim != 1 or values.dtype.kind not in "iuUT":
        finding = f"key {key!r} holds {values.dtype} of shape {values.shape}"
        raise DataError(store.where, [f"language: {finding}; expected a text or the number of a text in each row"])
    return values


def _listed(record: LanguageConfig, store: EpisodeStore) -> dict[int, str]:
    """The texts that numbers stand for."""
    if isinstance(record.texts, tuple):
        return dict(enumerate(record.texts))
    if record.texts is not None:
        keys = store.keys()
        if record.texts not in keys:
            hint = nearest_name(record.texts, keys)
            raise DataError(store.where, [f"language: there is no key {record.texts!r}. {hint}"])
        values = _texts_of(store, record.texts, store.read(record.texts))
        return dict(enumerate(map(str, values)))
    if stored := store.texts() if record.key is None else store.texts_of(record.key):
        return stored
    remedy = "list them in language.texts"
    raise DataError(store.where, [f"language: nothing says which texts the numbers stand for; {remedy}"])


def _rows_of(folder: EmbeddingFolder, column: str, texts: Collection[str]) -> np.ndarray:
    """(K,) row of the embedding of each text, the first if there are several."""
    rows: dict[str, int] = {}
    done = 0
    for part in folder.columns([column], as_text=True):
        for number, text in enumerate(part[column]):
            rows.setdefault(text, done + number)
        done += len(part[column])
    missing = [text for text in texts if text not in rows]
    if missing:
        finding = f"{len(missing)} of the {len(texts)} instructions have no embedding: {_named(missing)}"
        raise DataError(folder.path, [f"{finding}; make them with dp-prior embed, in a new folder"])
    return np.array([rows[text] for text in texts], dtype=np.int64)


def _same_embeddings(texts: list[str], table: np.ndarray) -> list[str]:
    """A warning about different texts with one embedding. Args: table: (K, dimension)."""
    _, first, owner = np.unique(table, axis=0, return_index=True, return_inverse=True)
    repeated = np.flatnonzero(first[owner.ravel()] != np.arange(len(texts)))
    if not len(repeated):
        return []
    text, other = texts[repeated[0]], texts[first[owner.ravel()[repeated[0]]]]
    finding = f"{len(repeated)} of {len(texts)} instructions have the embedding of another"
    finding += f", such as {text!r} and {other!r}"
    return [f"{finding}; the policy cannot tell them apart. Texts that are too long are cut by their model"]


def _named(texts: list[str]) -> str:
    return first_few([repr(text) for text in texts], 3)


def _span(listed: Collection[int]) -> str:
    return f"{min(listed)} to {max(listed)}" if listed else "by nothing: there are none"
