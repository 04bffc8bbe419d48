"""`metrics.csv` in the run directory, for spreadsheets: one row for each step, a column for each metric.

A metric that appears later adds a column at the end; earlier rows are empty there. Rows that a resumed run will write
again, and rows that are none, go to `metrics.cut.csv`. NaN and infinities are `nan`, `inf` and `-inf`.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_prior.clock import Progress
from dp_prior.config import Config
from dp_prior.durable import replace_file
from dp_prior.tracking.tracker import Run

ROWS = "metrics.csv"
CUT = "metrics.cut.csv"
CLOCK = ["step", "samples_seen"]
TORN = "torn"  # column for half a line that a killed process left

Row = dict[str, str]


class CsvConfig(Config):
    """A table of all numbers, `metrics.csv` in the run directory."""

    type: Literal["csv"] = "csv"

    def create(self) -> CsvLogger:
        """A logger that opens its table when the run begins."""
        return CsvLogger()


class CsvLogger:
    """Appends rows; see the module. Pictures, files and errors have no place in a table."""

    name = "csv"

    def __init__(self) -> None:
        self._file: Any = None

    def begin(self, run: Run) -> None:
        """Open the table of the run; one that is there is continued.

        Raises:
            ValueError: `metrics.csv` is no table of this logger; it is left as it is.
        """
        self._path, self._cut = run.directory / ROWS, run.directory / CUT
        run.directory.mkdir(parents=True, exist_ok=True)
        self._open(None)

    def log(self, metrics: dict[str, float], progress: Progress) -> None:
        """Append a row, or add to the last one if it has the same step."""
        row = {"step": str(progress.global_step), "samples_seen": str(progress.samples_seen)}
        is_same = self._row is not None and self._row["step"] == row["step"]
        row = (self._row if is_same else {}) | row | {name: repr(value) for name, value in metrics.items()}
        start = self._start if is_same else self._end()
        new = [name for name in row if name not in self._columns]
        if new:
            before = (one for one in _read(self._path)[1] if one["step"] != row["step"])
            columns = [*self._columns, *new]
            replace_file(self._path, _text(columns, itertools.chain(before, [row])))
            self._go_on(columns, row)
            return
        os.ftruncate(self._file.fileno(), start)
        try:
            self._append(row)
        except OSError:
            os.ftruncate(self._file.fileno(), start)
            if is_same:
                self._append(self._row)
            raise
        self._row, self._start = row, start

    def log_images(self, images: dict[str, Path | np.ndarray], progress: Progress) -> None:
        """Not shown."""

    def log_file(self, name: str, path: Path, progress: Progress) -> None:
        """Not shown."""

    def log_error(self, message: str, progress: Progress) -> None:
        """Not shown."""

    def rewind(self, progress: Progress) -> None:
        """Move rows of later steps aside; at step 0 all rows, since nothing has been trained."""
        self._open(progress.global_step)

    def sync(self) -> None:
        """Make the rows survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the table."""
        self.sync()
        self._file.close()

    def abandon(self) -> None:
        """Nothing outlives the process."""

    def _open(self, step: int | None) -> None:
        """Open the table at its end, without rows that are none or come after `step`; these are kept aside."""
        if not self._path.exists():
            replace_file(self._path, _text(CLOCK, []))
        columns, rows = _read(self._path)
        last: Row | None = None
        is_kept: list[bool] = []
        cut: list[Row] = []
        for row in rows:
            number = int(row["step"]) if row["step"].isdecimal() else -1
            is_next = number > (int(last["step"]) if last else -1)
            is_kept.append(is_next and TORN not in row and (step is None or 0 < step >= number))
            if is_kept[-1]:
                last = row
            else:
                cut.append(row)
        if cut:
            known, aside = _read(self._cut) if self._cut.exists() else (CLOCK, [])
            names = [*known, *(name for row in [dict.fromkeys(columns), *cut] for name in row if name not in known)]
            replace_file(self._cut, _text(list(dict.fromkeys(names)), itertools.chain(aside, cut)))
            replace_file(self._path, _text(columns, itertools.compress(_read(self._path)[1], is_kept)))
        self._go_on(columns, last)

    def _go_on(self, columns: list[str], last: Row | None) -> None:
        """Append from here; `last` is the last row of the table, None if there is none."""
        if self._file is not None:
            self._file.close()
        self._columns, self._row = columns, last
        self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115 (closed by close)
        self._start = self._end() - (len(_text(columns, [last], header=False)) if last else 0)

    def _append(self, row: Row) -> None:
        line = _text(self._columns, [row], header=False)
        if self._file.write(line) != len(line):
            raise OSError(f"row of step {row['step']} was written in part; the disk is full")

    def _end(self) -> int:
        return os.fstat(self._file.fileno()).st_size


def _read(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Columns, and one by one the rows without their empty cells; half a line at the end is a row with a cell `torn`.

    Raises:
        ValueError: the file does not begin with the columns of the clock.
    """
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    table = csv.reader(io.TextIOWrapper(io.BytesIO(content[:end]), "utf-8", newline=""))
    columns = next(table, [])
    if columns[:2] != CLOCK or len(set(columns)) < len(columns):
        raise ValueError(f"{path} begins with {columns[:2]}, not with {CLOCK}, so it is no log of a run; move it away")
    rows = ({"step": ""} | {n: cell for n, cell in zip(columns, row, strict=False) if cell} for row in table)
    torn = [{"step": "", TORN: content[end:].decode()}] if content[end:] else []
    return columns, itertools.chain(rows, torn)


def _text(columns: list[str], rows: Iterable[Row], *, header: bool = True) -> bytes:
    stream = io.BytesIO()
    text = io.TextIOWrapper(stream, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    if header:
        writer.writerow(columns)
    writer.writerows([row.get(name, "") for name in columns] for row in rows)
    text.flush()
    return stream.getvalue()
