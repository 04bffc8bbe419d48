"""Tables and figures of the study, made from its raw results alone."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.results import within
from benchmarks.study.design import (
    FACTORS,
    MAIN_JOB,
    MAIN_JOB_ADAMW,
    MAIN_JOB_MIRRORED,
    MAIN_JOB_SHORT,
    MAIN_JOB_TWO,
    PEERS,
    WITH_MIRRORED,
    WITH_SHORT,
)
from benchmarks.study.design import rows as design_rows
from benchmarks.study.measure import MEASURES, OWN
from benchmarks.study.results import Results
from benchmarks.study.statistics import lenth_margin, spearman
from dp_prior.evaluation.picture import INK, MEAN, import_figure
from dp_prior.files.durable import replacing
from dp_prior_lab.verdict import Comparison
from dp_prior_studio.pages.bootstrap import STATISTICS, Statistic, bootstrap, interval, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {  # of names that the raw results write out
    MAIN_JOB_SHORT: "main job, horizon 8",
    MAIN_JOB_MIRRORED: "main job, mirror images",
    MAIN_JOB_TWO: "main job, 2 observations",
    MAIN_JOB_ADAMW: "main job, 2 observations, AdamW",
    **{f"{code}{WITH_SHORT}": f"{code}, horizon 8" for code in PEERS},
    "noise between the evaluations (eta 1)": "eta 1",
}
ERROR = 0.05
"""Of a verdict on two codes."""

COLUMNS = ["score", "solved, %", "worst tenth"]
DIFFERENCES = [f"{name}: change" for name in COLUMNS]
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
    """The policies that were measured by their own sampler: by data set and budget, smaller budgets first, rows as
    designed, trainings by seed."""
    order = {row.name: place for place, row in enumerate(design_rows())}
    by_setting: dict[Setting, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for line in sorted(results.trainings(), key=lambda line: (line["data"], line["samples"], line["seed"])):
        scores = results.scores(line["run"], OWN)
        if scores is not None:
            by_setting[line["data"], line["budget"]][line["row"]].append((line, scores))
    panels: dict[Setting, list[Measured]] = {}
    for setting, by_row in by_setting.items():
        panels[setting] = []
        for name in sorted(by_row, key=lambda name: order.get(name, len(order))):
            first_line, _ = by_row[name][0]
            panels[setting].append(Measured(name, first_line["group"], first_line["levels"], *_stacked(by_row[name])))
    return panels


def _stacked(pairs: list[tuple[dict, np.ndarray]]) -> tuple[list[dict], np.ndarray]:
    return [line for line, _ in pairs], np.stack([scores for _, scores in pairs])


def _with_interval(value: float, draws: np.ndarray) -> str:
    low, high = interval(draws)
    return f"{value:.3f} {within(f'{low:.3f}', f'{high:.3f}')}"


def _differences(differences: list[tuple[float, np.ndarray]]) -> list[str]:
    """Cells of the differences in score, share solved and worst tenth, each with its draws."""
    score, (solved, _), (worst, _) = differences
    return [_with_interval(*score), f"{_percent(solved):+d}", f"{round(worst, 2) + 0.0:+.2f}"]


def _percent(share: float) -> int:
    """Halves rounded up, which 200 episodes often give."""
    return math.floor(100 * share + 0.5 + 1e-9)


def _cpu(row: Measured) -> str:
    return f"{np.mean([training['cpu_s'] for training in row.trainings]):,.0f}"


def _table(head: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    """Markdown; a first cell equal to the one above is left out."""
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    above = None
    for cells in rows:
        first, above = "" if cells[0] == above else cells[0], cells[0]
        yield f"| {' | '.join([first, *cells[1:]])} |"


def codes(panels: dict[Setting, list[Measured]]) -> Iterator[str]:
    """The main job in several forms, several codes at equal settings, and the lead of the main job."""

    def cells() -> Iterator[list[str]]:
        for setting, rows in panels.items():
            for row in rows:
                if row.group != "peers":
                    continue
                estimates = [bootstrap([row.scores], statistic) for statistic in STATISTICS.values()]
                (score, draws), (solved, _), (worst, _) = estimates
                values = [_with_interval(score[0], draws[:, 0]), str(_percent(solved[0])), f"{worst[0]:.3f}"]
                base = rival(row, setting, panels)
                above = "" if base is None else f"{_with_interval(*_difference(base, row, mean))}; {_told(base, row)}"
                title = TITLES.get(row.name, row.name)
                yield [", ".join(setting), title, str(len(row.scores)), *values, above, _cpu(row)]

    head = ["data", "policy", "trainings", *COLUMNS, "main job above by; told after", "CPU s"]
    yield from _table(head, cells())


def rival(row: Measured, setting: Setting, panels: dict[Setting, list[Measured]]) -> Measured | None:
    """The main job of the same data, samples and horizon as a row of another code, if it was trained."""
    if row.name.removesuffix(WITH_SHORT) not in PEERS:
        return None
    data, budget = setting
    candidates = [(setting, MAIN_JOB_SHORT if row.name.endswith(WITH_SHORT) else MAIN_JOB)]
    if data.endswith(WITH_MIRRORED):
        candidates.append(((data.removesuffix(WITH_MIRRORED), budget), MAIN_JOB_MIRRORED))
    for place, name in candidates:
        for candidate in panels.get(place, []):
            if candidate.name == name:
                return candidate
    return None


def _difference(first: Measured, second: Measured, statistic: Statistic) -> tuple[float, np.ndarray]:
    """The first row minus the second, and its bootstrap draws."""
    value, draws = bootstrap([first.scores, second.scores], statistic)
    return float(value[0] - value[1]), draws[:, 0] - draws[:, 1]


def _told(first: Measured, second: Measured) -> str:
    """The number of episodes after which a test at every episode distinguishes these trainings; a dash for never."""
    scores = np.stack([row.scores.mean(0) for row in (first, second)])
    return str(Comparison(scores, (0.0, 1.0), ERROR).pairs()[0].after or "-")


def effects(rows: list[Measured], statistic: Statistic) -> dict[str, tuple[float, np.ndarray]]:
    """The effect of each factor: the mean over runs at its second level minus the mean at its first level, and
    bootstrap draws of this difference."""
    value, draws = bootstrap([row.scores for row in rows], statistic)
    by_factor = {}
    for factor, levels in FACTORS.items():
        first_level = next(iter(levels))
        weights = np.array([-1.0 if row.levels[factor] == first_level else 1.0 for row in rows])
        weights /= len(rows) / 2
        by_factor[factor] = float(value @ weights), draws @ weights
    return by_factor


def complete(rows: list[Measured]) -> list[Measured]:
    """The complete halves of the screen, in each of which every factor is balanced."""
    halves = []
    for group in ("screen", "mirror"):
        half = [row for row in rows if row.group == group]
        if len(half) == 12:
            halves += half
    return halves


def screen(rows: list[Measured]) -> Iterator[str]:
    """Effects of the factors."""
    factor_effects = effects(rows, mean)
    margin = lenth_margin(np.array([value for value, _ in factor_effects.values()]))

    def cells() -> Iterator[list[str]]:
        for factor, levels in FACTORS.items():
            first, second = list(levels)[:2]
            yield [f"{factor}: {second} for {first}", _with_interval(*factor_effects[factor])]

    half = "both halves" if len(rows) > 12 else "one half, where interactions of two factors are mixed into the effects"
    yield f"{len(rows)} rows ({half}). Lenth's margin of noise for the score (95 %) is {margin:.3f}."
    yield ""
    yield from _table(["change", DIFFERENCES[0]], cells())


def probes(panels: dict[Setting, list[Measured]]) -> Iterator[str]:
    """Single changes of the main job."""

    def cells() -> Iterator[list[str]]:
        for setting, rows in panels.items():
            base = next((row for row in rows if row.name == MAIN_JOB), None)
            probed = [row for row in rows if row.group == "probe"] if base is not None else []
            for row in probed:
                differences = [_difference(row, base, statistic) for statistic in STATISTICS.values()]
                yield [", ".join(setting), row.name, str(len(row.scores)), *_differences(differences), _cpu(row)]

    yield from _table(["data", "change", "trainings", *DIFFERENCES, "CPU s"], cells())


def ways(panels: dict[Setting, list[Measured]], results: Results) -> Iterator[str]:
    """Ways of running the same weights: paired differences over the trainings that were measured so."""

    def cells() -> Iterator[list[str]]:
        for setting, rows in panels.items():
            chosen = {TITLES.get(row.name, row.name): [row] for row in rows if row.group == "peers"}
            chosen["rows of the screen"] = [row for row in rows if row.group in ("screen", "mirror")]
            for (title, weights), name in itertools.product(chosen.items(), list(MEASURES)[1:]):
                pairs = _run_otherwise(results, weights, name)
                if pairs:
                    differences = _differences([_paired(pairs, statistic) for statistic in STATISTICS.values()])
                    yield [f"{', '.join(setting)}: {title}", TITLES.get(name, name), str(len(pairs)), *differences]

    yield from _table(["weights", "way of running", "trainings", *DIFFERENCES], cells())


def _run_otherwise(results: Results, rows: list[Measured], measure: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """(own scores, scores of this measure) of each training that has both."""
    pairs = []
    for line, own_scores in _trainings(rows):
        scores = results.scores(line["run"], measure)
        if scores is not None:
            pairs.append((own_scores, scores))
    return pairs


def _trainings(rows: Iterable[Measured]) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """The line of each training, and its scores (episodes,)."""
    for row in rows:
        yield from zip(row.trainings, row.scores, strict=True)


def _paired(pairs: list[tuple[np.ndarray, np.ndarray]], statistic: Statistic) -> tuple[float, np.ndarray]:
    """Mean over trainings of the second score minus the first, and its draws over trainings and episodes."""
    n = len(pairs)
    own_scores, other_scores = zip(*pairs, strict=True)
    value, draws = bootstrap([scores[None] for scores in (*own_scores, *other_scores)], statistic)
    differences = draws[:, n:] - draws[:, :n]
    trainings = np.random.default_rng(0).integers(n, size=differences.shape)
    return float((value[n:] - value[:n]).mean()), np.take_along_axis(differences, trainings, axis=1).mean(1)


def relations(rows: list[Measured]) -> Iterator[str]:
    """Rank correlation of cheap measures and score over trainings; losses only where objective and weights are one."""
    pairs = [(line, mean(scores)) for line, scores in _trainings(rows)]

    def cells() -> Iterator[list[str]]:
        for name, value in cheap_measures().items():
            points = np.array([(value(line), score) for line, score in pairs]).reshape(-1, 2)
            points = points[np.isfinite(points[:, 0])]
            if len(points) >= 4:
                rho, low, high = spearman(*points.T)
                yield [name, str(len(points)), f"{rho:.2f} {within(f'{low:.2f}', f'{high:.2f}')}"]

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
    """One table per question, from all that is finished."""
    panels = measured(results)
    every_row = list(itertools.chain(*panels.values()))
    machines = sorted({line["machine"] for line, _ in _trainings(every_row)})
    count = sum(len(row.scores) for row in every_row)
    episodes = max(results.episodes())
    yield f"{count} trainings, one thread each, {episodes} test seeds;"
    yield f"{' and '.join(machines)}."
    yield from ("", "## The main job and other codes", "", *codes(panels))
    if any(row.group == "probe" for row in every_row):
        yield from ("", "## One change of the main job", "", "![Scores](media/study.png)", "", *probes(panels))
    yield from ("", "## The same weights, run otherwise", "", *ways(panels, results))
    for setting, rows in panels.items():
        halves = complete(rows)
        if halves:
            yield from ("", f"## The screen: {', '.join(setting)}", "", *screen(halves))
            yield from ("", "## Cheap measures", "", "![Scores and measures](media/study_measures.png)", "")
            yield from relations(rows)


def draw(path: Path, panels: dict[Setting, list[Measured]]) -> None:
    """Scores of the main job and of its single changes, with their intervals, where most changes were measured."""
    setting, rows = max(panels.items(), key=lambda panel: sum(row.group == "probe" for row in panel[1]))
    rows = [row for row in rows if row.group == "probe" or row.name == MAIN_JOB]
    figure = import_figure()(figsize=(8, 0.26 * len(rows) + 1), dpi=130, layout="constrained")
    axes = figure.subplots()
    _draw_scores(axes, rows)
    axes.set_title(", ".join(setting), fontsize=11, loc="left", color=INK)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _draw_scores(axes: Axes, rows: list[Measured]) -> None:
    """The best row on top; the main job in colour, with a line through it."""
    value, draws = bootstrap([row.scores for row in rows], mean)
    order = np.argsort(value)
    low, high = np.quantile(draws[:, order], [0.025, 0.975], axis=0)
    places = np.arange(len(rows))
    colours = [MEAN if rows[index].name == MAIN_JOB else INK for index in order]
    axes.axvline(next(value[index] for index in order if rows[index].name == MAIN_JOB), color=MEAN, linewidth=0.8)
    axes.hlines(places, low, high, color=colours, linewidth=1.5)
    axes.scatter(value[order], places, color=colours, s=18, zorder=3)
    axes.set_yticks(places, [rows[index].name for index in order], fontsize=10)
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.set_xlabel("score, mean and 95 % interval", fontsize=10)
    axes.tick_params(axis="x", labelsize=10)
    axes.locator_params(axis="x", nbins=6)
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)


def draw_relations(path: Path, panels: dict[Setting, list[Measured]]) -> None:
    """Score against cheap measures: a row for each data set and budget, a dot for each training."""
    figure = import_figure()(figsize=(12, 3.6 * len(panels)), dpi=110, layout="constrained")
    grid = figure.subplots(len(panels), len(DRAWN), sharey=True, squeeze=False)
    for line_of_axes, ((data, budget), rows) in zip(grid, panels.items(), strict=True):
        pairs = [(line, mean(scores)) for line, scores in _trainings(rows)]
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
    """Replace the tables between the markers of the page, and draw its figures in `media` beside the page."""
    panels = measured(results)
    if not panels:
        raise ValueError(f"{results.path} holds no scores; run the study first")
    if any(row.group == "probe" for row in itertools.chain(*panels.values())):
        draw(page.parent / "media/study.png", panels)
    screens = {setting: rows for setting, rows in panels.items() if complete(rows)}
    if screens:
        draw_relations(page.parent / "media/study_measures.png", screens)
    page.write_text(with_tables(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def with_tables(text: str, results: Results) -> str:
    """The text of the page with the tables of these results between its markers."""
    before, _, rest = text.partition(BEGIN)
    made = "\n".join(tables(results))
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"
