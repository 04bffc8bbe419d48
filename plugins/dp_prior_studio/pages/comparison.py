"""The page of several runs: ranked, with curves in one chart, scores paired by seed, and differing settings."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from dp_prior.envs.fingerprint import differences
from dp_prior.evaluation.interval import UNBOUNDED, mean_interval, of_difference
from dp_prior_studio.pages.bootstrap import STATISTICS, bootstrap, interval
from dp_prior_studio.pages.charts import overlay
from dp_prior_studio.pages.drawing import Chart, Drawing
from dp_prior_studio.pages.evaluation_report import EvaluationReport
from dp_prior_studio.pages.page import Page, Table
from dp_prior_studio.pages.ranking import distinct_names, ranked, ranked_groups, scores_by_seed, values_of
from dp_prior_studio.pages.run_page import headlines, points, short, timed, unit_of_time
from dp_prior_studio.pages.story import Story

MOST_RESAMPLED = 1000
"""Most episodes that the bootstrap draws from."""

Group = tuple[str, list[Story]]
"""The label of a configuration, and its runs."""


def comparison_page(stories: list[Story]) -> Page:
    """The page of several runs."""
    names = distinct_names(stories)
    groups = _configurations(names, stories)
    _, order = ranked_groups([group for _, group in groups])
    best_first = [groups[place] for place in order]
    single = [(name, [story]) for name, story in zip(names, stories, strict=True)]  # their hours differ
    drawing, all_rows = Drawing(), itertools.chain.from_iterable(map(timed, stories))
    sections = [
        ("Over samples", _overlays(drawing, groups, "samples_seen", "samples seen")),
        ("Over time, without evaluations", _overlays(drawing, single, *unit_of_time(all_rows))),
    ]
    gaps = []
    for name, story in zip(names, stories, strict=True):
        gaps += [f"{name}: {gap}" for gap in story.gaps]
    return Page(
        title=f"{len(stories)} runs",
        summaries=[
            _runs(names, stories),
            (
                "Configurations, over seeds of training",
                ("configuration", "seeds", "metric", "mean"),
                _folded(best_first),
            ),
            _bootstrapped(best_first),
            ("Paired by episode", ("run", "against", "metric", "episodes", "difference"), _paired(names, stories)),
        ],
        sections=[section for section in sections if section[1]],
        tables=[_differing(names, stories)],
        gaps=gaps + drawing.gaps,
        opened=["Runs", "Over samples"],
    )


def _compared(story: Story) -> dict[str, Any]:
    """The settings that may explain another result."""
    settings = {key: value for key, value in story.settings.items() if not key.startswith("tracker.")}
    settings.pop("description", None)
    return settings


def _differing(names: list[str], stories: list[Story]) -> Table:
    """The settings that not all runs share; a line for each run where there are more runs than such settings."""
    compared = [_compared(story) for story in stories]
    first = compared[0]
    differing = []
    for key in dict.fromkeys(itertools.chain(*compared)):
        if any(settings.get(key) != first.get(key) for settings in compared):
            differing.append(key)
    lines = []
    for name, settings in zip(names, compared, strict=True):
        lines.append((name, *(short(settings.get(key)) for key in differing)))
    title = "Settings that differ"
    if len(names) > len(differing):
        return title, ("run", *differing), lines if differing else []
    columns, *rows = zip(("setting", *differing), *lines, strict=True)
    return title, columns, rows


def _samples(story: Story) -> int:
    return story.rows[-1]["samples_seen"] if story.rows else 0


def _runs(names: list[str], stories: list[Story]) -> Table:
    """State, scores and monitored metric of every run, the best first; columns without a value are left out."""
    monitored = list(dict.fromkeys(story.monitored for story in stories if story.monitored))
    columns = ("run", "state", "samples", "score", "solved", *monitored)
    _, order = ranked(stories)
    rows = []
    for place in order:
        story = stories[place]
        selected = f"{story.selected[0]:.4g}" if story.selected else ""
        values = (selected if metric == story.monitored else "" for metric in monitored)
        rows.append((names[place], story.state, f"{_samples(story):,}", *_scores(story), *values))
    filled = [place for place, cells in enumerate(zip(*rows, strict=True)) if place < 3 or any(cells)]
    in_columns = itemgetter(*filled)
    return "Runs", in_columns(columns), list(map(in_columns, rows))


def _scores(story: Story) -> tuple[str, str]:
    """Score and share of solved episodes of `Story.tested`, each with its interval; empty if not measured."""
    prefix = "" if story.tested is None else f"{story.tested.name}: "
    scores = {}
    for name, value, ends in reversed(headlines(story)):
        if name.startswith(prefix):
            scores[name.rpartition(": ")[2]] = f"{value} ({ends})"
    return scores.get("score", ""), scores.get("solved", "")


def _configurations(names: list[str], stories: list[Story]) -> list[Group]:
    """Groups of runs that differ in `seed` alone, each labelled by the settings that distinguish the group."""
    groups: dict[str, list[tuple[str, Story]]] = {}
    settings_of: dict[str, dict[str, Any]] = {}
    for name, story in zip(names, stories, strict=True):
        settings = _compared(story)
        settings.pop("seed", None)
        digest = json.dumps(settings, sort_keys=True) if settings else name
        groups.setdefault(digest, []).append((name, story))
        settings_of[digest] = settings
    if len(groups) == len(stories):
        return [(name, [story]) for [(name, story)] in groups.values()]
    differing = []
    for key in dict.fromkeys(itertools.chain(*settings_of.values())):
        if len({json.dumps(settings.get(key)) for settings in settings_of.values()}) > 1:
            differing.append(key)
    labelled = []
    for digest, group in groups.items():
        label = ", ".join(f"{key}={short(settings_of[digest].get(key))}" for key in differing)
        runs, members = zip(*group, strict=True)
        labelled.append((label or ", ".join(runs), list(members)))
    return labelled


def _overlays(drawing: Drawing, groups: list[Group], x: str, label: str) -> list[Chart]:
    """A chart for each monitored metric, loss and score measured during training, with a line for each group of runs.
    A metric that each run measured once has none; the table of runs and that of configurations have its numbers."""
    charts = []
    runs = [(name, list(map(timed, group))) for name, group in groups]
    stories = _stories(groups)
    monitored = dict.fromkeys(story.monitored for story in stories)
    rows = itertools.chain.from_iterable(itertools.chain.from_iterable(group for _, group in runs))
    for metric in _drawn(monitored, dict.fromkeys(itertools.chain.from_iterable(rows))):
        limits = _limits(stories, metric)
        lines = []
        for name, group in runs:
            curves = [points(rows, x, metric) for rows in group]
            lines.append((name, *_mean_line(curves, limits)))
        if any(len(places) > 1 for _, places, _ in lines):
            title = f"{metric}, over {label}"
            is_log = metric.endswith("loss") and all((y > 0).all() for _, _, y in lines)
            charts += drawing.chart(title, partial(overlay, lines, metric, label, log=is_log))
    return charts


def _stories(groups: list[Group]) -> list[Story]:
    return list(itertools.chain.from_iterable(group for _, group in groups))


def _drawn(monitored: Iterable[str], logged: Iterable[str]) -> list[str]:
    """The logged metrics that have a chart: the monitored ones first, then losses and scores."""
    metrics = [metric for metric in monitored if metric in logged]
    for metric in logged:
        if metric not in metrics and (metric == "train/loss" or metric.endswith(("ema/loss", "/score"))):
            metrics.append(metric)
    return metrics


def _limits(stories: list[Story], metric: str) -> tuple[float, float]:
    """The limits of a metric, which some of the runs may not know."""
    for story in stories:
        limits = story.limits(metric)
        if limits != UNBOUNDED:
            return limits
    return UNBOUNDED


def _mean_line(
    curves: list[tuple[np.ndarray, np.ndarray]], limits: tuple[float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """The points of one run; for several runs mean and interval, at the places where every run that was measured at
    all was measured."""
    curves = [(x, y) for x, y in curves if len(x)] or curves[:1]
    if len(curves) == 1:
        return curves[0]
    common = functools.reduce(np.intersect1d, [x for x, _ in curves])
    values = np.array([y[np.searchsorted(x, common)] for x, y in curves])
    ends = np.array([mean_interval(column, limits=limits) for column in values.T]).reshape(-1, 2).T
    return common, np.stack([values.mean(0), *ends])


def _folded(groups: list[Group]) -> list[tuple[str, str, str, str]]:
    """The mean result of each configuration, with an interval over training seeds; empty without repeated seeds.

    Averages only the metric that most runs of a configuration have, so that values measured during training are not
    mixed with test scores.
    """
    if not _has_seeds(groups):
        return []
    rows = []
    for label, group in groups:
        values = values_of(group)
        if not values:
            continue
        metric = Counter(name for name, _ in values).most_common(1)[0][0]
        numbers = np.array([value for name, value in values if name == metric])
        broken = np.isnan(numbers).sum()
        mean = f"{numbers.mean():.4g}"
        if broken:
            mean = f"none: {broken} of the runs have episodes without a score"
        elif len(numbers) > 1:
            low, high = mean_interval(numbers, limits=_limits(group, metric))
            mean += f" ({low:.4g} to {high:.4g})"
        rows.append((label, str(len(numbers)), metric, mean))
    return rows


def _has_seeds(groups: list[Group]) -> bool:
    """Whether a configuration has runs of several seeds."""
    return any(len(group) > 1 for _, group in groups)


def _bootstrapped(groups: list[Group]) -> Table:
    """Mean score and worst tenth of each configuration, with intervals over training seeds and episodes by the
    stratified bootstrap; of the episodes that all runs have, and empty without repeated seeds."""
    stories = _stories(groups)
    seeds = [set(scores_by_seed(story)) for story in stories]
    episodes = sorted(set.intersection(*seeds))[:MOST_RESAMPLED] if seeds else []
    names = {story.tested.name for story in stories if story.tested is not None}
    rows = []
    if len(names) == 1 and len(episodes) > 1 and _has_seeds(groups):
        scores = [_scores_at(episodes, group) for _, group in groups]
        if not any(np.isnan(array).any() for array in scores):
            rows = _intervals(groups, scores)
    title = "Configurations, over seeds of training and episodes"
    return title, ("configuration", "seeds", "episodes", "score", "worst tenth"), rows


def _scores_at(episodes: list[int], group: list[Story]) -> np.ndarray:
    """(runs, episodes) scores of the runs of a configuration."""
    rows = []
    for story in group:
        scores = scores_by_seed(story)
        rows.append([scores[seed] for seed in episodes])
    return np.array(rows)


def _intervals(groups: list[Group], scores: list[np.ndarray]) -> list[tuple[str, ...]]:
    """The rows of `_bootstrapped`. Args: scores: (runs, episodes) of each configuration."""
    statistics = [bootstrap(scores, STATISTICS[name]) for name in ("score", "worst tenth")]
    rows = []
    for number, (label, group) in enumerate(groups):
        cells = []
        for values, draws in statistics:
            low, high = interval(draws[:, number])
            cells.append(f"{values[number]:.4g} ({low:.4g} to {high:.4g})")
        rows.append((label, str(len(group)), str(scores[number].shape[1]), *cells))
    return rows


def _other_worlds(first: EvaluationReport, other: EvaluationReport) -> Iterator[str]:
    """The differences of the environments of two reports, as far as both state them; older versions noted less."""
    for key in sorted(first.env.keys() & other.env.keys() - {"n_envs"}):
        if first.env[key] != other.env[key]:
            yield f"env.{key} {first.env[key]} against {other.env[key]}"
    if first.environment is not None and other.environment is not None:
        yield from differences(first.environment, other.environment)


def _paired(names: list[str], stories: list[Story]) -> list[tuple[str, str, str, str, str]]:
    """Each run against the first run, over the seeds that both measured with the same evaluator."""
    first = stories[0]
    scores = scores_by_seed(first)
    rows = []
    for name, story in zip(names[1:], stories[1:], strict=True):
        other_scores = scores_by_seed(story)
        common = sorted(scores.keys() & other_scores.keys())
        if len(common) > 1 and story.tested.name == first.tested.name:
            gains = np.array([other_scores[seed] - scores[seed] for seed in common])
            text = _gain(first.tested, story.tested, gains)
            rows.append((name, names[0], f"{story.tested.name}/score", str(len(common)), text))
    return rows


def _gain(first: EvaluationReport, other: EvaluationReport, gains: np.ndarray) -> str:
    """The mean difference of scores with its interval, or the reason why a comparison means nothing."""
    worlds = list(_other_worlds(first, other))
    if worlds:
        return f"not paired, the environments differ: {'; '.join(worlds)}"
    broken = np.isnan(gains).sum()
    if broken:
        return f"none: {broken} of the episodes have no score"
    low, high = mean_interval(gains, limits=of_difference(first.score_range))
    return f"{gains.mean():+.3f} ({low:+.3f} to {high:+.3f})"
