"""An episode in a table, CSV or parquet, with a row per step; numbered columns, such as `q0` and `q1`, are one key."""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path

import numpy as np

from dp_prior.data.errors import DataError, first_few
from dp_prior.data.files import decoding, reading
from dp_prior.data.formats.grouped import EpisodeArrays, Layout
from dp_prior.data.formats.lerobot.tables import read_columns, to_numpy
from dp_prior.files.entry_points import needing
from dp_prior.files.regular_files import check_regular

_NUMBERED = re.compile(r"(.+?)[._\[ ]*(\d+)\]?")

_DECIMAL_COMMA = re.compile(r"^(\s*[-+]?\d*),(\d+(?:[eE][-+]?\d+)?\s*)$")

_ABSENT = ("", "na", "n/a", "null", "none")
"""Cells for a number that is absent, as pandas, R, SQL and Python write them in lower case or upper case."""

_COUNTERS = ("episode", "episode_index", "episode_id", "demo", "demo_id", "traj_id", "trajectory_id")


class TableEpisode(EpisodeArrays):
    """See `EpisodeArrays`; one file. Empty cells and nulls of numbers are NaN. Numbers of CSV are float64, and its
    columns of true and false bool, in any case."""

    def __init__(self, path: Path):
        self.file, self.where = path, str(path)

    @cached_property
    def layout(self) -> Layout:
        return {key: (values.shape, values.dtype) for key, values in self._read[0].items()}

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        return self._read[0][key][first:stop]

    @property
    def lost(self) -> dict[str, str]:
        return self._read[1]

    @cached_property
    def _read(self) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """Read the rows of every key, and `lost`; cached, since a table is read as a whole.

        Raises:
            DataError: the file cannot be read, or a column numbers several episodes.
            ImportError: pyarrow is not installed.
        """
        columns, lost = _csv(self.file) if self.file.suffix == ".csv" else _parquet(self.file)
        for name in _COUNTERS:
            count = len(np.unique(columns[name])) if name in columns else 1
            if count > 1:
                problem = f"column {name!r} numbers {count:,} episodes; expected one"
                raise DataError(self.where, [f"{problem}: save each as a file (docs/own_data.md#other-files)"])
        return _joined(columns), lost


def _csv(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the columns by the names in the first line, as texts where a cell is no number; no column is lost."""
    with reading(path), decoding(path, "is not a readable CSV file in UTF-8"):
        check_regular(path, path.stat().st_mode)
        with path.open("rb") as stream:
            encoding = "utf-16" if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
        with path.open(encoding=encoding, newline="") as stream:
            separator = _separator(next((line for line in stream if not line.startswith(("#", "\n"))), ""))
            stream.seek(0)
            names, *rows = _without_comments([row for row in csv.reader(stream, delimiter=separator) if row])
    if separator != ",":
        rows = [[_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row] for row in rows]
    is_counted = [*filter(None, names)] == [*map(str, range(sum(map(bool, names))))]  # 0, 1, ... by pandas
    if all(map(_is_number, names)) and not is_counted:
        problem = f"the first line holds {first_few(names, 3)}, all numbers; expected the names of the columns"
        raise DataError(str(path), [f"{problem}, such as q0, q1, action0: write them above"])
    if len(rows) > 1 and not any(map(_is_number, rows[0])) and all(map(_is_number, rows[1])):
        problem = f"the line below the names holds {first_few(rows[0], 3)}, such as units, and no number"
        raise DataError(str(path), [f"{problem}; remove that line"])
    wrong = next((number for number, row in enumerate(rows) if len(row) != len(names)), None)
    if wrong is not None:
        problem = f"row {wrong} has {len(rows[wrong])} cells, the line of names {len(names)}; the file is cut off"
        raise DataError(str(path), [f"{problem}, a column has no name, or a text has commas without quotes"])
    names = [name.strip() for name in names]
    _refuse_double(names, path)
    return {name: _numbers(column) for name, column in zip(names, zip(*rows, strict=True), strict=False)}, {}


def _without_comments(lines: list[list[str]]) -> list[list[str]]:
    """Drop the lines at the top that begin with #, except for names of columns as `numpy.savetxt` writes them."""
    while lines and lines[0][0].startswith("#"):
        first, *lines = lines
        if lines and len(first) == len(lines[0]) > 1 and any(map(_is_number, lines[0])):
            return [[first[0].lstrip("# "), *first[1:]], *lines]
    return lines


def _separator(line: str) -> str:
    """Find the separator of the cells in a line: a comma, else a semicolon or a tab."""
    return next((sign for sign in (",", ";", "\t") if sign in line), ",")


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell or "0"))
    except ValueError:
        return False


def _refuse_double(names: list[str], path: Path) -> None:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(str(path), [f"has {count} columns {name!r}; give each column a name of its own"])


def _numbers(cells: tuple[str, ...]) -> np.ndarray:
    try:
        return np.array(["nan" if cell.strip().lower() in _ABSENT else cell for cell in cells], np.float64)
    except ValueError:
        words = np.array([cell.strip().lower() for cell in cells])
        return words == "true" if {*words.tolist()} <= {"true", "false"} else np.array(cells)


def _parquet(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the columns of numbers, of equally long lists of numbers and of texts, and why others cannot be read."""
    with needing("lerobot", "tables in parquet need pyarrow"):
        import pyarrow
        from pyarrow import compute, parquet
    with reading(path), decoding(path, "is not a readable parquet file"):
        check_regular(path, path.stat().st_mode)
        schema = parquet.read_schema(path)
    _refuse_double(schema.names, path)
    binary = {field.name for field in schema if pyarrow.types.is_binary(field.type) or field.type.num_fields > 1}
    lost = {name: f"{path}[{name}] holds {schema.field(name).type}, no numbers" for name in sorted(binary)}
    table, columns = read_columns(path, [name for name in schema.names if name not in binary]), {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_float = pyarrow.types.is_floating(column.type)
        if column.null_count and (is_float or pyarrow.types.is_integer(column.type)):  # pandas writes NaN as null
            column = compute.fill_null(column if is_float else column.cast("float64"), math.nan)
        try:
            columns[name] = to_numpy(column, path, name, may_be_text=True)
        except DataError as error:
            lost[name] = "; ".join(error.problems)
    return columns, lost


def numbers_columns(path: Path) -> bool:
    """Whether several columns of a readable parquet file differ only in a number, as those of embeddings, which are
    vectors too, never do."""
    from pyarrow import parquet

    keys = [match[1] for match in map(_NUMBERED.fullmatch, parquet.read_schema(path).names) if match]
    return len(keys) > len({*keys})


def _joined(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Join columns of numbers that are numbered from 0 or 1 without a gap into one key; others stay as they are."""
    numbered = defaultdict[str, dict[int, str]](dict)
    for name, values in columns.items():
        match = _NUMBERED.fullmatch(name)
        if match and values.ndim == 1 and values.dtype.kind in "biuf":
            numbered[match[1]][int(match[2])] = name
    joined = {}
    for key, names in numbered.items():
        order = sorted(names)
        has_no_gap = order[0] in (0, 1) and order == list(range(order[0], order[0] + len(order)))
        if len(order) > 1 and key not in columns and has_no_gap:
            joined[key] = np.stack([columns.pop(names[number]) for number in order], axis=1)
    return columns | joined
