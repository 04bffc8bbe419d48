"""Charts as SVG inside a page: matplotlib draws, the page's style sheet gives text and axes their colour.

matplotlib, since it is installed for the pictures of a run already; an SVG needs no script and prints.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dp_prior.evaluation.curve import COLOURS, dress
from dp_prior.evaluation.picture import INK, import_figure
from dp_prior.pages.page import Markup

_GRID = "#e4e7ec"


def svg(figure: Any, title: str) -> str:
    """A figure as an SVG element that fits its place on the page; `title` is its alternative text."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Title": title})
    text = file.getvalue()
    text = re.sub(r'(<svg [^>]*?) width="[^"]*"', r'\1 role="img"', text[text.index("<svg") :], count=1)
    text = re.sub(r'(<svg [^>]*?) height="[^"]*"', r"\1", text, count=1)
    prefix = re.sub(r"\W+", "_", title)
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}_", text)  # ids are those of the whole page
    for colour, name in ((INK, "ink"), (_GRID, "line"), (COLOURS[0], "blue")):
        text = text.replace(colour, f"var(--{name})")
    return text


def bars(values: Sequence[float], labels: Sequence[str], ylabel: str, xlabel: str) -> Any:
    """A bar for each value."""
    figure = import_figure()(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    axes.bar(range(len(values)), values, color=COLOURS[0], width=0.8)
    stride = max(1, len(labels) // 12)
    axes.set_xticks(range(0, len(labels), stride), labels[::stride])
    dress(axes, xlabel)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    return figure


Line = tuple[str, np.ndarray, np.ndarray]
"""Label, (n,) x, and (n,) y, or (3, n) of y and the lower and upper end of its interval."""


def overlay(lines: Iterable[Line], ylabel: str, xlabel: str, *, log: bool) -> Any:
    """Lines of several runs in one chart, in the order of the page's colours."""
    figure = import_figure()(figsize=(5, 3.4), layout="constrained")
    axes = figure.subplots()
    for index, (label, x, y) in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        if y.ndim == 2:
            y, *band = y
            axes.fill_between(x, *band, color=colour, alpha=0.16, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=1.5, marker="o", markersize=2.5, label=label)
    if log:
        axes.set_yscale("log")
    dress(axes, xlabel)
    axes.set_ylabel(ylabel, fontsize=9, color=INK)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def spark(counts: np.ndarray) -> Markup:
    """A histogram that fits a cell of a table, without axes."""
    heights = np.round(20 * counts / max(1, counts.max())).astype(int)
    bars = "".join(f"M{4 * place} 20v-{height}h3v{height}z" for place, height in enumerate(heights) if height)
    return Markup(
        f'<svg class="spark" viewBox="0 0 {4 * len(counts)} 20" preserveAspectRatio="none"><path d="{bars}"/></svg>'
    )
