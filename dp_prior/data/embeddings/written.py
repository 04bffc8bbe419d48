"""Folders of embeddings as `dp-prior embed` writes them: parquet files, and `embedder.json`, which names the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import SerializerFunctionWrapHandler, ValidationError, model_serializer

from dp_prior.config import Config
from dp_prior.data.errors import DataError
from dp_prior.data.files import reading
from dp_prior.embedders import EmbedderConfig
from dp_prior.files.json_text import unseal
from dp_prior.files.regular_files import read_small

RECORD = "embedder.json"
COLUMN = "embedding"


class EmbeddingsRecord(Config):
    """The origin of a folder of embeddings: the model, the embedded data, and the number of rows."""

    format: int = 1
    """Version of the layout."""

    embedder: EmbedderConfig
    """The model, with its hash."""

    source: dict[str, str | int]
    """Name of the embedded texts or frames, with a hash of their content."""

    rows: int
    """Number of embeddings."""

    cut: int = 0
    """Number of rows whose text is longer than the model reads; the file omits 0."""

    @model_serializer(mode="wrap")
    def _leave_out_no_cut(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if name != "cut" or value}

    @property
    def job(self) -> tuple[object, ...]:
        """Equal for records of the same job, wherever the model lies."""
        return self.embedder.identity, self.source, self.rows


def read_record(folder: Path) -> EmbeddingsRecord | None:
    """Read the record of a folder; None for a folder that another program wrote.

    Raises:
        DataError: the record is damaged.
    """
    path = folder / RECORD
    if not path.is_file():
        return None
    with reading(path):
        data = read_small(path)
    try:
        return EmbeddingsRecord.model_validate(unseal(data))
    except (ValueError, ValidationError) as error:
        problem = f"is no record of embeddings ({str(error).splitlines()[0]}); embed again into another folder"
        raise DataError(str(path), [problem]) from None


def cut_warnings(record: EmbeddingsRecord | None, where: str) -> list[str]:
    """Warn of texts that are longer than their model reads. Args: record: record of the folder `where`."""
    if record is None or not record.cut:
        return []
    count = f"{where}: {record.cut:,} of {record.rows:,} texts are longer than their model reads"
    return [f"{count}; texts that differ after that have one embedding. Shorten them, or take a model that reads more"]
