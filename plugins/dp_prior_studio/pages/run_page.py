"""The page of one run: scores, films, learning curves, errors, settings and events."""

from __future__ import annotations

import datetime
import io
import re
import shlex
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.evaluation.curve import learning_curves
from dp_prior.evaluation.picture import draw_scores, import_figure
from dp_prior.files.json_text import readable_json
from dp_prior.files.regular_files import read_small
from dp_prior_studio.inspection.data_urls import data_url
from dp_prior_studio.pages.charts import bars, overlay, sampled
from dp_prior_studio.pages.drawing import Chart, Drawing
from dp_prior_studio.pages.evaluation_report import BY_SEED, MOMENTS, EvaluationReport
from dp_prior_studio.pages.numbers import can_be_drawn
from dp_prior_studio.pages.page import Page, Table
from dp_prior_studio.pages.story import Story

LARGEST_FILMS = 6 << 20
"""Bytes of films embedded in a page; further films are links to their files."""

LARGEST_PICTURES = 16 << 20
"""Bytes of pictures of samples embedded in a page."""

MOST_FILMS, MOST_BARS, MOST_DRAWS, MOST_LISTED = 200, 2000, 100, 5000
"""Most films, bars of a chart, sampled chunks of a moment, and lines of a table."""

MOST_POINTS = 50_000
"""Most numbers of sampled chunks drawn in a page; beyond this only every n-th action is drawn."""

LEARNING, HAPPENED = "Learning over samples", "What happened"
"""The section and the table that are open beside films and scores."""

_IN_WORDS = {
    "by_index": "along the chunk",
    "by_dimension": "by number of the action",
    "by_timestep": "by diffusion timestep",
    "mse": "mean squared error, in squared units of the action",
    "mae": "mean error, in units of the action",
    "index": "index in the chunk",
    "dimension": "number of the action",
    "timestep": "diffusion timestep",
}
"""Captions of tables and columns of evaluators; others are shown by their names."""

_NAMES = {"score": "score", "success_rate": "solved"}
_BESIDE = re.compile(r"_ci_(low|high)$|_std$|^loss_q\d$|^episodes$")
"""Ends of intervals, spreads, quarters of a loss, counts: left out of the table."""


def run_page(story: Story, output: Path) -> Page:
    """The page of one run. Addresses of films are relative to `output`, the future file of the page."""
    films = _films(story, output)
    drawing, rows = Drawing(), timed(story)
    sections = [
        (LEARNING, _learning(drawing, rows, "samples_seen", "samples seen")),
        ("Learning over time, without evaluations", _learning(drawing, rows, *unit_of_time(rows))),
        ("Episodes", _episodes(drawing, story)),
        ("Sampled beside recorded chunks", _chunks(drawing, story)),
        ("Errors by place", _tables(drawing, story)),
        ("Speed", _speed(drawing, story)),
    ]
    errors = _errors(story)
    return Page(
        title=story.name,
        state=story.state,
        description=story.settings.get("description", ""),
        headline=[*headlines(story), *_selected(story)],
        facts=_facts(story),
        films=films,
        summaries=[measured(story)],
        strips=[*_frames(story), *_pictures(story)],
        sections=[section for section in sections if section[1]],
        tables=[
            (HAPPENED, ("step", "message"), errors),
            ("Test of the best weights", ("metric", "value"), [(n, f"{v:.6g}") for n, v in story.test.items()]),
            *_of_rollouts(story),
            ("Settings that differ from the defaults", ("setting", "value"), _listed(story.changed, story.gaps)),
        ],
        details=[("All settings", ("setting", "value"), _listed(story.settings, story.gaps))],
        commands=_commands(story),
        gaps=[*story.gaps, *drawing.gaps],
        opened=[LEARNING, HAPPENED],
    )


def _films(story: Story, output: Path) -> list[dict[str, Any]]:
    """The newest films, embedded as far as `LARGEST_FILMS` allows."""
    films, room = [], LARGEST_FILMS
    filmed = [report for report in reversed(story.reports) if report.film]
    for report in _at_most(MOST_FILMS, filmed, "films, the newest", story.gaps):
        room -= report.film.stat().st_size
        source = data_url("video/mp4", read_small(report.film, LARGEST_FILMS)) if room > 0 else None
        text = f"{report.name} at step {report.step:,}: {_scored(report)}"
        films.append({"text": text, "source": source, "file": _relative(report.film, output)})
    return films


def _facts(story: Story) -> dict[str, Any]:
    """Size, time and place of a run, by name."""
    last = story.rows[-1] if story.rows else {}
    facts = {
        "samples": f"{last['samples_seen']:,}" if last else "none",
        "steps": f"{last['step']:,}" if last else "none",
        "last start": _moment(story.ending.get("started")),
        "lasted": _duration(story),
        "ranks": story.ending.get("ranks"),
        "machine": story.ending.get("host"),
        "dp_prior": story.ending.get("dp_prior"),
        "own parts": ", ".join(f"{kind} ({origin})" for kind, origin in sorted(story.parts.items())),
        "directory": str(story.directory),
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _errors(story: Story) -> list[tuple[int, str]]:
    """Step and message of each error, oldest first, and of an end before the budget was spent."""
    errors = [(event["step"], event.get("message", "")) for event in story.events if event.get("event") == "error"]
    if story.state in ("failed", "stopped", "killed"):
        step = story.rows[-1].get("step", 0) if story.rows else 0
        errors.append((step, _end(story)))
    return _at_most(MOST_LISTED, errors[::-1], "what happened, the newest lines", story.gaps)[::-1]


def _end(story: Story) -> str:
    """How a run ended that did not finish."""
    if story.state == "killed":
        return f"process {story.ending.get('pid')} was killed: it is gone and has not written how it ended"
    message, signal = story.ending.get("message") or "", story.ending.get("stopped_by")
    return f"stopped on {signal}: {message}" if signal else str(message)


def headlines(story: Story) -> list[tuple[str, str, str]]:
    """(name, value, interval) of the test scores, of replays last; before a test, of the newest row with a score of
    `Story.tested`."""
    scores = story.test or _newest_scores(story)
    lines = []
    for name, value in sorted(scores.items(), key=lambda item: item[0].rpartition("/")[0] in story.ceilings):
        group, _, kind = name.rpartition("/")
        if kind in _NAMES and value is not None:
            form = "{:.0%}".format if kind == "success_rate" else "{:.3f}".format
            ends = _interval(story, name, scores)
            lines.append((f"{group}: {_NAMES[kind]}", form(value), " to ".join(map(form, ends))))
    return lines


def _newest_scores(story: Story) -> dict[str, Any]:
    """The newest row with a score of `Story.tested`, or with any score; empty before the first score."""
    ending = "/score" if story.tested is None else f"{story.tested.name}/score"
    for row in reversed(story.rows):
        if any(name.endswith(ending) for name in row):
            return row
    return {}


def _selected(story: Story) -> list[tuple[str, str, str]]:
    """The number that selected the best weights."""
    if story.selected is None:
        return []
    value, step = story.selected
    return [(f"selected by {story.monitored}", f"{value:.4g}", f"at step {step:,}")]


def measured(story: Story) -> Table:
    """The measurements of evaluators during training: at the step of the best weights, and the newest."""
    best = story.selected and story.selected[1]
    row_at_best: dict[str, dict[str, Any]] = {}
    newest_row: dict[str, dict[str, Any]] = {}
    for row in story.rows:
        for name, value in row.items():
            group, _, kind = name.rpartition("/")
            if group and group != "train" and value is not None and not _BESIDE.search(kind) and name not in story.test:
                newest_row[name] = row
                if row["step"] == best:
                    row_at_best[name] = row

    def cell(name: str, row: dict[str, Any] | None) -> str:
        if row is None:
            return ""
        ends = " to ".join(f"{end:.4g}" for end in _interval(story, name, row))
        return f"{row[name]:.4g} ({ends})" if ends else f"{row[name]:.4g}"

    rows = [(name, cell(name, row_at_best.get(name)), cell(name, row)) for name, row in newest_row.items()]
    label = "best weights" if best is None else f"best weights, step {best:,}"
    return "Measured during training", ("metric", label, "newest"), rows


def _interval(story: Story, name: str, row: dict[str, Any]) -> tuple[float, ...]:
    """The ends of a metric's 95 % interval, within the metric's limits; empty without an interval."""
    group, _, kind = name.rpartition("/")
    bound = f"{group}/{'success' if kind == 'success_rate' else kind}"
    ends = row.get(f"{bound}_ci_low"), row.get(f"{bound}_ci_high")
    return () if None in ends else tuple(float(np.clip(end, *story.limits(name))) for end in ends)


def _pictures(story: Story) -> list[tuple[str, str]]:
    """The pictures of samples in the newest report of each evaluator."""
    newest, room, pictures = {report.name: report for report in story.reports}, LARGEST_PICTURES, []
    for report in newest.values():
        for picture in report.pictures:
            room -= picture.stat().st_size
            if room < 0:
                bound = f"{LARGEST_PICTURES:,} bytes are shown"
                story.gaps.append(f"{picture.name} and other pictures are left out: {bound}")
                return pictures
            name = picture.stem.removeprefix(f"{report.path.stem}_")
            source = data_url("image/png", read_small(picture, LARGEST_PICTURES))
            pictures.append((f"{report.name}, {name}, at step {report.step:,}", source))
    return pictures


def _frames(story: Story) -> list[tuple[str, str]]:
    """The cameras' pictures at the moments whose chunks are drawn."""
    if not story.frames:
        return []
    from dp_prior.evaluation.grid import grid, save_png

    newest, pictures = {report.name: report for report in story.reports}, []
    for name, frames in story.frames.items():
        file = io.BytesIO()
        save_png(file, grid(np.asarray(frames), min(4, len(frames))))
        moments = "; ".join(newest[name].moments) or f"{len(frames)} moments"
        title = f"{name}, the cameras at the moments drawn below: {moments}"
        pictures.append((title, data_url("image/png", file.getvalue())))
    return pictures


def _learning(drawing: Drawing, rows: list[dict[str, Any]], x: str, label: str) -> list[Chart]:
    """The learning curves of metrics with two values or more; a single value is in the table of measurements."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update(name for name, value in row.items() if value is not None)
    single = {name for name, count in counts.items() if count < 2 and name not in (x, "step")}
    drawn_rows = []
    for row in rows:
        drawn_rows.append({name: value for name, value in row.items() if name not in single})
    charts = []
    for figure in learning_curves(drawn_rows, x, label):
        title = f"{figure.axes[0].get_title(loc='left')}, over {label}"
        charts += drawing.chart(title, lambda figure=figure: figure)
    return charts


def unit_of_time(rows: Iterable[dict[str, Any]]) -> tuple[str, str]:
    """The column of the time in the rows of `timed`, minutes for a training below an hour, and its label."""
    is_long = max((row["hours"] or 0 for row in rows), default=0) >= 1
    return ("hours", "hours of training") if is_long else ("minutes", "minutes of training")


def timed(story: Story) -> list[dict[str, Any]]:
    """The rows, each with the hours and minutes of training so far, computed from the logged speeds; without
    evaluations. None from a speed on by which the hours cannot be drawn."""
    rows, n_samples, seconds = [], 0, 0.0
    for row in story.rows:
        rate = row.get("train/samples_per_second")
        if rate:
            seconds += (row["samples_seen"] - n_samples) / rate
            n_samples = row["samples_seen"]
        is_drawn = can_be_drawn(seconds)
        times = {"hours": seconds / 3600, "minutes": seconds / 60} if is_drawn else {"hours": None, "minutes": None}
        rows.append({**row, **times})
    return rows


def points(rows: list[dict[str, Any]], x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """(n,) of `x` and (n,) of a metric, both float64, from the rows with a finite value of the metric."""
    places = [(row[x], row[metric]) for row in rows if row.get(metric) is not None]
    return tuple(np.array(places, dtype=float).reshape(-1, 2).T)


def _episodes(drawing: Drawing, story: Story) -> list[Chart]:
    """Scores of `Story.tested`, from the worst episode to the best."""
    report = story.tested
    if report is None:
        return []
    episodes = _at_most(MOST_BARS, report.episodes, f"{report.name}, the scores of the first episodes", story.gaps)

    def scores() -> Any:
        figure = import_figure()(figsize=(9, 2.6), layout="constrained")
        draw_scores(figure.subplots(), episodes)
        return figure

    first = "" if len(episodes) == len(report.episodes) else f"the first {MOST_BARS} of "
    title = f"{report.name} at step {report.step:,}, scores of {first}{len(report.episodes)} episodes"
    return drawing.chart(title, scores)


def _chunks(drawing: Drawing, story: Story) -> list[Chart]:
    """Sampled and recorded chunks at some held-out moments, at most `MOST_POINTS` numbers in all."""
    stride = -(-sum(chunks.size for chunks in story.chunks.values()) // MOST_POINTS)
    n_obs_steps, n_action_steps = (story.settings.get(f"task.{key}") for key in ("n_obs_steps", "n_action_steps"))
    executed = None
    if isinstance(n_obs_steps, int) and isinstance(n_action_steps, int):
        executed = n_obs_steps - 1, n_obs_steps + n_action_steps - 2
    charts, newest = [], {report.name: report for report in story.reports}
    for name, moments in story.chunks.items():
        report = newest[name.rpartition("/")[0]]
        places = dict(enumerate(report.moments, 1))
        for number, chunks in enumerate(moments, 1):
            label = f"{name}, moment {number} of {len(moments)}"
            label += f": {places[number]}" if number in places else ""
            draw = partial(sampled, chunks[: 1 + MOST_DRAWS], label, stride, executed, report.dimensions)
            charts += drawing.chart(label, draw)
    return charts


def _tables(drawing: Drawing, story: Story) -> list[Chart]:
    """The tables of the newest report of each evaluator, such as the action error at each index of the chunk."""
    measuring = (report for report in story.reports if not report.episodes and report.name not in story.ceilings)
    newest = {report.name: report for report in measuring}
    charts = []
    for report in newest.values():
        for name, rows in report.tables.items():
            if rows and not name.endswith(MOMENTS):
                charts += _table_charts(drawing, story, name, rows)
    return charts


def _table_charts(drawing: Drawing, story: Story, name: str, rows: list[dict[str, Any]]) -> list[Chart]:
    """A bar chart of each column of numbers of a table."""
    drawn = rows[:MOST_BARS]
    if len(drawn) < 2:
        return []
    charts, place = [], _place(drawn)
    labels = [_label(row, place) for row in drawn]
    for metric in drawn[0]:
        values = [row.get(metric) for row in drawn]
        if metric not in (*place, "n") and all(map(can_be_drawn, values)):
            caption = _IN_WORDS.get(metric, metric.replace("_", " "))
            title = f"{_in_words(name)}: {caption}"
            _at_most(MOST_BARS, rows, f"{title}, the first bars", story.gaps)
            across = " ".join(_IN_WORDS.get(key, key) for key in place)
            charts += drawing.chart(title, partial(bars, values, labels, title, caption.partition(",")[0], across))
    return charts


def _in_words(name: str) -> str:
    """The caption of a table such as `action_error/ema/by_index[steps=4]`."""
    group, _, table = name.rpartition("/")
    kind, _, settings = table.partition("[")
    caption = _IN_WORDS.get(kind, kind.replace("_", " "))
    steps = settings.removeprefix("steps=").removesuffix("]")
    return f"{group}, {caption}" + (f", {steps} sampling steps" if steps else "")


def _label(row: dict[str, Any], place: list[str]) -> str:
    return " ".join(str(row.get(key, "")) for key in place)


def _place(rows: list[dict[str, Any]]) -> list[str]:
    """The columns that identify a row: the first column, and columns of text."""
    first = next(iter(rows[0]))
    return [key for key in rows[0] if key == first or isinstance(rows[0][key], str)]


def _speed(drawing: Drawing, story: Story) -> list[Chart]:
    charts = []
    for metric, label in (("train/samples_per_second", "samples/s"), ("train/data_share", "waiting for data, share")):
        x, y = points(story.rows, "samples_seen", metric)
        if len(x):
            charts += drawing.chart(label, partial(overlay, [(label, x, y)], label, "samples seen", log=False))
    return charts


def _scored(report: EvaluationReport) -> str:
    rows = report.episodes
    if not rows:
        return "actions predicted from recorded observations; nothing was acted"
    solved = sum(row["success"] is True for row in rows)
    return f"{len(rows)} episodes, {solved} solved; the first are filmed"


def _of_rollouts(story: Story) -> list[Table]:
    """Tables of `Story.tested` without its episodes: motion, posterior, stages, instructions; and of replays."""
    replays = {report.name: report for report in story.reports if report.name in story.ceilings}
    reports = [report for report in (story.tested, *replays.values()) if report is not None]
    tables = []
    for report in reports:
        for name, rows in report.tables.items():
            if rows and not name.endswith(BY_SEED):
                tables.append(_table(f"{name}, step {report.step:,}", name, rows, story.gaps))
    return tables


def _table(title: str, name: str, rows: list[dict[str, Any]], gaps: list[str]) -> Table:
    columns, listed = list(rows[0]), _at_most(MOST_LISTED, rows, f"{name}, the first lines", gaps)
    cells = [tuple(map(_cell, map(row.get, columns))) for row in listed]
    return title, tuple(column.replace("_", " ") for column in columns), cells


def _cell(value: Any) -> str:
    """A value of a report in a table."""
    return f"{value:.4g}" if can_be_drawn(value) else short(value)


def _listed(settings: dict[str, Any], gaps: list[str]) -> list[tuple[str, str]]:
    lines = [(key, short(value)) for key, value in settings.items() if key != "description"]
    return _at_most(MOST_LISTED, lines, "settings, the first lines", gaps)


def _at_most(limit: int, parts: list[Any], title: str, gaps: list[str]) -> list[Any]:
    """The first `limit` parts of a page; `gaps` get a line about further ones."""
    if len(parts) > limit:
        gaps.append(f"{title}: {limit:,} of {len(parts):,} are shown")
    return parts[:limit]


def short(value: Any) -> str:
    """A setting in one line: a text unchanged, "" for null, JSON for other values."""
    if value is None:
        return ""
    return value if isinstance(value, str) else readable_json(value)


def _moment(started: Any) -> Any:
    """A stored time in UTC, to the minute; a value that is no time as stored."""
    try:
        return f"{datetime.datetime.fromisoformat(started).astimezone(datetime.UTC):%Y-%m-%d %H:%M} UTC"
    except (TypeError, ValueError, OverflowError):
        return started


def _duration(story: Story) -> str | None:
    try:
        begun, ended = (datetime.datetime.fromisoformat(story.ending[key]) for key in ("started", "ended"))
        return str(ended - begun)
    except (KeyError, TypeError, ValueError):
        return None


def _commands(story: Story) -> list[str]:
    task = story.settings.get("task.type")
    kind = task if task in ("prior", "image") else "policy"
    run = str(story.directory)
    load = f"from dp_prior import load_{kind}\n{kind} = load_{kind}({run!r})"
    return [shlex.join(["dp-prior", "evaluate", run]), load]


def _relative(path: Path, output: Path) -> str:
    try:
        return path.resolve().relative_to(output.resolve().parent).as_posix()
    except ValueError:
        return path.resolve().as_uri()
