"""`dp-prior inspect`: the findings about data sets, as a page and as lines on the console."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.formats.choice import ranges
from dp_prior.files.json_text import readable_json
from dp_prior.tensors.normalizer import NormalizerConfig, Statistics
from dp_prior_studio.inspection.cameras import Strip
from dp_prior_studio.inspection.data_urls import film_address
from dp_prior_studio.inspection.embeddings import FolderRows
from dp_prior_studio.inspection.finding import SEVERITIES
from dp_prior_studio.inspection.image_survey import Gallery
from dp_prior_studio.inspection.inspection import Inspection
from dp_prior_studio.inspection.proposal import USUAL_RATE
from dp_prior_studio.inspection.survey import Signal, Survey
from dp_prior_studio.pages.charts import curve, spark
from dp_prior_studio.pages.page import Markup, Page, Table

BINS = 32

MOST_EPISODES, MOST_CURVES, MOST_STEPS = 6, 32, 100
"""Episodes whose numbers are drawn over time, numbers of each key, and points of each curve."""
_RANGES = ("least", "1 %", "mean", "99 %", "most", "deviation")


def write_inspection(inspections: Sequence[Inspection], output: Path, title: str) -> Path:
    """Write the page of one data set, or of all data sets of a configuration.

    Raises:
        OSError: the page cannot be written.
    """
    first, *rest = [_page(inspection, _prefix(inspection, inspections)) for inspection in inspections]
    page = functools.reduce(Page.joined, rest, first)
    return replace(page, title=title, state=_verdict(inspections)).write(output)


def _prefix(inspection: Inspection, inspections: Sequence[Inspection]) -> str:
    """The name of a data set before its lines, if there are several; empty for the only one."""
    return f"{inspection.name}: " if len(inspections) > 1 else ""


def summary(inspections: Sequence[Inspection]) -> list[str]:
    """Lines for the console: facts, then the findings, the most severe first."""
    lines = []
    for inspection in inspections:
        if len(inspections) > 1:
            lines.append(inspection.name)
        lines += [f"{name:<12} {text}" for name, text in _lines(inspection)]
    return [*lines, _verdict(inspections)]


def _lines(inspection: Inspection) -> Iterator[tuple[str, Any]]:
    """The lines of a data set on the console, each with the word in front."""
    surveyed = inspection.survey
    yield from _facts(inspection).items()
    for signal in surveyed.of("observation", "action") if surveyed is not None else ():
        yield signal.role, f"{signal.name}, {signal.values.shape[1]} numbers"
    yield from (("depth", distances) for distances in inspection.depths)
    yield from (("points", cloud) for cloud in inspection.clouds)
    depth_keys = {distances.key for distances in inspection.depths}
    cameras = {strip.camera: strip for strip in inspection.strips if strip.camera not in depth_keys}
    for camera, strip in cameras.items():
        height, width = strip.size
        yield "camera", f"{camera}, {height} x {width} (height x width){_region(strip)}"
    unused = surveyed.unused if surveyed is not None else {}
    yield from (("not used", f"{key}: {meaning}") for key, meaning in unused.items())
    yield from ((finding.severity, finding) for finding in inspection.findings)
    yield from _left_out(inspection).items()
    yield from (("not shown", gap) for gap in inspection.gaps)


def _region(strip: Strip) -> str:
    """The region that a policy sees, which is framed in the pictures, and its turn; empty for whole upright frames."""
    return f"; the policy {strip.seen}" if strip.seen else ""


def _left_out(inspection: Inspection) -> dict[str, str]:
    """The line of a configuration that leaves out the episodes with faults; empty for a data set without faults."""
    if not inspection.leave_out:
        return {}
    line = f'"choice": {json.dumps({"leave_out": ranges(inspection.leave_out)})} in data'
    count = f"{len(inspection.leave_out)} of {inspection.survey.count} episodes"
    return {"leave out": f"{line}: {count}, with the faults found"}


def _verdict(inspections: Sequence[Inspection]) -> str:
    """The numbers of findings and gaps of all data sets, in one line."""
    findings = itertools.chain.from_iterable(inspection.findings for inspection in inspections)
    counts = Counter(finding.severity for finding in findings)
    numbers = [f"{counts[word]} {word}{'s' * (counts[word] > 1)}" for word in SEVERITIES if counts[word]]
    gaps = sum(len(inspection.gaps) for inspection in inspections)
    if gaps:
        return ", ".join([*(numbers or ["no findings in the rest"]), f"{gaps} not shown"])
    return ", ".join(numbers) or "no findings"


def _page(inspection: Inspection, prefix: str) -> Page:
    """The page of one data set; `prefix` names the data set if there are several."""
    surveyed = inspection.survey
    clips, missing = _clips(inspection, prefix)
    missing += [] if surveyed is None else _undrawn(surveyed)
    summaries = [_findings(inspection, prefix)]
    if surveyed is not None:
        summaries += [_lengths(surveyed, prefix), _instructions(surveyed, prefix), _unused(surveyed, prefix)]
    signals = surveyed.signals if surveyed is not None else []
    unread_signals = [signal for signal in signals if signal.role == "other"]
    tables = [_key(inspection, signal, prefix) for signal in signals if signal.role != "other"]
    if inspection.rows:
        tables.append(_rows(inspection.rows, prefix))
    for gallery in inspection.galleries:
        tables += [_classes(gallery, prefix), _pixels(gallery, prefix)]
    facts = _facts(inspection) | _left_out(inspection)
    return Page(
        title=inspection.name,
        facts={f"{prefix}{name}": value for name, value in facts.items()},
        summaries=summaries,
        films=clips,
        strips=list(_strips(inspection, prefix)),
        tables=tables,
        details=[_key(inspection, signal, prefix) for signal in unread_signals],
        commands=[f'"data": {readable_json(inspection.data, indent=2)}'],
        gaps=[f"{prefix}{gap}" for gap in (*inspection.gaps, *missing)],
        opened=["Findings"],
        episodes=[] if surveyed is None else list(_over_time(surveyed, prefix)),
    )


def _over_time(surveyed: Survey, prefix: str) -> Iterator[tuple[str, list[tuple[str, Markup]]]]:
    """The numbers of observations and action over the steps of some evenly spread episodes, by name."""
    signals = surveyed.of("observation", "action")
    if not signals:
        return
    spans = list(surveyed.spans)
    chosen = np.unique(np.linspace(0, len(spans) - 1, min(MOST_EPISODES, len(spans))).round().astype(int))
    for number, begin, end in (spans[place] for place in chosen):
        rows = np.unique(np.linspace(begin, end - 1, min(MOST_STEPS, end - begin)).round().astype(int))
        curves = []
        for signal in signals:
            for dimension, column in enumerate(signal.values[rows].T[:MOST_CURVES]):
                finite = column[np.isfinite(column)]
                ends = f", {finite.min():.4g} to {finite.max():.4g}" if len(finite) else ""
                curves.append((f"{signal.name}, {signal.called(dimension)}{ends}", curve(column)))
        yield f"{prefix}episode {number}, {end - begin:,} steps", curves


def _undrawn(surveyed: Survey) -> list[str]:
    """A line for each key whose last numbers are not drawn over time."""
    widths = {signal.name: signal.values.shape[1] for signal in surveyed.of("observation", "action")}
    wide = {name: width for name, width in widths.items() if width > MOST_CURVES}
    return [f"{name}: numbers over time of dimensions {MOST_CURVES} to {width - 1}" for name, width in wide.items()]


def _findings(inspection: Inspection, prefix: str) -> Table:
    rows = []
    for finding in inspection.findings:
        place = _blank(finding.episode), _blank(finding.frame)
        rows.append((finding.severity, f"{prefix}{finding.text}", *place))
    return "Findings", ("severity", "what", "episode", "frame"), rows


def _strips(inspection: Inspection, prefix: str) -> Iterator[tuple[str, str]]:
    """The strips of frames and of pictures, each with its title."""
    for strip in inspection.strips:
        title = f"{strip.camera}, episode {strip.episode}, frames {strip.frames}{_region(strip)}"
        yield f"{prefix}{title}", strip.picture
    for gallery in inspection.galleries:
        for title, picture in gallery.strips():
            yield f"{prefix}{title}", picture


def _facts(inspection: Inspection) -> dict[str, str]:
    """Size, rate and place of a data set, by name."""
    if inspection.galleries:
        return {gallery.name: _images(gallery) for gallery in inspection.galleries}
    if inspection.survey is not None:
        return _survey_facts(inspection.survey)
    facts = {}
    for rows in inspection.rows:
        facts[rows.name] = f"{rows.folder.count:,} rows of {rows.folder.shape}, {rows.folder.path}"
    return facts


def _survey_facts(surveyed: Survey) -> dict[str, str]:
    lengths, fps = surveyed.lengths, surveyed.fps
    steps, n_recorded = int(lengths.sum()), len(surveyed.chosen.recorded)
    facts = {
        "format": str(surveyed.described.get("format")),
        "place": str(surveyed.described.get("path")),
        "episodes": f"{len(lengths):,}",
        "steps": f"{steps:,}",
        "length": f"{lengths.min():,} to {lengths.max():,} steps, median {np.median(lengths):,.0f}",
    }
    n_left_out = n_recorded - surveyed.count
    if n_left_out:
        facts["left out"] = f"{n_left_out:,} of {n_recorded:,} episodes, by data.choice or data.split.max_rows"
    if fps is not None:
        facts["rate"] = f"{fps:g} steps per second"
        facts["duration"] = str(timedelta(seconds=round(steps / fps)))
    else:
        source = "for example" if surveyed.period is None else "by the timestamps"
        rate = f"{1 / (surveyed.period or 0.02):.3g}"
        stating = f"a copy by `dp-prior convert --fps {rate}` states it, and a set of a mixture by"
        facts["rate"] = f'not stated; {stating} "fps": {rate} ({source})'
    if len(surveyed.episodes) < len(lengths):
        n_read = int(lengths[surveyed.episodes].sum())
        share = f"{n_read:,} steps ({n_read / steps:.1%})"
        facts["looked at"] = f"{len(surveyed.episodes):,} evenly spread episodes, {share}"
    return facts


def _clips(inspection: Inspection, prefix: str) -> tuple[list[dict[str, Any]], list[str]]:
    """A clip of each camera at the speed of the recording, and the reason if clips cannot be made."""
    films = []
    for strip in inspection.strips:
        if len(strip.clip):
            try:
                source = film_address(strip.clip, (inspection.survey.fps or USUAL_RATE) / strip.stride)
            except ImportError:
                return [], ['clips need PyAV: pip install "dp_prior[video]"']
            films.append({"text": f"{prefix}{strip.camera}, episode {strip.episode}", "source": source})
    return films, []


def _lengths(surveyed: Survey, prefix: str) -> Table:
    quantiles = np.quantile(surveyed.lengths, [0, 0.1, 0.5, 0.9, 1])
    row = (*(f"{value:,.0f}" for value in quantiles), spark(_histogram(surveyed.lengths)))
    return f"{prefix}Lengths of episodes, in steps", ("least", "10 %", "median", "90 %", "most", "histogram"), [row]


def _instructions(surveyed: Survey, prefix: str) -> Table:
    return f"{prefix}Instructions", ("episodes", "text"), [(count, text) for text, count in surveyed.texts.items()]


def _unused(surveyed: Survey, prefix: str) -> Table:
    return f"{prefix}Not used", ("key", "what"), list(surveyed.unused.items())


def _key(inspection: Inspection, signal: Signal, prefix: str) -> Table:
    """A row for each dimension: range, histogram, and the normalised 1 % and 99 % quantiles."""
    statistics, mode = signal.statistics(), inspection.normalizers.get(signal.name)
    normalized = None if mode is None else _normalized(mode, statistics)
    quantities = (statistics.min, statistics.q01, statistics.mean, statistics.q99, statistics.max, statistics.std)
    rows = []
    for dimension, column in enumerate(signal.values.T):
        name = signal.columns[dimension] if signal.columns else ""
        cells = [f"{quantity[dimension]:.4g}" for quantity in quantities]
        cells.append(spark(_histogram(column[np.isfinite(column)])))
        if normalized is not None:
            cells.append(normalized[dimension])
        rows.append((dimension, name, *cells))
    last = () if mode is None else (f"98 % by {mode.type}",)
    role = "" if signal.role == "other" else f"{signal.role}: "
    called = signal.name if signal.key == signal.name else f"{signal.name} ({signal.key})"
    return f"{prefix}{role}{called}", ("dimension", "name", *_RANGES, "histogram", *last), rows


def _histogram(values: np.ndarray) -> np.ndarray:
    """(BINS,) counts. Shifted to 0, in float64, so that bins have a width even if all values are adjacent floats."""
    values = values.astype(np.float64)
    return np.histogram(values - values.min(initial=np.inf), BINS)[0]


def _normalized(mode: NormalizerConfig, statistics: Statistics) -> list[str]:
    """The normalised 1 % and 99 % quantiles of each dimension."""
    scale, offset = mode.fit(statistics)
    ends = [(value - offset) * scale for value in (statistics.q01, statistics.q99)]
    return ["always 0" if low == high == 0 else f"{low:.3g} to {high:.3g}" for low, high in zip(*ends, strict=True)]


def _rows(folders: Sequence[FolderRows], prefix: str) -> Table:
    """Lengths of embeddings, by folder."""
    rows = []
    for folder_rows in folders:
        lengths = folder_rows.lengths[np.isfinite(folder_rows.lengths)]
        quantiles = np.quantile(lengths, [0, 0.01, 0.5, 0.99, 1]) if len(lengths) else np.zeros(5)
        cells = [f"{value:.4g}" for value in quantiles]
        rows.append((folder_rows.name, f"{len(lengths):,}", *cells, spark(_histogram(lengths))))
    columns = ("folder", "rows read", "shortest", "1 %", "median", "99 %", "longest", "histogram")
    return f"{prefix}Lengths of embeddings", columns, rows


def _images(gallery: Gallery) -> str:
    """One line about a source of images."""
    sizes = [f"{height} x {width}" for height, width in np.unique(gallery.sizes, axis=0).tolist()]
    size = f"{len(sizes)} sizes, {sizes[0]} to {sizes[-1]}" if len(sizes) > 1 else "".join(sizes)
    counts = gallery.counts()
    classes = f", {len(counts):,} classes" if counts else ""
    part = f"; {len(gallery.numbers):,} looked at, evenly spread" if len(gallery.numbers) < gallery.used else ""
    where = f"{gallery.source.describe()['format']}, {gallery.source.root}"
    return f"{gallery.used:,} images of {size}{classes}{part}; {where}"


def _classes(gallery: Gallery, prefix: str) -> Table:
    rows = [(name, f"{count:,}", f"{count / gallery.used:.1%}") for name, count in gallery.counts().items()]
    return f"{prefix}{gallery.name}, classes", ("class", "images", "share"), rows


def _pixels(gallery: Gallery, prefix: str) -> Table:
    """Brightness of each colour, 0 to 255."""
    rows, values = [], np.arange(256)
    for color, counts in zip(("red", "green", "blue"), gallery.histogram, strict=True):
        total = counts.sum()
        if not total:
            continue
        levels, mean = np.flatnonzero(counts), (counts @ values) / total
        deviation = np.sqrt(counts @ (values - mean) ** 2 / total)
        histogram = spark(counts.reshape(BINS, -1).sum(1))
        rows.append((color, levels[0], f"{mean:.1f}", levels[-1], f"{deviation:.1f}", histogram))
    columns = ("colour", "least", "mean", "most", "deviation", "histogram")
    return f"{prefix}{gallery.name}, brightness of 255", columns, rows


def _blank(number: int | None) -> Any:
    return "" if number is None else number
