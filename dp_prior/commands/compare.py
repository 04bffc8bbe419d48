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

from dp_prior.commands.claim import claim, held
from dp_prior.commands.outcomes import OUTCOMES, Outcomes
from dp_prior.commands.players import Play, Player, score_limits
from dp_prior.config import ConfigError
from dp_prior.evaluation.picture import import_figure
from dp_prior.evaluation.verdict import Comparison
from dp_prior.files.durable import replace_file
from dp_prior.files.json_text import encode_document, finite
from dp_prior.reports.pages.verdict_page import verdict_page

RESULT = "verdict.json"
VERDICT_PAGE = "verdict.html"
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


def compare_outcomes(path: Path, limits: tuple[float, float], error: float) -> tuple[list[str], Comparison]:
    """Compare the policies of a CSV file; see `Outcomes`.

    Returns:
        Their names, and what is known of them.

    Raises:
        ConfigError: the file is not sound, or holds fewer than two policies.
        FileNotFoundError: there is no such file.
    """
    if not path.exists():
        wanted = "one name means a CSV file of outcomes with the columns start, policy and score"
        raise FileNotFoundError(f"there is no {path}; {wanted}, and two names or more mean policies")
    outcomes = Outcomes.read(path, limits)
    names = outcomes.policies
    if len(names) < 2:
        found = f"only {names[0]!r}" if names else "nothing"
        raise ConfigError(str(path), [f"has {found} in the column policy; expected two policies or more"])
    return names, Comparison(outcomes.scores(names, outcomes.starts), limits, error)


def compare_policies(
    players: Sequence[Player], rules: Rules, out: Path, report: Callable[[str], None]
) -> tuple[list[str], Comparison]:
    """Let policies play until all are told apart or the starts are used up.

    Args:
        out: folder of the outcomes; a comparison of the same policies that was stopped there goes on.

    Returns:
        Their names, and what is known of them.

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
        outcomes = Outcomes.kept(out, limits)
        known = Comparison(outcomes.scores(names, starts), limits, rules.error)
        plays: dict[str, Play] = {}
        for episodes in rules.rounds:
            playing = [players[number] for number in known.undecided()]
            if not playing:
                break
            for player in playing:
                missing = [one for one in episodes if not outcomes.has(str(first + one), player.name)]
                if missing:
                    if player.name not in plays:
                        plays[player.name] = opened.enter_context(player.playing(first))
                    rows = plays[player.name](range(missing[0], missing[-1] + 1))
                    if rules.measure == "score":
                        rows = _within(rows, limits, player.record.env.type)
                    outcomes.add(player.name, rows, rules.measure, limits[0])
                    outcomes.write(out / OUTCOMES)
            starts += [str(first + one) for one in episodes]
            known = Comparison(outcomes.scores(names, starts), limits, rules.error)
            report(_progress(names, known, rules.most))
    if rules.measure == "success" and not outcomes.tells_success:
        report(f"no episode told whether it was solved: does {players[0].record.env.type!r} tell it (success_score)?")
    return names, known


def result_document(names: Sequence[str], known: Comparison, most: int | None) -> dict[str, Any]:
    """What is known as JSON; null where nothing is."""
    policies = zip(names, known.means(), known.letters(), strict=True)
    return finite(
        {
            "error": known.error,
            "range": list(known.limits),
            "starts": known.scores.shape[1],
            "rollouts": known.rollouts,
            "most_rollouts": None if most is None else most * len(names),
            "policies": [
                {"policy": name, "mean": mean, "low": low, "high": high, "letters": letters}
                for name, (mean, low, high), letters in policies
            ],
            "pairs": [
                {
                    "first": names[pair.first],
                    "second": names[pair.second],
                    "starts": pair.starts,
                    "difference": pair.difference,
                    "low": pair.limits[0],
                    "high": pair.limits[1],
                    "better": None if pair.better is None else names[pair.better],
                    "after": pair.after,
                }
                for pair in known.pairs()
            ],
        }
    )


def write_result(names: Sequence[str], known: Comparison, most: int | None, out: Path) -> Iterator[Path]:
    """Write the result as JSON and as a page.

    Raises:
        ImportError: a library of the extra `plots` is not installed.
        OSError: a file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / RESULT, encode_document(result_document(names, known, most)))
    yield out / RESULT
    import_figure()
    yield verdict_page(names, known, most).write(out / VERDICT_PAGE)


def verdict_lines(names: Sequence[str], known: Comparison, most: int | None) -> list[str]:
    """What is known, as lines for a person; a difference is of the policy that is named first, from the other."""
    lines = []
    for pair in known.pairs():
        first, second, difference, (low, high) = names[pair.first], names[pair.second], pair.difference, pair.limits
        if pair.better == pair.second:
            first, second, difference, low, high = second, first, -difference, -high, -low
        head = f"{first} and {second} are not told apart"
        if pair.better is not None:
            head = f"{first} is better than {second}, known after {pair.after} starts"
        lines.append(f"{head}: difference {difference:+.3f} ({low:+.3f} to {high:+.3f}) on {pair.starts} starts")
    width = max(map(len, names))
    for name, (mean, low, high), letters in zip(names, known.means(), known.letters(), strict=True):
        lines.append(
            f"  {name:<{width}}  {mean:.3f} ({low:.3f} to {high:.3f})  {letters if len(names) > 2 else ''}".rstrip()
        )
    if most is not None:
        all_rollouts = most * len(names)
        saved = all_rollouts - known.rollouts
        lines.append(f"{known.rollouts} rollouts of at most {all_rollouts}; {saved} saved")
    lines.append(f"a verdict here is wrong with a probability of at most {known.error:g}, however often one looks")
    return lines


def _within(rows: Iterable[dict[str, Any]], limits: tuple[float, float], env: str) -> list[dict[str, Any]]:
    """The episodes with each score that misses a limit by rounding on this limit.

    Raises:
        ConfigError: a score is outside the limits that an environment states, on which the error rests.
    """
    (low, high), found = limits, []
    for row in rows:
        score = min(max(row["score"], low), high)  # NaN stays
        if abs(row["score"] - score) > ROUNDING * (high - low):
            told = f"states scores from {low:g} to {high:g}, but seed {row['seed']} has {row['score']:.9g}"
            raise ConfigError(f"environment {env!r}", [f"{told}; correct score_range of its record, or its score"])
        found.append({**row, "score": score})
    return found


def _progress(names: Sequence[str], known: Comparison, most: int) -> str:
    """How far a comparison is, in one line."""
    means = ", ".join(f"{name} {mean:.3f}" for name, (mean, _, _) in zip(names, known.means(), strict=True))
    still = len(known.undecided())
    ending = "all are told apart" if not still else f"{still} are not told apart yet"
    return f"{known.scores.shape[1]} of at most {most} starts: {means}; {ending}"
