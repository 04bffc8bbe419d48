"""The page of a comparison: the verdict, the policies with their letters, and how the evidence grew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from dp_prior_lab.verdict import Comparison, Pair, mean_limits
from dp_prior_studio.pages.charts import Line, overlay
from dp_prior_studio.pages.drawing import Chart, Drawing
from dp_prior_studio.pages.page import Page

MOST_POINTS = 60
"""Points of a line; more starts are thinned."""

MOST_PAIRS = 6
"""Pairs that are drawn: the closest ones of more."""

LARGEST_WEALTH = 1e9
"""More is drawn as this."""


def verdict_page(names: Sequence[str], comparison: Comparison, max_starts: int | None) -> Page:
    """The page of a comparison of at most `max_starts` starts; None for outcomes that were noted elsewhere."""
    drawing = Drawing()
    pairs = comparison.pairs()
    rows = []
    for pair in pairs:
        verdict = "not told apart" if pair.better is None else f"{names[pair.better]} is better"
        after = "" if pair.after is None else str(pair.after)
        limits = f"({pair.limits[0]:+.3f} to {pair.limits[1]:+.3f})"
        difference = f"{pair.difference:+.3f} {limits}" if pair.starts else "no common start"
        rows.append((names[pair.first], names[pair.second], verdict, after, difference, str(pair.starts)))
    policies = [
        (name, f"{mean:.3f} ({low:.3f} to {high:.3f})", letters)
        for name, (mean, low, high), letters in zip(names, comparison.means(), comparison.letters(), strict=True)
    ]
    facts = {"error": f"at most {comparison.error:g}, over all pairs and looks", "rollouts": str(comparison.rollouts)}
    if max_starts is not None:
        facts["rollouts"] += f" of at most {max_starts * len(names)}"
    charts: list[Chart] = []
    drawn = sorted((pair for pair in pairs if pair.starts), key=lambda pair: abs(pair.difference))[:MOST_PAIRS]
    drawn.sort(key=pairs.index)
    for pair in drawn:
        title = f"{names[pair.first]} minus {names[pair.second]}"
        lines = [(title, *_differences(comparison, pair.first, pair.second, len(pairs)))]
        charts += drawing.chart(title, partial(overlay, lines, "difference of scores", "starts", log=False))
    if charts:
        lines = _evidence(names, comparison, drawn)
        charts += drawing.chart("Evidence", partial(overlay, lines, "wealth of the bet", "starts", log=True))
    closest = "" if len(pairs) <= MOST_PAIRS else f": the {len(drawn)} closest of {len(pairs)} pairs"
    return Page(
        title=" against ".join(names) if len(names) == 2 else f"{len(names)} policies compared",
        facts=facts,
        summaries=[
            ("Verdicts", ("first", "second", "verdict", "after starts", "difference", "starts"), rows),
            ("Policies that share a letter are not told apart", ("policy", "mean score", "letters"), policies),
        ],
        sections=[(f"How it came{closest}", charts)] if charts else [],
        gaps=drawing.gaps,
    )


def _thinned(n: int) -> np.ndarray:
    """Numbers of starts, at most `MOST_POINTS`, the last one among them."""
    return np.unique(np.linspace(1, n, min(n, MOST_POINTS)).round().astype(int))


def _differences(comparison: Comparison, first: int, second: int, pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) numbers of starts, n >= 1, and (3, n) running mean difference with its limits."""
    gains = comparison.gains()[first, second]
    gains = gains[~np.isnan(gains)]
    counts = _thinned(len(gains))
    ends = [mean_limits(gains[:count], comparison.error / pairs) for count in counts]
    means = [gains[:count].mean() for count in counts]
    width = comparison.limits[1] - comparison.limits[0]
    return counts, width * np.stack([means, *np.array(ends).T])


def _evidence(names: Sequence[str], comparison: Comparison, pairs: Sequence[Pair]) -> list[Line]:
    """The wealth of each pair's better bet, and what is needed for the first verdict."""
    evidence, gains = comparison.log_evidence(), comparison.gains()
    lines: list[Line] = []
    for pair in pairs:
        better = max((pair.first, pair.second), (pair.second, pair.first), key=lambda bet: evidence[bet][-1])
        grown = evidence[better][~np.isnan(gains[better])]
        counts = _thinned(len(grown))
        label = f"{names[better[0]]} over {names[better[1]]}"
        lines.append((label, counts, np.exp(np.minimum(grown[counts - 1], math.log(LARGEST_WEALTH)))))
    bets, ends = len(names) * (len(names) - 1), np.array([1, comparison.scores.shape[1]])
    return [*lines, ("needed", ends, np.full(2, bets / comparison.error))]
