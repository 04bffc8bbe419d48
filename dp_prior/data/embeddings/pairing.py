"""Whether the files of two folders of embeddings belong together: by the numbers in their names, by their rows, and by
a key of both metadata."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from dp_prior.data.embeddings.folder import EmbeddingFolder
from dp_prior.data.errors import DataError

KEYS = ("key", "image_path", "image_id")
"""Usual columns of metadata that name the image of a row."""

MOST_KEYS = 1_000_000
"""Rows whose keys are compared at each start."""


def check_pairs(folders: Sequence[EmbeddingFolder]) -> None:
    """Compare every folder with the first: row i of each folder belongs to row i of the first.

    Raises:
        DataError: the numbers of rows differ; or partner files have different numbers in their names, or partner rows
            different keys.
    """
    rows = {folder.path: folder.count for folder in folders}
    if len(set(rows.values())) > 1:
        other = next(folder for folder in folders if folder.count != folders[0].count)
        problem = f"rows must lie beside each other, but the folders have {rows}"
        raise DataError(folders[0].path, [f"{problem}: {_first_difference(folders[0], other)}"])
    problems = []
    for other in folders[1:]:
        problems += _faults(folders[0], other)
    if problems:
        raise DataError(folders[0].path, problems, "rows are pairs by their order, so these would be wrong pairs")


def pair_warnings(folders: Sequence[EmbeddingFolder]) -> list[str]:
    """Warn of every folder with other rows per file than the first, unless keys were compared."""
    first, *partners = folders
    return [
        f"{_first_difference(first, partner)}: only the sum of the rows agrees, so nothing shows that rows are "
        f"pairs; write both with the same rows per file, or metadata with a column {' or '.join(KEYS)} to both"
        for partner in partners
        if first.rows.counts.tolist() != partner.rows.counts.tolist() and _common_key(first, partner) is None
    ]


def _first_difference(first: EmbeddingFolder, partner: EmbeddingFolder) -> str:
    """Describe the first file with another number of rows than its partner, or another number of files."""
    paths, partner_paths = first.rows.paths, partner.rows.paths
    if len(paths) != len(partner_paths):
        longer, shorter = sorted((paths, partner_paths), key=len, reverse=True)
        numbers, numbered = {*_numbers(shorter)}, zip(_numbers(longer), longer, strict=True)
        alone = next((path for number, path in numbered if number not in numbers), None)
        files = f"{first.path} has {len(paths)} files, {partner.path} {len(partner_paths)}"
        return files if alone is None or len(shorter) < 2 else f"{files}, none of which belongs to {alone}"
    place = int((first.rows.counts != partner.rows.counts).argmax())
    count, partner_count = first.rows.counts[place], partner.rows.counts[place]
    return f"{first.rows.paths[place]} has {count} rows, {partner.rows.paths[place]} beside it {partner_count}"


def _faults(first: EmbeddingFolder, partner: EmbeddingFolder) -> Iterator[str]:
    """Yield the first pair of files with different numbers in their names, or else the first pair of different keys."""
    paths, partner_paths = first.rows.paths, partner.rows.paths
    if len(paths) == len(partner_paths):
        pairs = zip(paths, partner_paths, _numbers(paths), _numbers(partner_paths), strict=True)
        for path, beside, numbers, partner_numbers in pairs:
            if numbers != partner_numbers and None not in (numbers, partner_numbers):
                yield f"{path} lies beside {beside}; the numbers in their names differ, so one of them has no partner"
                return
    yield from _key_faults(first, partner)


def _numbers(paths: Sequence[str]) -> list[tuple[int, ...] | None]:
    """The numbers in each name that differ from file to file; None for files without such a number."""
    stems = [PurePosixPath(path).name.rpartition(".")[0] for path in paths]
    numbers_by_file = [tuple(map(int, re.findall(r"\d+", stem))) for stem in stems]
    if len(paths) < 2 or len(set(map(len, numbers_by_file))) > 1:
        return [None] * len(paths)
    columns = [column for column in zip(*numbers_by_file, strict=True) if len(set(column)) > 1]
    return list(zip(*columns, strict=True)) if columns else [None] * len(paths)


def _common_key(first: EmbeddingFolder, partner: EmbeddingFolder) -> str | None:
    """A column that both metadata have and that names images."""
    return next((key for key in KEYS if first.has_column(key) and partner.has_column(key)), None)


def _key_faults(first: EmbeddingFolder, partner: EmbeddingFolder) -> Iterator[str]:
    """Yield the first row whose keys in the two metadata differ."""
    column = _common_key(first, partner)
    if column is None:
        return
    pairs = zip(_values(first, column), _values(partner, column), strict=False)
    for row, (key, partner_key) in enumerate(itertools.islice(pairs, MOST_KEYS)):
        if key != partner_key:
            yield f"row {row} has the {column} {key!r}, but {partner_key!r} in {partner.path}"
            return


def _values(folder: EmbeddingFolder, column: str) -> Iterator[str]:
    for part in folder.columns([column], as_text=True):
        yield from part[column]
