"""`dp-prior compare`: which of several policies is better, with as few rollouts as that takes.

In rounds, all policies that are not yet told apart play the same starts. After each round the evidence is looked at,
which the test allows as often as one likes. The outcomes are kept in a file, from which the same command goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dp_prior.config import ConfigError
from dp_prior_lab.claim import claim, held
from dp_prior_lab.comparison_result import ComparisonResult
from dp_prior_lab.outcomes import OUTCOMES, Outcomes
from dp_prior_lab.players import Play, Player, score_limits
from dp_prior_lab.verdict import Comparison

ROUNDING = 1e-6
"""Share of the range by which a score may miss a limit: that of single precision, summed over an episode."""


@dataclass(frozen=True)
class Rules:
    """How policies are compared.

    Attributes:
        error: the probability of a wrong verdict, over all pairs and looks.
        most: starts at most; may be raised later.
        per_round: starts between two looks.
    """

    error: float = 0.05
    most: int = 200
    per_round: int = 10
    measure: Literal["score", "success"] = "score"

    @property
    def rounds(self) -> Iterator[range]:
        """The episodes of each round."""
        for begin in range(0, self.most, self.per_round):
            yield range(begin, min(begin + self.per_round, self.most))


def compare_outcomes(path: Path, limits: tuple[float, float], error: float) -> ComparisonResult:
    """Compare the policies of a CSV file; see `Outcomes`.

    Raises:
        ConfigError: the file is not sound, or holds fewer than two policies.
        FileNotFoundError: there is no such file.
    """
    if not path.exists():
        usage = "one name means a CSV file of outcomes with the columns start, policy and score"
        raise FileNotFoundError(f"there is no {path}; {usage}, and two names or more mean policies")
    outcomes = Outcomes.read(path, limits)
    names = outcomes.policies
    if len(names) < 2:
        finding = f"only {names[0]!r}" if names else "nothing"
        raise ConfigError(str(path), [f"has {finding} in the column policy; expected two policies or more"])
    return ComparisonResult(names, Comparison(outcomes.scores(names, outcomes.starts), limits, error))


def compare_policies(
    players: Sequence[Player], rules: Rules, out: Path, report: Callable[[str], None]
) -> ComparisonResult:
    """Let policies play until all are distinguished or the starts are used up.

    Args:
        out: folder of the outcomes; a comparison of the same policies that was stopped there goes on.

    Raises:
        ConfigError: the policies cannot be compared, see `players`, or `out` holds another comparison.
        FileExistsError: `out` holds something else, or another process compares there.
        OSError: `out` cannot be written.
    """
    names = [player.name for player in players]
    limits = (0.0, 1.0) if rules.measure == "success" else score_limits(players)
    first = players[0].record.first_seed
    policies = {player.name: player.identity for player in players}
    claim(out, {"policies": policies, "measure": rules.measure, "first_seed": first})
    starts: list[str] = []
    with contextlib.ExitStack() as opened:
        opened.enter_context(held(out))
        outcomes = Outcomes.of_folder(out, limits)
        comparison = Comparison(outcomes.scores(names, starts), limits, rules.error)
        plays: dict[str, Play] = {}
        for episodes in rules.rounds:
            playing = [players[number] for number in comparison.undecided()]
            if not playing:
                break
            for player in playing:
                missing = [episode for episode in episodes if not outcomes.has(str(first + episode), player.name)]
                if missing:
                    if player.name not in plays:
                        plays[player.name] = opened.enter_context(player.playing(first))
                    rows = plays[player.name](range(missing[0], missing[-1] + 1))
                    if rules.measure == "score":
                        rows = _within(rows, limits, player.record.env.type)
                    outcomes.add(player.name, rows, rules.measure, limits[0])
                    outcomes.write(out / OUTCOMES)
            starts += [str(first + episode) for episode in episodes]
            comparison = Comparison(outcomes.scores(names, starts), limits, rules.error)
            report(ComparisonResult(names, comparison, rules.most).progress())
    if rules.measure == "success" and not outcomes.tells_success:
        report(f"no episode told whether it was solved: does {players[0].record.env.type!r} tell it (success_score)?")
    return ComparisonResult(names, comparison, rules.most)


def _within(rows: Iterable[dict[str, Any]], limits: tuple[float, float], env: str) -> list[dict[str, Any]]:
    """The episodes with each score that misses a limit by rounding on this limit.

    Raises:
        ConfigError: a score is outside the limits that an environment states, on which the error rests.
    """
    (low, high), clipped = limits, []
    for row in rows:
        score = min(max(row["score"], low), high)  # NaN stays
        if abs(row["score"] - score) > ROUNDING * (high - low):
            problem = f"states scores from {low:g} to {high:g}, but seed {row['seed']} has {row['score']:.9g}"
            raise ConfigError(f"environment {env!r}", [f"{problem}; correct score_range of its record, or its score"])
        clipped.append({**row, "score": score})
    return clipped
