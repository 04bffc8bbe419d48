"""`metrics.csv` in the run directory, for spreadsheets: one row per step, a column for each metric.

The table is derived from the log of record, `metrics.jsonl`, at each checkpoint, on a resume and at the end of the run,
so that only one log must be recovered after a crash. Columns are in the order in which metrics first appeared; a cell
is empty where a step has no value and `nan` where a value was not finite.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from dp_prior.clock import Progress
from dp_prior.config import Config
from dp_prior.files.durable import replace_file
from dp_prior.tracking.jsonl import iterate_rows
from dp_prior.tracking.logger import Logger, RunFacts

CSV_ROWS = "metrics.csv"
CLOCK = ["step", "samples_seen"]


class CsvConfig(Config):
    """A table of all numbers, `metrics.csv` in the run directory."""

    type: Literal["csv"] = "csv"

    def create(self) -> CsvLogger:
        """A logger that first writes the table when the run begins."""
        return CsvLogger()


class CsvLogger(Logger):
    """Writes the table; see the module. A crash leaves the old table or the new one."""

    name = "csv"

    def begin(self, run: RunFacts) -> None:
        """See `Logger`.

        Raises:
            ValueError: `metrics.csv` was not written by this logger; the file is left unchanged.
        """
        self._directory = run.directory
        path = run.directory / CSV_ROWS
        if path.exists():
            with open(path, "rb") as file:
                columns = file.readline(1000).decode("utf-8", "replace").rstrip("\n").split(",")[:2]
            if columns != CLOCK:
                raise ValueError(f"{path} begins with {columns}, not with {CLOCK}, so it is no log of a run; move it")
        self.sync()

    def rewind(self, progress: Progress) -> None:
        """See `Logger`. Rows of later steps are in `metrics.cut.jsonl`."""
        self.sync()

    def sync(self) -> None:
        """Rewrite the table; takes about a second for 100,000 rows."""
        write_table(self._directory)

    def close(self) -> None:
        """Write the complete table."""
        self.sync()


def write_table(directory: Path) -> None:
    """Write `metrics.csv` from the rows of `metrics.jsonl`."""
    columns = dict.fromkeys(CLOCK)
    for row in iterate_rows(directory):
        columns |= dict.fromkeys(row)
    columns.pop("nonfinite", None)
    text = io.StringIO(newline="")
    text.write(_header(columns))
    writer = csv.writer(text, lineterminator="\n")
    for row in iterate_rows(directory):
        cells = (row.get(name, "") for name in columns)
        writer.writerow(["nan" if cell is None else cell if cell == "" else repr(cell) for cell in cells])
    replace_file(directory / CSV_ROWS, text.getvalue().encode())


def _header(columns: Iterable[str]) -> str:
    """The first line. Written with CRLF, since `csv` quotes a carriage return in a name only then."""
    line = io.StringIO(newline="")
    csv.writer(line, lineterminator="\r\n").writerow(columns)
    return line.getvalue().removesuffix("\r\n") + "\n"
