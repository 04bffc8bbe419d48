"""Outcomes of rollouts as a CSV file: a row for each start and policy, from a simulator or noted beside a robot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.files.durable import replace_file
from dp_prior.files.regular_files import read_small

LARGEST = 64 << 20
"""Bytes of a file of outcomes."""

_NEEDED = ("start", "policy", "score")


class Outcomes:
    """Rows by start and policy, in the order in which they came.

    Attributes:
        rows: the columns `start`, `policy` and `score`, and others that are kept; empty where nothing is known.
    """

    def __init__(self, rows: Iterable[dict[str, str]] = ()):
        self.rows = {(row["start"], row["policy"]): row for row in rows}

    @classmethod
    def read(cls, path: Path, limits: tuple[float, float]) -> Outcomes:
        """Read a CSV file with the columns start, policy and score.

        Args:
            limits: of a score.

        Raises:
            ConfigError: a column is missing, a start has two scores of a policy, or a score is no number in `limits`.
            OSError: the file cannot be read.
        """
        table = csv.DictReader(io.StringIO(read_small(path, LARGEST).decode("utf-8-sig", errors="replace")))
        missing = [name for name in _NEEDED if name not in (table.fieldnames or [])]
        if missing:
            found = ", ".join(table.fieldnames or []) or "nothing"
            raise ConfigError(str(path), [f"has no column {missing[0]!r} but {found}; expected {', '.join(_NEEDED)}"])
        rows, problems = list(table), []
        lines: dict[tuple[str, str], int] = {}
        for line, row in enumerate(rows, start=2):
            fault = _fault(row, limits)
            earlier = lines.setdefault((row["start"], row["policy"]), line)
            if earlier != line:
                fault = f"policy {row['policy']!r} has a score for start {row['start']!r} already, in line {earlier}"
            problems += [f"line {line}: {fault}"] if fault else []
        if problems:
            raise ConfigError(str(path), problems[:10])
        return cls(rows)

    @property
    def policies(self) -> list[str]:
        """Their names, in the order of the file."""
        return list(dict.fromkeys(policy for _, policy in self.rows))

    @property
    def starts(self) -> list[str]:
        """The starts, in the order of the file."""
        return list(dict.fromkeys(start for start, _ in self.rows))

    def has(self, start: str, policy: str) -> bool:
        """Whether a policy has a score for a start."""
        return (start, policy) in self.rows

    def scores(self, policies: Sequence[str], starts: Sequence[str]) -> np.ndarray:
        """(policies, starts), NaN where there is none."""
        known = {place: float(row["score"]) for place, row in self.rows.items()}
        found = [[known.get((start, policy), math.nan) for start in starts] for policy in policies]
        return np.array(found).reshape(len(policies), len(starts))

    def add(self, rows: Iterable[dict[str, str]]) -> None:
        """Add rows of new starts or policies."""
        self.rows |= {(row["start"], row["policy"]): row for row in rows}

    def write(self, path: Path) -> None:
        """Replace a file by these rows, durably.

        Raises:
            OSError: the file cannot be written.
        """
        text = io.StringIO()
        columns = dict.fromkeys([*_NEEDED, *(name for row in self.rows.values() for name in row)])
        table = csv.DictWriter(text, list(columns), lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows.values())
        replace_file(path, text.getvalue().encode())


def _fault(row: dict[str, str], limits: tuple[float, float]) -> str | None:
    """What is wrong with a row; None for nothing."""
    low, high = limits
    if not row["start"] or not row["policy"]:
        return "has no start or no policy"
    try:
        score = float(row["score"])
    except (TypeError, ValueError):
        return f"the score is {row['score']!r}; expected a number"
    if not low <= score <= high:
        return f"the score is {score:g}; expected {low:g} to {high:g}, or say --range LOW HIGH"
    return None
