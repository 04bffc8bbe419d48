"""`dp-prior embed`: embeddings of the texts or pictures of a table, or of the instructions or camera frames of a
configuration."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp_prior.config import Config, ConfigError, an
from dp_prior.data.embeddings.metadata import read_table
from dp_prior.data.embeddings.written import COLUMN, EmbeddingsRecord, cut_warnings
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import reading
from dp_prior.data.frames.frame_column import build_caches
from dp_prior.data.recorded.camera import camera_columns
from dp_prior.data.recorded.language import read_texts
from dp_prior.data.recorded.selection import ACTION, read_selected
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.embedders import Embedder
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.embedders.transformers import TransformersConfig
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.pixels.picture_files import PictureError, encoded_picture, import_pillow, opened_picture
from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings

PICTURES_REMEMBERED = 64
"""Captions of one picture are near each other."""


def embed_texts(
    model: str, out: Path, table: Path, column: str, report: Callable[[str], None], *, by_token: bool = False
) -> bool:
    """Embed the texts of a file, row by row: a text file with one in each line, or a column of a CSV, JSON lines or
    parquet file, whose other columns are kept as metadata. Returns False if that was done already.

    Args:
        by_token: write an encoding of each token instead of one embedding, for `data.text_encodings` of a prior.

    Raises:
        DataError: the file cannot be read, or a text is empty.
        ConfigError: the model cannot be loaded, or does not read these texts.
        FileExistsError: see `write_embeddings`.
    """
    columns, texts = _read(table, column)
    kind = "encodings" if by_token else "texts"
    source = {kind: column, "sha256": hashlib.sha256(table.read_bytes()).hexdigest()}
    embed = _encodings if by_token else _texts
    return _write(model, out, columns, source, lambda embedder: embed(embedder, texts), report, texts)


def embed_pictures(model: str, out: Path, table: Path, column: str, report: Callable[[str], None]) -> bool:
    """Embed the pictures whose files a table names, relative to itself, row by row; otherwise like `embed_texts`.

    Raises:
        DataError: the table cannot be read, or a path is empty or of no picture.
        FileExistsError: see `write_embeddings`.
        ImportError: Pillow is not installed.
    """
    import_pillow()
    columns, names = _read(table, column)
    missing = [(row, path) for row, name in enumerate(names) if not (path := table.parent / name).is_file()]
    if missing:
        raise DataError(str(table), [f"row {row}: there is no file {path}" for row, path in missing])
    digest = hashlib.sha256(table.read_bytes())
    for path in dict.fromkeys(table.parent / name for name in names):
        with reading(path):
            digest.update(hashlib.sha256(encoded_picture(path)).digest())

    def pictures(embedder: Embedder) -> Callable[[int, int], np.ndarray]:
        embedding_of = lru_cache(PICTURES_REMEMBERED)(
            lambda name: embedder.frames(read_rgb(table.parent / name)[None])[0]
        )
        return lambda first, stop: np.stack([embedding_of(name) for name in names[first:stop]])

    return _write(model, out, columns, {"images": column, "sha256": digest.hexdigest()}, pictures, report)


def _read(table: Path, column: str) -> tuple[dict[str, Any], list[str]]:
    """All columns of a file by name, and the texts of one of them.

    Raises:
        DataError: it cannot be read, or a text is empty or no text.
    """
    columns = read_table(table, column)
    if COLUMN in columns:
        raise DataError(str(table), [f"has a column {COLUMN!r}, which is the name of what is written; rename it"])
    odd = [row for row, text in enumerate(columns[column]) if isinstance(text, (bytes, list, dict))]
    if odd:
        kind = type(columns[column][odd[0]]).__name__
        raise DataError(str(table), [f"row {odd[0]}: the {column} is {an(kind)}; expected a text in UTF-8"])
    texts = ["" if text is None else str(text) for text in columns[column]]
    empty = [row for row, text in enumerate(texts) if not text.strip()]
    if empty or not texts:
        problem = f"row {empty[0]}: the {column} is empty; leave it out" if empty else "has no rows"
        raise DataError(str(table), [problem])
    return columns, texts


def embed_data(
    model: str, out: Path, config_file: Path, overrides: Iterable[str], key: str, report: Callable[[str], None]
) -> bool:
    """Embed what `data.language` or `data.images` of a configuration calls `key`: each different instruction once, or
    every frame. Returns False if that was done already.

    Raises:
        ConfigError: the configuration has no such key.
        DataError: the data set cannot be read.
        FileExistsError: see `write_embeddings`.
    """
    config = TrainConfig.from_json_path(config_file, overrides)
    data = _set_with(key, config, config_file).downloaded({})
    with config.explaining_missing_data():
        store = data.episodes.create()
    _, chosen, _ = read_selected(store, {ACTION: data.action}, data.choice, max_rows=data.split.max_rows)
    if record := data.language.get(key):
        texts, _ = read_texts(record, store, chosen)
        source = {"texts": record.text, "sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest()}
        return _write(model, out, {record.text: texts}, source, lambda embedder: _texts(embedder, texts), report, texts)
    column = camera_columns({key: data.images[key]}, store, chosen, data.frame_caches)[key]
    build_caches({key: column}, 1, report, lambda: None)
    episode = np.repeat(chosen.numbers, chosen.lengths)
    frame = np.concatenate([np.arange(length) for length in chosen.lengths])
    source = {"frames": key, "sha256": hashlib.sha256(column.frames.index.content().encode()).hexdigest()}

    def frames(embedder: Embedder) -> Callable[[int, int], np.ndarray]:
        return lambda first, stop: embedder.frames(column.rows(torch.arange(first, stop)).numpy())

    return _write(model, out, {"episode": episode, "frame": frame}, source, frames, report)


def _set_with(key: str, config: TrainConfig, config_file: Path) -> TrajectoriesConfig:
    """The data set of a configuration whose `language` or `images` has a key.

    Raises:
        ConfigError: no recorded data have such a key, or several sets have.
    """
    sets = config.data.recorded_sets()
    if not sets:
        raise ConfigError(str(config_file), [f"data is {config.data.type!r}; expected recorded trajectories"])
    keys = {name: (*record.language, *record.images) for name, record in sets.items()}
    owners = [name for name in sets if key in keys[name]]
    if len(owners) > 1:
        problem = f"data.sets {owners} all have {key!r}; embed the instructions of all these sets with --texts"
        raise ConfigError(str(config_file), [problem])
    if not owners:
        hint = nearest_name(key, [*chain.from_iterable(keys.values())])
        raise ConfigError(str(config_file), [f"neither data.language nor data.images has {key!r}. {hint}"])
    return sets[owners[0]]


def _texts(embedder: Embedder, texts: list[str]) -> Callable[[int, int], np.ndarray]:
    return lambda first, stop: embedder.texts(texts[first:stop])


def _encodings(embedder: Embedder, texts: list[str]) -> Callable[[int, int], np.ndarray]:
    """A row holds the encodings of all tokens of a text."""
    return lambda first, stop: embedder.encodings(texts[first:stop]).reshape(stop - first, -1)


def _write(
    model: str,
    out: Path,
    columns: dict[str, Any],
    source: dict[str, str],
    embed: Callable[[Embedder], Callable[[int, int], np.ndarray]],
    report: Callable[[str], None],
    texts: Sequence[str] = (),
) -> bool:
    """Args: texts: those that are embedded, if texts are."""
    record: Config = embedder_of(model).resolve()
    count = len(next(iter(columns.values())))
    with _refusing(model):
        embedder = record.create()
        cut = embedder.too_long(texts) if texts else []
        rows = embed(embedder)
    described = EmbeddingsRecord(embedder=record, source=source, rows=count, cut=len(cut))
    for line in cut_warnings(described, str(out)):
        report(f"{line}; the first is {texts[cut[0]][:60]!r}")

    def embedded(first: int, stop: int) -> np.ndarray:
        with _refusing(model):
            return rows(first, stop)

    return write_embeddings(out, Job(described, columns, embedded), report)


@contextlib.contextmanager
def _refusing(model: str) -> Iterator[None]:
    """Report what an embedder refuses: files that are no model, frames for a model of texts, a text without a word."""
    try:
        yield
    except DataError:
        raise
    except ValueError as error:
        raise ConfigError(f"--model {model}", [str(error)]) from error


def read_rgb(path: Path) -> np.ndarray:
    """(H, W, 3) uint8 RGB of a picture file of any mode, converted as CLIP's own preprocessing does it.

    Raises:
        DataError: it cannot be read or decoded.
    """
    with reading(path):
        data = encoded_picture(path)
    try:
        with opened_picture(data) as picture:
            return np.array(picture.convert("RGB"))
    except PictureError as error:
        raise DataError(str(path), [str(error)]) from None


def embedder_of(name: str) -> Config:
    """The record of a model: `hashed` or `hashed:DIMENSION`, otherwise a local folder or user/name[@revision].

    Raises:
        ConfigError: the dimension is out of range.
    """
    kind, _, dimension = name.partition(":")
    if kind == "hashed":
        return HashedConfig.from_json(f'{{"dimension": {dimension or 64}}}', source=name)
    return TransformersConfig(model=name)
