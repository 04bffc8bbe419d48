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
    """Compare every folder with the first, whose rows are the partners of its own by their order.

    Raises:
        DataError: the numbers of rows differ; or files that lie beside each other have other numbers in their names, or
            rows other keys, so that only the sum of the rows agrees.
    """
    rows = {folder.path: folder.count for folder in folders}
    if len(set(rows.values())) > 1:
        raise DataError(folders[0].path, [f"rows must lie beside each other, but the folders have {rows}"])
    problems = [problem for other in folders[1:] for problem in _faults(folders[0], other)]
    if problems:
        raise DataError(folders[0].path, problems, "rows are pairs by their order, so these would be wrong pairs")


def pair_warnings(folders: Sequence[EmbeddingFolder]) -> list[str]:
    """A line for every folder with other rows per file than the first, unless keys were compared."""
    one, *others = folders
    return [
        f"{_first_difference(one, other)}: only the sum of the rows agrees, so nothing shows that rows are "
        f"pairs; write both with the same rows per file, or metadata with a column {' or '.join(KEYS)} to both"
        for other in others
        if one.rows.counts.tolist() != other.rows.counts.tolist() and _common_key(one, other) is None
    ]


def _first_difference(one: EmbeddingFolder, other: EmbeddingFolder) -> str:
    if len(one.rows.paths) != len(other.rows.paths):
        return f"{one.path} has {len(one.rows.paths)} files, {other.path} {len(other.rows.paths)}"
    place = int((one.rows.counts != other.rows.counts).argmax())
    mine, its = one.rows.counts[place], other.rows.counts[place]
    return f"{one.rows.paths[place]} has {mine} rows, {other.rows.paths[place]} beside it {its}"


def _faults(one: EmbeddingFolder, other: EmbeddingFolder) -> Iterator[str]:
    paths, others = one.rows.paths, other.rows.paths
    if len(paths) == len(others):
        mine, theirs = _numbers(paths), _numbers(others)
        for path, beside, number, its in zip(paths, others, mine, theirs, strict=True):
            if number != its and None not in (number, its):
                yield f"{path} lies beside {beside}; the numbers in their names differ, so one of them has no partner"
                return
    yield from _other_keys(one, other)


def _numbers(paths: Sequence[str]) -> list[tuple[int, ...] | None]:
    """The numbers in each name that differ from file to file; None for files without such a number."""
    found = [tuple(map(int, re.findall(r"\d+", PurePosixPath(path).name.rpartition(".")[0]))) for path in paths]
    if len(paths) < 2 or len({len(numbers) for numbers in found}) > 1:
        return [None] * len(paths)
    varied = [place for place, column in enumerate(zip(*found, strict=True)) if len(set(column)) > 1]
    return [tuple(numbers[place] for place in varied) or None for numbers in found]


def _common_key(one: EmbeddingFolder, other: EmbeddingFolder) -> str | None:
    """A column that both metadata have and that names images."""
    return next((key for key in KEYS if one.has_column(key) and other.has_column(key)), None)


def _other_keys(one: EmbeddingFolder, other: EmbeddingFolder) -> Iterator[str]:
    """The first row whose key is another one in both metadata."""
    if (key := _common_key(one, other)) is None:
        return
    rows = zip(_values(one, key), _values(other, key), strict=False)
    for row, (mine, its) in enumerate(itertools.islice(rows, MOST_KEYS)):
        if mine != its:
            yield f"row {row} has the {key} {mine!r}, but {its!r} in {other.path}"
            return


def _values(folder: EmbeddingFolder, key: str) -> Iterator[str]:
    return (value for part in folder.columns([key], as_text=True) for value in part[key])
