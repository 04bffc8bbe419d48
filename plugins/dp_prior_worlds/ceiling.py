"""The result of a replay of recorded actions before training, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dp_prior.evaluation.interval import share_interval

LOWEST_CEILING = 0.95
"""Share of recordings that solve the task, and share that the environment follows, below which a user is warned."""


@dataclass(frozen=True)
class Ceiling:
    """The result of a replay.

    Attributes:
        name, env: of the evaluator, and the type of its environment.
        score: mean over the episodes.
        table: a line for each episode, see `ReplayEvaluator`.
        packages: that simulate, with their versions.
    """

    name: str
    env: str
    score: float
    table: list[dict[str, Any]]
    packages: Mapping[str, str]

    @property
    def is_low(self) -> bool:
        """Whether the recordings do not solve the task, or are not those of this environment."""
        shares = (self._share(self._solved), self._share(len(self.table) - len(self._departed)))
        return any(share < LOWEST_CEILING for share in shares if not math.isnan(share))

    def __str__(self) -> str:
        n, solved, packages = len(self.table), self._solved, ", ".join(map(" ".join, self.packages.items()))
        text = f"{self.name}: in environment {self.env!r}{f' ({packages})' if packages else ''} the recorded actions"
        if math.isnan(solved):
            text += f" have a mean score of {self.score:.3g} in {n} episodes"
        else:
            low, high = share_interval(solved, n)
            text += f" solve {solved} of {n} episodes ({solved / n:.0%}, 95 % interval {low:.0%} to {high:.0%}; score "
            text += f"{self.score:.3g})"
            text += ", a ceiling for a policy that imitates them" * (solved / n < LOWEST_CEILING)
        return f"{text}. {self._cause()}"

    @property
    def _solved(self) -> float:
        """The number of solved episodes; NaN if the environment does not say."""
        outcomes = [row["success"] for row in self.table if row["success"] is not None]
        return sum(outcomes) if outcomes else math.nan

    @property
    def _departed(self) -> list[dict[str, Any]]:
        return [row for row in self.table if row["departs_at"] is not None]

    def _share(self, count: float) -> float:
        return count / len(self.table)

    def _cause(self) -> str:
        """Whether the environment follows the recordings, and likely causes if not."""
        n, departed = len(self.table), self._departed
        cut = [row for row in self.table if row["recorded_steps"] > row["steps"] and row["success"] is not True]
        late = f"; {len(cut)} are longer than env.max_steps, or end early" if cut else ""
        if all(math.isnan(row["departure"]) for row in self.table):
            return f"No recorded observation has a name and shape of the environment's, so none is compared{late}"
        if not departed:
            largest = max(row["departure"] for row in self.table)
            return f"All follow their recording within {largest:.1g} of its range{late}"
        first = min(departed, key=lambda row: row["departs_at"])
        where = (
            f"{len(departed)} of {n} depart from their recording, the first at step {first['departs_at']} of episode "
        )
        where += f"{first['episode']}, in {first['departs_in']}"
        if first["departs_at"] == 0:
            return f"{where}: it does not begin where the recording does; name in `start` all that determines it{late}"
        likely = (
            "another version of the simulator, another control rate, a shift in time, or other actions than executed"
        )
        return f"{where}: {likely}{late}"
