"""Outcomes of rollouts as a CSV file: a row for each start and policy, from a simulator or noted beside a robot."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.files.durable import replace_file
from dp_prior.files.regular_files import UnfitError, read_small
from dp_prior_lab.trial_tables import as_outcomes

OUTCOMES = "outcomes.csv"
"""Name of the file in the folder of a comparison."""

LARGEST = 64 << 20
"""Bytes of a file of outcomes."""

CHECK = "sha256"
"""Column that `Outcomes.write` adds: a checksum of the start, the policy and the score of a row."""

MOST_BETS = 100_000_000
"""Most starts times pairs of policies, in both orders: about two minutes of a core."""

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
        """Read a CSV file with the columns start, policy and score, or a table of fieldtrial or robostats.

        Args:
            limits: of a score.

        Raises:
            ConfigError: the file is no such table, a start has two scores of a policy, or a score is no number in
                `limits`.
            OSError: the file cannot be read.
        """
        rows, problems = _table(path), []
        lines: dict[tuple[str, str], int] = {}
        for line, row in rows:
            fault = _fault(row, limits)
            earlier = lines.setdefault((row["start"], row["policy"]), line)
            if earlier != line:
                fault = f"policy {row['policy']!r} has a score for start {row['start']!r} already, in line {earlier}"
            problems += [f"line {line}: {fault}"] if fault else []
        if problems:
            raise ConfigError(str(path), problems[:10])
        for _, row in rows:
            row.pop(CHECK, None)
        outcomes = cls(row for _, row in rows)
        policies, starts = len(outcomes.policies), len(outcomes.starts)
        if policies**2 * starts > MOST_BETS:
            finding = f"has {policies:,} policies and {starts:,} starts, {policies**2 * starts:,} bets on a better one"
            raise ConfigError(str(path), [f"{finding}; expected at most {MOST_BETS:,}; compare fewer policies"])
        return outcomes

    @classmethod
    def of_folder(cls, folder: Path, limits: tuple[float, float]) -> Outcomes:
        """Read the outcomes in a folder, none before the first write; see `read`."""
        path = folder / OUTCOMES
        return cls.read(path, limits) if path.is_file() else cls()

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

    @property
    def tells_success(self) -> bool:
        """Whether any episode reported success; many environments do not report failures."""
        return any(row.get("success") for row in self.rows.values())

    def scores(self, policies: Sequence[str], starts: Sequence[str]) -> np.ndarray:
        """(policies, starts), NaN for missing episodes."""
        score_of = {place: float(row["score"]) for place, row in self.rows.items()}
        episodes = itertools.product(policies, starts)
        scores = [score_of.get((start, policy), math.nan) for policy, start in episodes]
        return np.array(scores).reshape(len(policies), len(starts))

    def add(self, policy: str, episodes: Iterable[dict[str, Any]], measure: str, lowest: float) -> None:
        """Add the episodes that a policy played, see `Play`; each start has the number of its seed.

        Args:
            measure: "score" or "success".
            lowest: the score of an episode without a score, since actions were not finite.
        """
        for episode in episodes:
            score = episode["score"] if measure == "score" else float(episode["success"] or False)
            start, success = str(episode["seed"]), episode["success"]
            self.rows[start, policy] = {
                "start": start,
                "policy": policy,
                "score": repr(lowest if math.isnan(score) else score),
                "success": "" if success is None else str(int(success)),
                "steps": str(episode["steps"]),
            }

    def write(self, path: Path) -> None:
        """Replace a file by these rows, durably, each with its checksum.

        Raises:
            OSError: the file cannot be written.
        """
        text = io.StringIO()
        columns = dict.fromkeys(itertools.chain(_NEEDED, *self.rows.values()))
        table = csv.DictWriter(text, [*columns, CHECK], lineterminator="\n")
        table.writeheader()
        table.writerows({**row, CHECK: _checksum(row)} for row in self.rows.values())
        replace_file(path, text.getvalue().encode())


def _table(path: Path) -> list[tuple[int, dict[str, str]]]:
    """Rows with the number of their last line; without rows that are empty and spaces around cells.

    Columns are parted by commas, or as spreadsheets do where the comma is the decimal point: by semicolons or tabs.
    """
    try:
        text = read_small(path, LARGEST).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), [f"byte {error.start} is not UTF-8; save the file as 'CSV UTF-8'"]) from None
    except UnfitError as error:
        raise ConfigError(str(path), [f"{error.problem} of outcomes, or two policies"]) from None
    delimiter = max(",;\t", key=text.lstrip().partition("\n")[0].count)
    table = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        lines = [(table.line_num, list(map(str.strip, cells))) for cells in table]
    except csv.Error as error:
        raise ConfigError(str(path), [f"line {table.line_num}: {error}"]) from None
    (_, columns), *filled = [(line, cells) for line, cells in lines if any(cells)] or [(1, [])]
    is_another_tools = not set(_NEEDED) <= set(columns) and as_outcomes(columns, [], path) is not None
    for name in () if is_another_tools else _NEEDED:
        if columns.count(name) != 1:
            problem = f"has no column {name!r} but" if name not in columns else f"has several columns {name!r}:"
            expected = f"{', '.join(_NEEDED)}, once each, or a table of fieldtrial or robostats"
            raise ConfigError(str(path), [f"{problem} {', '.join(columns) or 'nothing'}; expected {expected}"])
    if odd := [name for name in columns if name.startswith(CHECK) and name != CHECK]:
        raise ConfigError(str(path), [f"the line of columns was changed: it ends with {odd[0]!r}, expected {CHECK}"])
    rows = []
    for line, cells in filled:
        if any(cells[len(columns) :]):
            problem = f"line {line}: has {len(cells)} cells; expected {len(columns)}; quote a cell that holds a comma"
            raise ConfigError(str(path), [problem])
        row = dict(itertools.zip_longest(columns, cells[: len(columns)], fillvalue=""))
        if delimiter != "," and not is_another_tools:
            row["score"] = row["score"].replace(",", ".")
        rows.append((line, row))
    return as_outcomes(columns, rows, path) or [] if is_another_tools else rows


def _checksum(row: dict[str, str]) -> str:
    """The checksum of a row, equal however a spreadsheet writes the score; its letter keeps the cell a text."""
    content = json.dumps([row["start"], row["policy"], float(row["score"])])
    return "x" + hashlib.sha256(content.encode()).hexdigest()[:16]


def _fault(row: dict[str, str], limits: tuple[float, float]) -> str | None:
    """The fault of a row; None for a sound row."""
    low, high = limits
    if not row["start"] or not row["policy"]:
        return "has no start or no policy"
    try:
        score = float(row["score"])
    except ValueError:
        return f"the score is {row['score']!r}; expected a number"
    if not low <= score <= high:
        return f"the score is {score:g}; expected {low:g} to {high:g}, or say --range LOW HIGH"
    if CHECK in row and row[CHECK] != (checksum := _checksum(row)):
        remedy = f"restore the file as it was written, or, if the change is meant, remove the column {CHECK}"
        return f"the row was changed: its {CHECK} is {row[CHECK]!r}, that of the cells {checksum}; {remedy}"
    return None
