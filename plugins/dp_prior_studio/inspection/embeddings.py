"""Folders of embeddings: counts, lengths, copies, and whether texts belong to their images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.embeddings.folder import EmbeddingFolder
from dp_prior.data.embeddings.metadata import read_columns
from dp_prior.data.embeddings.pairing import check_pairs, pair_warnings
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.embeddings.written import RECORD, cut_warnings, read_record
from dp_prior.data.errors import DataError
from dp_prior.data.pictures.decode import PICTURE_ENDINGS
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.batch import X
from dp_prior_studio.inspection.finding import Finding, refused

MOST_ROWS, BLOCK = 4096, 256
"""Rows that are read, in evenly spread blocks."""

SAME_X = ("image_id", "image_path")
"""Columns of metadata that identify the image of a row."""


@dataclass(frozen=True)
class FolderRows:
    """Rows of one folder.

    Attributes:
        numbers: (n,) of the rows that were read.
        values: (n, dimension) float32.
    """

    name: str
    folder: EmbeddingFolder
    numbers: np.ndarray
    values: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """(n,) of the embeddings."""
        return np.linalg.norm(self.values.astype(np.float64), axis=1)


def read_rows(record: EmbeddingsConfig) -> list[FolderRows]:
    """Some rows of every folder, the same ones of each.

    Raises:
        DataError: a folder cannot be read, or they have different numbers of rows.
    """
    folders = {"image" if name == X else name: record.create() for name, record in record.folders().items()}
    check_pairs(list(folders.values()))
    total = record.split.used(next(iter(folders.values())).count)
    starts = evenly_spread(-(-total // BLOCK), MOST_ROWS // BLOCK).tolist()
    spans = [(start * BLOCK, min((start + 1) * BLOCK, total)) for start in starts]
    numbers = np.concatenate([np.arange(*span) for span in spans])
    folder_rows = []
    for name, folder in folders.items():
        blocks = [folder.rows.read(*span) for span in spans]
        folder_rows.append(FolderRows(name, folder, numbers, np.concatenate(blocks).astype(np.float32)))
    return folder_rows


def _refused_split(rows: FolderRows, record: EmbeddingsConfig) -> Iterator[Finding]:
    """Why training cannot divide the rows by their metadata."""
    try:
        if record.split.by is not None:
            record.split.assign(rows.folder)
    except DataError as error:
        yield from refused(error.source, error.problems)


def find_in_rows(folders: list[FolderRows], record: EmbeddingsConfig) -> Iterator[Finding]:
    """All findings about embeddings."""
    for rows in folders:
        bad = np.flatnonzero(~np.isfinite(rows.lengths) | (rows.lengths == 0) & (rows.name != "text_encodings"))
        if len(bad):
            text = f"{rows.name}: {len(bad):,} of {len(rows.numbers):,} rows are zero or not finite, first row"
            yield Finding(
                "error",
                f"{text} {rows.numbers[bad[0]]}: {rows.folder.rows.locate(int(rows.numbers[bad[0]]))}",
                code="rows-not-finite",
            )
    yield from _refused_split(folders[0], record)
    warnings = pair_warnings([rows.folder for rows in folders])
    yield from (Finding("warning", line, code="embeddings-pairing") for line in warnings)
    for rows in folders:
        lines = cut_warnings(read_record(expanded(rows.folder.path)), rows.folder.path)
        yield from (Finding("warning", line, code="texts-cut") for line in lines)
    by_name = {rows.name: rows.values for rows in folders}
    image, text = by_name["image"], by_name.get("text")
    copies = len(image) - len(np.unique(image, axis=0))
    if copies and record.split.by is None:
        found_copies = f"image: {copies:,} of {len(image):,} rows repeat another one"
        yield Finding(
            "warning",
            f"{found_copies}; name the column of the image in data.split.by, or they leak",
            code="rows-repeated",
        )
    if text is not None and text.shape == image.shape and len(image) > 1:
        paired, other = _cosine(image, text), _cosine(image, np.roll(text, len(text) // 2, axis=0))
        if paired.mean() <= other.mean() + 2 * other.std() / len(other) ** 0.5:
            numbers = f"cosine {paired.mean():.3f} on average, {other.mean():.3f} with that of another row"
            yield Finding(
                "warning",
                f"texts fit their images no better than those of other rows ({numbers})",
                code="pairs-unrelated",
            )


def embeddings_at(place: Path) -> dict[str, Any] | None:
    """`data` of a configuration for .npy files at a place, or folders of `dp-prior embed`; None for other places."""
    files = sorted(place.rglob("*.npy")) if place.is_dir() else [place] * (place.suffix == ".npy" and place.is_file())
    if not files:
        return _written_at(place)
    if any(beside.suffix in PICTURE_ENDINGS for beside in files[0].parent.iterdir()):
        return None  # arrays beside pictures, such as depth
    groups = dict.fromkeys(file if file.parent == place or file == place else file.parent for file in files)
    data: dict[str, Any] = {"type": "embeddings"}
    for kind, words in (("text", ("text", "txt", "caption")), ("image", ("img", "image", ""))):
        candidates = [place for place in groups if any(word in place.name.lower() for word in words)]
        if candidates:
            group = candidates[0]
            data[kind] = {"path": str(group)}
            del groups[group]
    tables = sorted([*place.rglob("*.csv"), *place.rglob("metadata*.parquet")]) if place.is_dir() else []
    for table in tables if "image" in data else []:
        for column in SAME_X:
            try:
                next(read_columns(str(table), [column]))
            except (DataError, StopIteration):
                continue
            where = table if table.parent == place else table.parent
            return data | {"image": data["image"] | {"metadata": str(where)}, "split": {"by": column}}
    return data


def _written_at(place: Path) -> dict[str, Any] | None:
    """`embeddings_at` for folders that `dp-prior embed` wrote: the place itself, or folders in it."""
    folders: dict[str, Any] = {}
    for file in sorted([*place.glob(RECORD), *place.glob(f"*/{RECORD}")]):
        record = read_record(file.parent)
        kind = "image" if record is None or {"frames", "images"} & record.source.keys() else "text"
        folders.setdefault(kind, {"path": str(file.parent), "format": "parquet"})
    return {"type": "embeddings", **folders} if folders else None


def _cosine(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(n,) of rows; numbers that are not finite count as 0, so that one row hides no fault of the others."""
    first, second = (np.nan_to_num(rows.astype(np.float64), posinf=0.0, neginf=0.0) for rows in (first, second))
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / np.where(lengths > 0, lengths, 1)
