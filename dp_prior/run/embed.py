"""`dp-prior embed`: embeddings of the texts of a file, or of the instructions or camera frames of a configuration."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from dp_prior.config import Config, ConfigError
from dp_prior.data.embeddings.metadata import read_table
from dp_prior.data.embeddings.written import COLUMN, EmbeddingsRecord, Job, write_embeddings
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.images import ImageConfig, build_caches
from dp_prior.data.language import LanguageConfig, read_texts
from dp_prior.data.selection import ACTION, read_selected
from dp_prior.data.trajectories import TrajectoriesConfig
from dp_prior.embedders import Embedder, named
from dp_prior.run.config import TrainConfig


def embed_file(model: str, out: Path, texts: Path, column: str, report: Callable[[str], None]) -> bool:
    """Embed the texts of a file, row by row: a text file with one in each line, or a column of a CSV or parquet file,
    whose other columns are kept as metadata. Returns False if that was done already.

    Raises:
        DataError: the file cannot be read, or a text is empty.
        FileExistsError: see `write_embeddings`.
    """
    columns = read_table(texts, column)
    if COLUMN in columns:
        raise DataError(str(texts), [f"has a column {COLUMN!r}, which is the name of what is written; rename it"])
    found = [str(text) for text in columns[column]]
    empty = [row for row, text in enumerate(found) if not text.strip()]
    if empty or not found:
        raise DataError(str(texts), [f"row {empty[0]}: the text is empty; leave it out" if empty else "has no texts"])
    digest = hashlib.sha256(texts.read_bytes()).hexdigest()
    return _write(
        model, out, columns, {"texts": column, "sha256": digest}, lambda embedder: _texts(embedder, found), report
    )


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
    if not isinstance(config.data, TrajectoriesConfig):
        raise ConfigError(str(config_file), [f"data is {config.data.type!r}; expected recorded trajectories"])
    records: dict[str, LanguageConfig | ImageConfig] = {**config.data.language, **config.data.images}
    if key not in records:
        hint = nearest_name(key, records)
        raise ConfigError(str(config_file), [f"neither data.language nor data.images has {key!r}. {hint}"])
    data = config.data.downloaded({})
    store = data.episodes.create()
    _, ends, _ = read_selected(store, {ACTION: data.action})
    record = records[key]
    if isinstance(record, LanguageConfig):
        texts, _ = read_texts(record, store, ends)
        source = {"texts": record.text, "sha256": hashlib.sha256("\0".join(texts).encode()).hexdigest()}
        return _write(model, out, {record.text: texts}, source, lambda embedder: _texts(embedder, texts), report)
    column = data.frames(store, ends, {key: record})[key]
    build_caches({key: column}, 1, report, lambda: None)
    index = column.frames.index
    described = f"{index.fit.model_dump_json()}{index.encoding.model_dump_json()}{''.join(index.digests)}"
    episode = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    frame = np.arange(len(episode)) - np.concatenate([[0], ends])[episode]
    source = {"frames": key, "sha256": hashlib.sha256(described.encode()).hexdigest()}

    def frames(embedder: Embedder) -> Callable[[int, int], np.ndarray]:
        return lambda first, stop: embedder.frames(column.rows(torch.arange(first, stop)).numpy())

    return _write(model, out, {"episode": episode, "frame": frame}, source, frames, report)


def _texts(embedder: Embedder, texts: list[str]) -> Callable[[int, int], np.ndarray]:
    return lambda first, stop: embedder.texts(texts[first:stop])


def _write(
    model: str,
    out: Path,
    columns: dict[str, object],
    source: dict[str, str],
    embed: Callable[[Embedder], Callable[[int, int], np.ndarray]],
    report: Callable[[str], None],
) -> bool:
    record: Config = named(model).resolve()
    count = len(next(iter(columns.values())))
    described = EmbeddingsRecord(embedder=record, source=source, rows=count)
    return write_embeddings(out, Job(described, columns, embed(record.create())), report)
