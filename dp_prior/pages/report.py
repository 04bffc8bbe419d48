"""`dp-prior report`: one run, or several side by side, as one HTML file."""

from __future__ import annotations

import base64
import datetime
import functools
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.evaluation.curve import learning_curves
from dp_prior.evaluation.interval import mean_interval
from dp_prior.evaluation.picture import draw_scores, import_figure
from dp_prior.pages.charts import bars, overlay, sampled, svg
from dp_prior.pages.page import Page
from dp_prior.pages.story import Report, Story, read_story
from dp_prior.run_files.scores import PAGE

LARGEST_FILMS = 6 << 20
"""Bytes of films in a page; further ones are links to their files."""

MOST_POINTS = 50_000
"""Of sampled chunks in a page; longer ones are drawn with every n-th of their actions."""

_NAMES = {"score": "score", "success_rate": "solved"}


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write the page of a run, or of several.

    Raises:
        FileNotFoundError: a directory holds no run.
        ImportError: a library of the extra `plots` is not installed.
        OSError: the page cannot be written.
    """
    import_figure()
    stories = [read_story(run) for run in runs]
    page = run_page(stories[0], output) if len(stories) == 1 else _comparison(stories)
    return page.write(output)


def write_last_page(run: Path) -> Path:
    """Write the page of a run that is about to end, while its `exit.json` still says that it is running.

    The page is uploaded with the weights, so it does not name the machine.

    Raises:
        FileNotFoundError, ImportError, OSError: see `write_report`.
    """
    import_figure()
    story, output = read_story(run), run / PAGE
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    ending = {**story.ending, "ended": now, "host": None}
    return run_page(replace(story, state="finished", ending=ending), output).write(output)


def run_page(story: Story, output: Path) -> Page:
    """The page of one run, for a file at `output`, to which addresses of films are relative."""
    room = LARGEST_FILMS
    films = []
    for report in reversed([report for report in story.reports if report.film]):
        film, text = report.film, f"{report.name} at step {report.step:,}: {_scored(report)}"
        room -= film.stat().st_size
        source = f"data:video/mp4;base64,{_encoded(film)}" if room > 0 else None
        films.append({"text": text, "source": source, "file": _relative(film, output)})
    sections = [
        ("Learning over samples", _learning(story, "samples_seen", "samples seen")),
        ("Learning over time, without evaluations", _learning(story, "hours", "hours of training")),
        ("Episodes", _episodes(story)),
        ("Sampled beside recorded chunks", _chunks(story)),
        ("Errors by place", _tables(story)),
        ("Speed", _speed(story)),
    ]
    last = story.rows[-1] if story.rows else {}
    facts = {
        "samples": f"{last['samples_seen']:,}" if "samples_seen" in last else "none",
        "steps": f"{last['step']:,}" if last else "none",
        "last start": story.ending.get("started"),
        "time since": _duration(story),
        "ranks": story.ending.get("ranks"),
        "machine": story.ending.get("host"),
        "directory": str(story.directory),
    }
    happened = [(event["step"], event.get("message", "")) for event in story.events if event.get("event") == "error"]
    if story.state in ("failed", "stopped", "killed"):
        happened.append((last.get("step", 0), story.ending.get("message", "")))
    return Page(
        title=story.name,
        state=story.state,
        description=story.settings.get("description", ""),
        headline=_headlines(story),
        facts={name: value for name, value in facts.items() if value not in (None, "")},
        films=films,
        strips=_pictures(story),
        sections=[section for section in sections if section[1]],
        tables=[
            ("What happened", ("step", "message"), happened),
            ("Settings that differ from the defaults", ("setting", "value"), _listed(story.changed)),
            ("Scores of the best weights", ("metric", "value"), [(n, f"{v:.6g}") for n, v in story.test.items()]),
        ],
        details=[("All settings", ("setting", "value"), _listed(story.settings))],
        commands=_commands(story),
        gaps=story.gaps,
    )


def _pictures(story: Story) -> list[tuple[str, str]]:
    """The pictures of samples in the newest report of each evaluator."""
    newest = {report.name: report for report in story.reports}
    return [
        (
            f"{report.name}, {picture.stem.removeprefix(f'{report.path.stem}_')}, at step {report.step:,}",
            f"data:image/png;base64,{_encoded(picture)}",
        )
        for report in newest.values()
        for picture in report.pictures
    ]


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _comparison(stories: list[Story]) -> Page:
    """The page of several runs."""
    names = _distinct(stories)
    groups = _configurations(names, stories)
    single = [(name, [story]) for name, story in zip(names, stories, strict=True)]  # their hours differ
    keys = dict.fromkeys(itertools.chain(*(story.settings for story in stories)))
    differing = [
        key for key in keys
        if key not in ("description", "tracker.data_path")
        and any(story.settings.get(key) != stories[0].settings.get(key) for story in stories)
    ]  # fmt: skip
    sections = [
        ("Over samples", _overlays(groups, "samples_seen", "samples seen")),
        ("Over time, without evaluations", _overlays(single, "hours", "hours of training")),
    ]
    rows = [
        (name, story.state, f"{_seen(story):,}", *_scores(story)) for name, story in zip(names, stories, strict=True)
    ]
    differences = [(key, *(_short(story.settings.get(key)) for story in stories)) for key in differing]
    return Page(
        title=f"{len(stories)} runs",
        summaries=[
            ("Runs", ("run", "state", "samples", "score", "solved"), rows),
            ("Configurations, over seeds of training", ("configuration", "seeds", "metric", "mean"), _folded(groups)),
            ("Paired by seed", ("run", "against", "seeds", "difference of scores"), _paired(names, stories)),
        ],
        sections=[section for section in sections if section[1]],
        tables=[("Settings that differ", ("setting", *names), differences)],
        gaps=[f"{name}: {gap}" for name, story in zip(names, stories, strict=True) for gap in story.gaps],
    )


def _overlays(groups: list[tuple[str, list[Story]]], x: str, label: str) -> list[tuple[str, str]]:
    """A chart for the losses and scores that were measured during training, with a line for each group of runs."""
    charts = []
    runs = [(name, [_timed(story) for story in group]) for name, group in groups]
    for metric in dict.fromkeys(itertools.chain(*(row for _, group in runs for rows in group for row in rows))):
        if metric == "train/loss" or metric.endswith(("ema/loss", "/score")):
            lines = [(name, *_mean_line([_points(rows, x, metric) for rows in group])) for name, group in runs]
            if any(len(line[1]) > 1 for line in lines):
                title = f"{metric}, over {label}"
                is_log = metric.endswith("loss") and all((y > 0).all() for _, _, y in lines)
                charts.append((title, svg(overlay(lines, metric, label, log=is_log), title)))
    return charts


def _mean_line(points: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """The points of one run; of several the mean and its interval where all of them were measured."""
    if len(points) == 1:
        return points[0]
    common = functools.reduce(np.intersect1d, [x for x, _ in points])
    values = np.array([y[np.searchsorted(x, common)] for x, y in points])
    ends = np.array([mean_interval(column) for column in values.T]).reshape(-1, 2).T
    return common, np.stack([values.mean(0), *ends])


def _learning(story: Story, x: str, label: str) -> list[tuple[str, str]]:
    """The learning curves."""
    figures = learning_curves(_timed(story), x, label)
    titles = [f"{figure.axes[0].get_title(loc='left')}, over {label}" for figure in figures]
    return [(title, svg(figure, title)) for title, figure in zip(titles, figures, strict=True)]


def _timed(story: Story) -> list[dict[str, Any]]:
    """The rows with the hours of training until each, from the speeds that were logged; evaluations are left out."""
    rows, seen, seconds = [], 0, 0.0
    for row in story.rows:
        rate = row.get("train/samples_per_second")
        if rate:
            seconds += (row["samples_seen"] - seen) / rate
            seen = row["samples_seen"]
        rows.append({**row, "hours": seconds / 3600})
    return rows


def _points(rows: list[dict[str, Any]], x: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    found = [(row[x], row[metric]) for row in rows if row.get(metric) is not None]
    return tuple(np.array(found, dtype=float).reshape(-1, 2).T)


def _episodes(story: Story) -> list[tuple[str, str]]:
    """Scores from the worst episode to the best, of the rollout that counts."""
    report = story.tested
    if report is None:
        return []
    figure = import_figure()(figsize=(9, 2.6), layout="constrained")
    draw_scores(figure.subplots(), [_numbered(row) for row in report.episodes])
    title = f"{report.name} at step {report.step:,}, scores of {len(report.episodes)} episodes"
    return [(title, svg(figure, title))]


def _chunks(story: Story) -> list[tuple[str, str]]:
    """Sampled chunks at some held-out moments beside the recorded ones, at most `MOST_POINTS` in all."""
    stride = -(-sum(chunks.size for chunks in story.chunks.values()) // MOST_POINTS)
    n_obs_steps, n_action_steps = (story.settings.get(f"task.{key}") for key in ("n_obs_steps", "n_action_steps"))
    executed = None
    if isinstance(n_obs_steps, int) and isinstance(n_action_steps, int):
        executed = n_obs_steps - 1, n_obs_steps + n_action_steps - 2
    charts = []
    for name, moments in story.chunks.items():
        for number, chunks in enumerate(moments, 1):
            label = f"{name}, moment {number} of {len(moments)}"
            charts.append((label, svg(sampled(chunks, label, stride, executed), label)))
    return charts


def _numbered(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has null for a score that is not finite."""
    return {**row, "score": math.nan if row["score"] is None else row["score"]}


def _tables(story: Story) -> list[tuple[str, str]]:
    """The tables of the newest report of each evaluator, such as the action error at each index of the chunk."""
    newest = {report.name: report for report in story.reports if not report.episodes}
    charts = []
    for report in newest.values():
        for name, rows in report.tables.items():
            for metric in [key for key in (rows[0] if rows else {}) if key not in _place(rows)]:
                values = [row.get(metric) for row in rows]
                is_number = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
                if len(rows) > 1 and metric != "n" and is_number:
                    title = f"{name}: {metric}"
                    labels = [" ".join(str(row[key]) for key in _place(rows)) for row in rows]
                    charts.append((title, svg(bars(values, labels, metric, " ".join(_place(rows))), title)))
    return charts


def _place(rows: list[dict[str, Any]]) -> list[str]:
    """The columns that say which row it is: the first one, and texts."""
    first = next(iter(rows[0]))
    return [key for key in rows[0] if key == first or isinstance(rows[0][key], str)]


def _speed(story: Story) -> list[tuple[str, str]]:
    charts = []
    for metric, label in (("train/samples_per_second", "samples/s"), ("train/data_share", "waiting for data, share")):
        x, y = _points(story.rows, "samples_seen", metric)
        if len(x):
            charts.append((label, svg(overlay([(label, x, y)], label, "samples seen", log=False), label)))
    return charts


def _headlines(story: Story) -> list[tuple[str, str, str]]:
    """(name, value, interval) of the scores that count."""
    source = story.test or next((row for row in reversed(story.rows) if any(k.endswith("/score") for k in row)), {})
    found = []
    for name, value in source.items():
        group, _, kind = name.rpartition("/")
        if kind in _NAMES and isinstance(value, (int, float)):
            bound = f"{group}/{'success' if kind == 'success_rate' else kind}"
            low, high = source.get(f"{bound}_ci_low"), source.get(f"{bound}_ci_high")
            shown = (lambda v: f"{v:.0%}") if kind == "success_rate" else (lambda v: f"{v:.3f}")
            interval = "" if low is None or high is None else f"{shown(low)} to {shown(high)}"
            found.append((f"{group}: {_NAMES[kind]}", shown(value), interval))
    return found


def _scores(story: Story) -> tuple[str, str]:
    found = {name.rpartition(": ")[2]: f"{value} ({interval})" for name, value, interval in reversed(_headlines(story))}
    return found.get("score", ""), found.get("solved", "")


def _scored(report: Report) -> str:
    rows = report.episodes
    solved = sum(row["success"] is True for row in rows)
    return f"{len(rows)} episodes, {solved} solved; the first are filmed"


def _paired(names: list[str], stories: list[Story]) -> list[tuple[str, str, str, str]]:
    """Each run against the first, by the seeds that both measured."""
    first = _by_seed(stories[0])
    rows = []
    for name, story in zip(names[1:], stories[1:], strict=True):
        other = _by_seed(story)
        common = sorted(first.keys() & other.keys())
        if len(common) > 1:
            difference = np.array([other[seed] - first[seed] for seed in common])
            low, high = mean_interval(difference)
            text = f"{difference.mean():+.3f} ({low:+.3f} to {high:+.3f})"
            rows.append((name, names[0], str(len(common)), text))
    return rows


def _by_seed(story: Story) -> dict[int, float]:
    report = story.tested
    return {} if report is None else {row["seed"]: row["score"] for row in report.episodes if row["score"] is not None}


def _configurations(names: list[str], stories: list[Story]) -> list[tuple[str, list[Story]]]:
    """Runs that differ in `seed` alone, by the settings that tell their configuration from the others."""
    groups: dict[str, list[tuple[str, Story]]] = {}
    kept: dict[str, dict[str, Any]] = {}
    for name, story in zip(names, stories, strict=True):
        own = {key: value for key, value in story.settings.items() if key not in ("seed", "description")}
        own = {key: value for key, value in own.items() if not key.startswith("tracker.")}
        digest = json.dumps(own, sort_keys=True) if own else name
        groups.setdefault(digest, []).append((name, story))
        kept[digest] = own
    if len(groups) == len(stories):
        return [(name, [story]) for [(name, story)] in groups.values()]
    keys = dict.fromkeys(itertools.chain(*kept.values()))
    differing = [key for key in keys if len({json.dumps(own.get(key)) for own in kept.values()}) > 1]
    found = []
    for digest, group in groups.items():
        told = ", ".join(f"{key}={_short(kept[digest].get(key))}" for key in differing)
        found.append((told or ", ".join(name for name, _ in group), [story for _, story in group]))
    return found


def _folded(groups: list[tuple[str, list[Story]]]) -> list[tuple[str, str, str, str]]:
    """The mean result of each configuration, with its interval over training seeds; nothing if none has several."""
    rows = []
    for label, group in groups:
        values = [found for story in group if (found := _value(story)) is not None]
        numbers = np.array([value for _, value in values])
        if len(values):
            low, high = mean_interval(numbers) if len(numbers) > 1 else (math.nan, math.nan)
            interval = f" ({low:.4g} to {high:.4g})" if len(numbers) > 1 else ""
            rows.append((label, str(len(numbers)), values[0][0], f"{numbers.mean():.4g}{interval}"))
    return rows if any(len(group) > 1 for _, group in groups) else []


def _value(story: Story) -> tuple[str, float] | None:
    """The mean score of its episodes, or else the metric by which its best weights were chosen."""
    if scores := _by_seed(story):
        return "score", float(np.mean(list(scores.values())))
    metric, best = story.settings.get("train.monitor.metric"), story.result.get("best")
    found = best.get("metrics") if isinstance(best, dict) else None
    value = found.get(metric) if isinstance(found, dict) else None
    return (str(metric), float(value)) if isinstance(value, (int, float)) else None


def _distinct(stories: list[Story]) -> list[str]:
    """Names of the runs, with their directories where two have the same."""
    names = [story.name for story in stories]
    return [
        name if names.count(name) == 1 else str(story.directory) for name, story in zip(names, stories, strict=True)
    ]


def _listed(settings: dict[str, Any]) -> list[tuple[str, str]]:
    return [(key, _short(value)) for key, value in settings.items() if key != "description"]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


def _seen(story: Story) -> int:
    return story.rows[-1].get("samples_seen", 0) if story.rows else 0


def _duration(story: Story) -> str | None:
    try:
        begun, ended = (datetime.datetime.fromisoformat(story.ending[key]) for key in ("started", "ended"))
    except (KeyError, TypeError, ValueError):
        return None
    return str(ended - begun)


def _commands(story: Story) -> list[str]:
    task = story.settings.get("task.type")
    kind = task if task in ("prior", "image") else "policy"
    run = story.directory
    return [f"dp-prior evaluate {run}", f"from dp_prior import load_{kind}\n{kind} = load_{kind}({str(run)!r})"]


def _relative(path: Path, output: Path) -> str:
    try:
        return path.resolve().relative_to(output.resolve().parent).as_posix()
    except ValueError:
        return path.resolve().as_uri()
