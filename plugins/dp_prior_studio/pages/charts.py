"""Charts as SVG inside a page: matplotlib draws, the page's style sheet colours text and axes.

matplotlib is a dependency already, for the pictures of a run; an SVG needs no script and can be printed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.evaluation.curve import COLOURS, dress, logarithmic, marked, styles
from dp_prior.evaluation.picture import (
    BESIDE_BAR,
    IN_LEGEND,
    INK,
    LINE,
    count_lines,
    import_figure,
    in_lines,
    take_literally,
)
from dp_prior_studio.pages.page import Markup

if TYPE_CHECKING:
    from dp_prior.evaluation.open_loop import OpenLoop

LONGEST_UPRIGHT, MOST_LYING = 5, 60
"""Characters of labels below upright bars, and most bars that lie."""

LONGEST_BESIDE = 12
"""Most characters of a dimension's name beside its panel; a longer name is a title above."""

LONGEST_TITLE = 72
"""Characters of a line of a title above a chart of bars."""

WIDEST = 6.0
"""Inches of a figure that shares a row of the page with others; a wider one has a row of its own."""

_GRID = "#e4e7ec"


def svg(figure: Any, title: str) -> str:
    """A figure as an SVG element as wide as its place on the page; `title` is the alternative text."""
    import matplotlib

    take_literally(figure)
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "text.parse_math": False}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    text = file.getvalue()
    role = 'role="img" class="wide"' if figure.get_figwidth() > WIDEST else 'role="img"'
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', rf"\1 {role}", text[text.index("<svg") :], count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    return re.sub("<[^>]*>", partial(_for_page, prefix=re.sub(r"\W+", "_", title)), text)


def _for_page(tag: re.Match[str], prefix: str) -> str:
    """A tag of an SVG with ids that are unique on the whole page and the colours of the style sheet."""
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}_", tag[0])
    for colour, name in ((INK, "ink"), ("#000000", "ink"), (_GRID, "line"), (COLOURS[0], "blue")):
        text = text.replace(colour, f"var(--{name})")
    return text


def bars(values: Sequence[float], labels: Sequence[str], title: str, ylabel: str, xlabel: str) -> Any:
    """A bar for each value; the bars lie, each with its label beside it, where labels are words."""
    lies = max(map(len, labels), default=0) > LONGEST_UPRIGHT and len(labels) <= MOST_LYING
    labels = [in_lines(label, BESIDE_BAR) for label in labels] if lies else labels
    high = max((count_lines([label]) for label in labels), default=1) * LINE
    figure = import_figure()(figsize=(5, max(3, 0.9 + high * len(labels)) if lies else 3), layout="constrained")
    axes = figure.subplots()
    (axes.barh if lies else axes.bar)(range(len(values)), values, 0.8, color=COLOURS[0])
    dress(axes, ylabel if lies else xlabel)
    stride = 1 if lies else max(1, len(labels) // 12)
    (axes.set_yticks if lies else axes.set_xticks)(range(0, len(labels), stride), labels[::stride])
    if lies:
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
    axes.set_ylabel(xlabel if lies else ylabel, fontsize=9, color=INK)
    axes.set_title(in_lines(title, LONGEST_TITLE), fontsize=8, loc="left", color=INK)
    return figure


Line = tuple[str, np.ndarray, np.ndarray]
"""Label, (n,) x, and y: (n,) values, or (3, n) values, lower and upper ends of intervals."""


def overlay(lines: Iterable[Line], ylabel: str, xlabel: str, *, log: bool) -> Any:
    """Lines of several runs in one chart, in the order of the page's colours and dashes; their names stand below."""
    lines = list(lines)
    names = [in_lines(name, IN_LEGEND) for name, _, _ in lines]
    figure = import_figure()(figsize=(5, 3.4 + LINE * count_lines(names)), layout="constrained")
    axes = figure.subplots()
    for (label, x, y), style in zip(lines, styles(), strict=False):
        if y.ndim == 2:
            y, *band = y
            axes.fill_between(x, *band, color=style["color"], alpha=0.16, linewidth=0)
        axes.plot(x, y, **marked(style, x), label=label)
    if log:
        logarithmic(axes)
    dress(axes, xlabel)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    drawn = axes.get_lines()  # given explicitly, since matplotlib skips labels that begin with an underscore
    figure.legend(drawn, names, loc="outside lower left", frameon=False, fontsize=8, labelcolor=INK)
    return figure


def sampled(
    chunks: np.ndarray, label: str, stride: int, executed: tuple[int, int] | None, names: Sequence[str] = ()
) -> Any:
    """A recorded chunk drawn over sampled chunks: each dimension by index in the chunk, and the path of 2-D actions.

    Args:
        chunks: (1 + draws, horizon, D), the recorded chunk first; NaN is padding.
        stride: only every n-th action is drawn.
        executed: first and last index of the executed actions, which are shaded; None if unknown.
        names: of the D dimensions; the dimensions are numbered if they are not named.
    """
    _, horizon, dimensions = chunks.shape
    names = names if len(names) >= dimensions else [f"dimension {number}" for number in range(dimensions)]
    steps = np.arange(0, horizon, stride)
    chunks = np.where(np.isfinite(chunks), chunks, np.nan)[:, steps]
    across, is_plane = 1 + (dimensions > 3) + 2 * (dimensions > 6), dimensions == 2
    down = -(-dimensions // across)
    width, height = (11, 1.5) if across > 2 else (5, 1.0)
    figure = import_figure()(figsize=(width, max(2.2, height * down) + 0.7), layout="constrained")
    grid = figure.add_gridspec(down, across + is_plane)
    panels = []
    for number in range(dimensions):
        axes = figure.add_subplot(grid[number // across, number % across])
        panels.append((axes, np.broadcast_to(steps, chunks.shape[:2]), chunks[..., number], names[number]))
        dress(axes, "index in the chunk" if number + across >= dimensions else "")
        if executed is not None:
            axes.axvspan(executed[0] - 0.5, executed[1] + 0.5, color=_GRID, linewidth=0)
    if is_plane:
        axes = figure.add_subplot(grid[:, across])
        panels.append((axes, chunks[..., 0], chunks[..., 1], names[1]))
        dress(axes, names[0])
        axes.set_aspect("equal", adjustable="datalim")
    for axes, x, y, name in panels:
        dots = {"marker": "o", "markersize": 2} if len(steps) == 1 else {}
        drawn = axes.plot(x[1:].T, y[1:].T, color=COLOURS[0], linewidth=0.8, alpha=0.5, **dots)
        recorded = axes.plot(x[0], y[0], color=COLOURS[1], linewidth=1.8, marker="o", markersize=2)
        if len(name) <= LONGEST_BESIDE:
            axes.set_ylabel(name, fontsize=8, color=INK)
        else:
            axes.set_title(name, fontsize=8, loc="left", color=INK)
        axes.tick_params(labelsize=7)
    style = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 8, "labelcolor": INK}
    figure.legend([recorded[0], drawn[0]], ["recorded", f"{len(drawn)} sampled"], **style)
    figure.suptitle(label, x=0.01, ha="left", fontsize=8, color=INK)
    return figure


def open_loop(curves: OpenLoop) -> Any:
    """Recorded actions of an episode under those that a policy predicts from the recorded observations."""
    length, dimensions = curves.recorded.shape
    across = 1 + (dimensions > 3) + 2 * (dimensions > 6)
    down = -(-dimensions // across)
    figure = import_figure()(figsize=(11, max(2.2, 1.3 * down) + 0.7), layout="constrained")
    for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        if number >= dimensions:
            axes.set_visible(False)
            continue
        dots = {"marker": "o", "markersize": 2} if length == 1 else {}
        recorded, *_ = axes.plot(curves.recorded[:, number], color=COLOURS[1], linewidth=2.4, alpha=0.6, **dots)
        predicted, *_ = axes.plot(curves.predicted[:, number], color=COLOURS[0], linewidth=1.0, **dots)
        dress(axes, "step" if number + across >= dimensions else "")
        axes.set_title(curves.names[number], fontsize=8, loc="left", color=INK)
        axes.tick_params(labelsize=7)
    style = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 8, "labelcolor": INK}
    figure.legend([recorded, predicted], ["recorded", "predicted"], **style)
    return figure


def followed(
    seconds: np.ndarray, commanded: np.ndarray, observed: np.ndarray | None, is_beyond: np.ndarray, is_late: np.ndarray,
    name: str,
) -> Any:  # fmt: skip
    """One number of an action over an episode, (n,) each: what was commanded and observed, with dots where a limit was
    exceeded; shaded where no new action came. `observed` is None where no position is known."""
    figure = import_figure()(figsize=(5, 2.4), layout="constrained")
    axes = figure.subplots()
    dress(axes, "seconds")
    axes.plot(seconds, commanded, color=COLOURS[0], linewidth=1.2, label="commanded")
    if observed is not None:
        axes.plot(seconds, observed, color=COLOURS[1], linewidth=1.2, label="observed")
    axes.plot(seconds[is_beyond], commanded[is_beyond], ".", color=COLOURS[3], markersize=5, label="beyond a limit")
    axes.fill_between(seconds, 0, 1, where=is_late, transform=axes.get_xaxis_transform(), color=_GRID, linewidth=0)
    axes.legend(loc="best", frameon=False, fontsize=7, labelcolor=INK)
    axes.set_title(name, fontsize=8, loc="left", color=INK)
    return figure


def spark(counts: np.ndarray) -> Markup:
    """A histogram that fits a cell of a table, without axes."""
    heights = np.round(20 * counts / max(1, counts.max())).astype(int)
    bars = "".join(f"M{4 * place} 20v-{height}h3v{height}z" for place, height in enumerate(heights) if height)
    return Markup(
        f'<svg class="spark" viewBox="0 0 {4 * len(counts)} 20" preserveAspectRatio="none"><path d="{bars}"/></svg>'
    )


def curve(values: np.ndarray) -> Markup:
    """A line through (n,) numbers over time, without axes; NaN interrupts the line."""
    is_finite = np.isfinite(values)
    low, high = (values[is_finite].min(), values[is_finite].max()) if is_finite.any() else (0, 0)
    heights = np.where(is_finite, 38 - 36 * (values.astype(np.float64) - low) / (high - low or 1), np.nan)
    width = 200 / max(1, len(values) - 1)
    path, begins = [], True
    for place, height in enumerate(heights.tolist()):
        if height != height:
            begins = True
            continue
        path.append(f"{'M' if begins else 'L'}{place * width:.4g} {height:.3g}")
        begins = False
    return Markup(
        f'<svg class="curve" viewBox="0 0 200 40" preserveAspectRatio="none">'
        f'<path vector-effect="non-scaling-stroke" d="{"".join(path)}"/></svg>'
    )
