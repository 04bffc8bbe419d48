"""Tables and figures of the study, made from its raw results alone."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.study.design import (
    FACTORS,
    MAIN_JOB,
    MAIN_JOB_ADAMW,
    MAIN_JOB_MIRRORED,
    MAIN_JOB_SHORT,
    MAIN_JOB_TWO,
    PEERS,
    WITH_SHORT,
)
from benchmarks.study.design import rows as design_rows
from benchmarks.study.measure import MEASURES, OWN
from benchmarks.study.results import Results
from benchmarks.study.statistics import STATISTICS, Statistic, bootstrap, interval, lenth_margin, mean, spearman
from dp_prior.durable import replacing
from dp_prior.evaluation.picture import INK, import_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAIN_JOBS = (MAIN_JOB, MAIN_JOB_SHORT, MAIN_JOB_MIRRORED, MAIN_JOB_TWO, MAIN_JOB_ADAMW)
TITLES = {name: f"ours, the {name}" for name in MAIN_JOBS} | {"ours": "ours, the same settings"}
TITLES |= {f"{code}{WITH_SHORT}": f"{TITLES.get(code, f'`{code}`')}{WITH_SHORT}" for code in PEERS}
BEGIN, END = "<!-- python -m benchmarks.study --page -->", "<!-- end -->"


class Measured(NamedTuple):
    """A row of the design with all its trainings on one data set and budget."""

    name: str
    group: str
    levels: dict[str, str]
    trainings: list[dict[str, Any]]
    scores: np.ndarray
    """(training seeds, episodes)"""


Setting = tuple[str, str]
"""Data set and budget."""


def measured(results: Results) -> dict[Setting, list[Measured]]:
    """What has been measured by its own sampler: by data set and budget, smaller budgets first, rows as designed,
    trainings by seed."""
    order = {row.name: place for place, row in enumerate(design_rows())}
    found: dict[Setting, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in sorted(results.trainings(), key=lambda line: (line["data"], line["samples"], line["seed"])):
        if (scores := results.scores(line["run"], OWN)) is not None:
            found[line["data"], line["budget"]][line["row"]].append((line, scores))
    return {
        setting: [
            Measured(name, of[name][0][0]["group"], of[name][0][0]["levels"], *_stacked(of[name]))
            for name in sorted(of, key=lambda name: order.get(name, len(order)))
        ]
        for setting, of in found.items()
    }


def _stacked(pairs: list[tuple[dict, np.ndarray]]) -> tuple[list[dict], np.ndarray]:
    return [line for line, _ in pairs], np.stack([scores for _, scores in pairs])


def _with_interval(value: float, draws: np.ndarray) -> str:
    low, high = interval(draws)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _table(head: list[str], rows: Iterator[list[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(row) + " |" for row in cells]


def codes(rows: list[Measured]) -> Iterator[str]:
    """Rows of the main job and of several codes at equal settings, and their paired differences from ours."""
    names = [row.name for row in rows]
    ours = names.index("ours") if "ours" in names else None
    found = [bootstrap([row.scores for row in rows], statistic) for statistic in STATISTICS.values()]

    def cells() -> Iterator[list[str]]:
        for index, row in enumerate(rows):
            values = [_with_interval(value[index], draws[:, index]) for value, draws in found]
            value, draws = found[0]
            difference = "" if ours in (None, index) else _with_interval(
                value[index] - value[ours], draws[:, index] - draws[:, ours]
            )  # fmt: skip
            cost = np.mean([one["cpu_s"] for one in row.trainings])
            yield [TITLES.get(row.name, f"`{row.name}`"), str(len(row.scores)), *values, difference, f"{cost:,.0f}"]

    head = ["policy", "trainings", *STATISTICS, "score against ours", "training, CPU s"]
    yield from _table(head, cells())


def effects(rows: list[Measured], statistic: Statistic) -> dict[str, tuple[float, np.ndarray]]:
    """By factor: mean over the runs at its second level minus that at its first one, and its bootstrap draws."""
    value, draws = bootstrap([row.scores for row in rows], statistic)
    found = {}
    for factor, levels in FACTORS.items():
        weights = np.array([-1.0 if row.levels[factor] == next(iter(levels)) else 1.0 for row in rows])
        weights /= len(rows) / 2
        found[factor] = float(value @ weights), draws @ weights
    return found


def complete(rows: list[Measured]) -> list[Measured]:
    """The complete halves of the screen, in each of which every factor is balanced."""
    halves = ([row for row in rows if row.group == group] for group in ("screen", "mirror"))
    return [row for half in halves if len(half) == 12 for row in half]


def screen(rows: list[Measured]) -> Iterator[str]:
    """Effects of the factors."""
    found = [effects(rows, statistic) for statistic in STATISTICS.values()]
    margin = lenth_margin(np.array([value for value, _ in found[0].values()]))

    def cells() -> Iterator[list[str]]:
        for factor, levels in FACTORS.items():
            first, second = list(levels)[:2]
            yield [f"{factor}: {second} for {first}", *(_with_interval(*one[factor]) for one in found)]

    half = "both halves" if len(rows) > 12 else "one half, where interactions of two factors are mixed into the effects"
    seeds = len(rows[0].scores)
    yield f"{len(rows)} rows ({half}), {seeds} training seed{'s' * (seeds > 1)} each."
    yield f"Of the score, effects smaller than {margin:.3f} are within the noise of training by Lenth's margin (95 %),"
    yield "which supposes that most factors have no effect."
    yield ""
    yield from _table(["change", *STATISTICS], cells())


def probes(rows: list[Measured]) -> Iterator[str]:
    """Single changes of the main job."""
    base = next(row for row in rows if row.name == MAIN_JOB)
    others = [row for row in rows if row.group == "probe"]
    found = [bootstrap([base.scores, *(row.scores for row in others)], one) for one in STATISTICS.values()]

    def cells() -> Iterator[list[str]]:
        for index, row in enumerate(others, start=1):
            cost = np.mean([one["cpu_s"] for one in row.trainings])
            yield [
                row.name,
                str(len(row.scores)),
                _with_interval(found[0][0][index], found[0][1][:, index]),
                *(
                    _with_interval(value[index] - value[0], draws[:, index] - draws[:, 0])
                    for value, draws in found
                ),
                f"{cost:,.0f}",
            ]  # fmt: skip

    differences = [f"{name}, difference" for name in STATISTICS]
    yield f"The main job scores {_with_interval(found[0][0][0], found[0][1][:, 0])}."
    yield ""
    yield from _table(["change of the main job", "trainings", "score", *differences, "training, CPU s"], cells())


WAYS = ["way of running", "trainings", *(f"{name}, difference" for name in STATISTICS)]


def ways(results: Results, rows: list[Measured]) -> Iterator[list[str]]:
    """Ways of running the same weights: paired differences over the trainings that were measured so."""
    for name in list(MEASURES)[1:]:
        pairs = []
        for row in rows:
            for line, own in zip(row.trainings, row.scores, strict=True):
                if (other := results.scores(line["run"], name)) is not None:
                    pairs.append((own, other))
        if pairs:
            yield [name, str(len(pairs)), *(_with_interval(*_paired(pairs, one)) for one in STATISTICS.values())]


def _paired(pairs: list[tuple[np.ndarray, np.ndarray]], statistic: Statistic) -> tuple[float, np.ndarray]:
    """Mean over trainings of the second score minus the first, and its draws over trainings and episodes."""
    n = len(pairs)
    value, draws = bootstrap([scores[None] for half in zip(*pairs, strict=True) for scores in half], statistic)
    differences = draws[:, n:] - draws[:, :n]
    trainings = np.random.default_rng(0).integers(n, size=differences.shape)
    return float((value[n:] - value[:n]).mean()), np.take_along_axis(differences, trainings, axis=1).mean(1)


def relations(rows: list[Measured]) -> Iterator[str]:
    """Rank correlation of cheap measures and score over trainings; losses only where objective and weights are one."""
    pairs = [(line, mean(scores)) for row in rows for line, scores in zip(row.trainings, row.scores, strict=True)]

    def cells() -> Iterator[list[str]]:
        for name, value in cheap_measures().items():
            known = np.array([(found, score) for line, score in pairs if np.isfinite(found := value(line))])
            if len(known) >= 4:
                rho, low, high = spearman(*known.T)
                yield [name, str(len(known)), f"{rho:.2f} ({low:.2f} to {high:.2f})"]

    yield from _table(["measure", "trainings", "Spearman's rank correlation with the score"], cells())


DRAWN = ("validation loss, v, min-SNR", "action error", "lower quartile of the action error")
"""Cheap measures that the second figure shows."""


def cheap_measures() -> dict[str, Callable[[dict[str, Any]], float]]:
    """Measures of a training by name; NaN where one does not apply."""

    def loss(line: dict[str, Any], objective: str) -> float:
        return line["cheap"]["validation loss"] if objective_of(line) == objective else np.nan

    return {
        **{f"validation loss, {name}": partial(loss, objective=name) for name in list(FACTORS["objective"])[:2]},
        "lower quartile of the action error": lambda line: line["cheap"].get("lower quartile", np.nan),
        "action error": lambda line: line["cheap"]["action error"],
        "action error of the first executed action": lambda line: line["cheap"]["action error by step"][0],
        "action error of the last executed action": lambda line: line["cheap"]["action error by step"][-1],
    }


def objective_of(line: dict[str, Any]) -> str:
    """Objective and weights of a training, as a level of the design."""
    if line["group"] == "probe" and line["row"].startswith("objective: "):
        return line["row"].removeprefix("objective: ")
    if line["row"].removesuffix(WITH_SHORT) in PEERS:
        return "eps"
    return line["levels"].get("objective", next(iter(FACTORS["objective"])))


def tables(results: Results) -> Iterator[str]:
    """All that can be told from what is finished."""
    for (data, budget), rows in measured(results).items():
        episodes = rows[0].scores.shape[1]
        machines = sorted({line["machine"] for row in rows for line in row.trainings})
        yield from ("", f"## {data}, {budget}, {episodes} test seeds", "")
        count = sum(len(row.scores) for row in rows)
        yield f"{count} training{'s' * (count > 1)} on {' and '.join(machines)}, one thread each."
        peers = [row for row in rows if row.group == "peers"]
        ours = [row for row in rows if row.group != "peers"]
        halves = complete(ours)
        if peers:
            yield from ("", "### The main job, and three codes at equal settings", "", *codes(peers))
        if halves:
            yield from ("", "### The screen", "", *screen(halves))
        if any(row.group == "probe" for row in ours) and any(row.name == MAIN_JOB for row in peers):
            yield from ("", "### One change of the main job at a time", "", *probes(rows))
        for title, which in (*((f"the {row.name}", [row]) for row in peers), ("the rows of the screen", ours)):
            if others := list(ways(results, which)):
                yield from ("", f"### Without training again: {title}", "", *_table(WAYS, iter(others)))
        if halves:
            yield from ("", "### Cheap measures", "", *relations(rows))


def draw(path: Path, results: Results) -> None:
    """Every row's score with its interval, a panel for each data set and budget: the tallest left, the others right."""
    panels = measured(results)
    tallest = max(panels, key=lambda setting: len(panels[setting]))
    lines = {setting: len(rows) + 5 for setting, rows in panels.items()}  # of text, with title and axis
    others = [setting for setting in panels if setting != tallest]
    height = 0.17 * max(lines[tallest], sum(lines[setting] for setting in others))
    figure = import_figure()(figsize=(13 if others else 6.5, height), dpi=110, layout="constrained")
    columns = figure.add_gridspec(1, 2 if others else 1)
    places = {tallest: columns[0]}
    if others:
        right = columns[1].subgridspec(len(others), 1, height_ratios=[lines[setting] for setting in others])
        places |= {setting: right[index] for index, setting in enumerate(others)}
    for setting, place in places.items():
        _draw_scores(figure.add_subplot(place), panels[setting])
        figure.axes[-1].set_title(", ".join(setting), fontsize=9, loc="right", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_scores(axes: Axes, rows: list[Measured]) -> None:
    """One panel, the best row on top."""
    value, draws = bootstrap([row.scores for row in rows], mean)
    order = np.argsort(value)
    low, high = np.quantile(draws[:, order], [0.025, 0.975], axis=0)
    places = np.arange(len(rows))
    axes.hlines(places, low, high, color=INK, linewidth=1)
    axes.plot(value[order], places, "o", color=INK, markersize=3)
    axes.set_yticks(places, [rows[index].name for index in order], fontsize=7)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlabel("score, mean and 95 % interval", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)


def draw_relations(path: Path, panels: dict[Setting, list[Measured]]) -> None:
    """Score against cheap measures: a row for each data set and budget, a dot for each training."""
    figure = import_figure()(figsize=(12, 3.6 * len(panels)), dpi=110, layout="constrained")
    grid = figure.subplots(len(panels), len(DRAWN), sharey=True, squeeze=False)
    for line_of_axes, ((data, budget), rows) in zip(grid, panels.items(), strict=True):
        pairs = [(line, mean(scores)) for row in rows for line, scores in zip(row.trainings, row.scores, strict=True)]
        for axes, name in zip(line_of_axes, DRAWN, strict=True):
            values = [(cheap_measures()[name](line), score) for line, score in pairs]
            axes.plot(*zip(*values, strict=True), "o", color=INK, markersize=3)
            axes.set_xscale("log")
            axes.xaxis.get_major_locator().set_params(subs=(1, 2, 5))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
            axes.set_xlabel(name)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        line_of_axes[0].set_title(f"{data}, {budget}", fontsize=9, loc="left", color=INK)
        line_of_axes[0].set_ylabel("score")
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def write_page(page: Path, results: Results) -> None:
    """Replace what is between the markers of the page, and draw its figures in `media` beside it."""
    if not measured(results):
        raise ValueError(f"{results.path} holds no scores; run the study first")
    draw(page.parent / "media/study.png", results)
    head = ["![Scores of all rows](media/study.png)"]
    if screens := {setting: rows for setting, rows in measured(results).items() if complete(rows)}:
        draw_relations(page.parent / "media/study_measures.png", screens)
        head += ["", "![Scores of all trainings against cheap measures](media/study_measures.png)"]
    text = "\n".join(itertools.chain(head, tables(results)))
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
