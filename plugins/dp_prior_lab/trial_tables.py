"""Tables of trials of other tools, read as outcomes and written: those of fieldtrial and of robostats."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dp_prior.config import ConfigError
from dp_prior.files.durable import write_new

Line = tuple[int, dict[str, str]]
"""The number of a line in a file, and its cells by column."""

FIELDTRIAL = ("condition", "arm", "success")
"""Columns by which a table of fieldtrial is recognised, written by its export or for its import."""

ROBOSTATS = ("policy_id", "scenario_id", "success")
"""Columns by which a table of robostats is recognised."""

SOLVED = {"1": 1, "true": 1, "yes": 1, "y": 1, "t": 1, "success": 1, "ok": 1}
NOT_SOLVED = {"0": 0, "false": 0, "no": 0, "n": 0, "f": 0, "fail": 0, "failure": 0}
SCORES = SOLVED | NOT_SOLVED
"""Score of each word that both tools write or read."""


def as_outcomes(columns: Sequence[str], lines: Iterable[Line], path: Path) -> list[Line] | None:
    """Translate the lines of another tool's table to start, policy and score; None for a table of another kind.

    Trials of fieldtrial that are void are left out. Its import repeats a condition for each of several trials of an
    arm: the n-th of each arm are taken for one start.

    Raises:
        ConfigError: an outcome is none of the words of these tools.
    """
    if set(FIELDTRIAL) <= set(columns):
        policy, start = "arm", "condition"
    elif set(ROBOSTATS) <= set(columns):
        policy, start = "policy_id", "scenario_id"
    else:
        return None
    trials: Counter[tuple[str, str]] = Counter()
    rows, problems = [], []
    for number, cells in lines:
        if cells.get("status", "").lower() == "invalid":
            continue
        score = SCORES.get(cells["success"].lower())
        if score is None:
            finding = f"line {number}: success is {cells['success']!r}"
            problems.append(f"{finding}; expected one of {', '.join(SCORES)}, or status invalid")
            continue
        name = "/".join(filter(None, [cells.get("task_id", ""), cells[start]]))
        trials[name, cells[policy]] += 1
        count = trials[name, cells[policy]]
        repeated = cells.get("replicate") or (str(count) if start == "condition" and count > 1 else "")
        place = f"{name}/{repeated}" if name and repeated else name
        rows.append((number, {**cells, "start": place, "policy": cells[policy], "score": str(score)}))
    if problems:
        raise ConfigError(str(path), problems[:10])
    return rows


def write_trials(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write outcomes as a table that `fieldtrial import` and `robostats.load_csv` read.

    Args:
        rows: with `start`, `policy` and `score`.

    Raises:
        ConfigError: a score is neither 0 nor 1, which these tools do not know.
        FileExistsError: there is such a file.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, ["condition", "arm", "success", "policy_id", "scenario_id"], lineterminator="\n")
    table.writeheader()
    for row in rows:
        score = float(row["score"])
        if score not in (0.0, 1.0):
            finding = f"start {row['start']!r} of policy {row['policy']!r} has the score {score:g}"
            remedy = "fieldtrial and robostats know solved and not solved alone: write 1 or 0, or omit --trials"
            raise ConfigError(str(path), [f"{finding}, but a trial there is solved or not; {remedy}"])
        names = {"condition": row["start"], "arm": row["policy"], "scenario_id": row["start"]}
        table.writerow({**names, "policy_id": row["policy"], "success": str(int(score))})
    write_new(path, text.getvalue())
