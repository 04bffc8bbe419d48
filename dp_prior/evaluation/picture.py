"""The picture of a rollout: strips of stills from the filmed episodes above the scores of all episodes; what all
charts share."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.files.durable import replacing
from dp_prior.files.entry_points import needing

MEAN, INK = "#1f4e8c", "#2b2f36"
_OUTCOMES = {True: ("solved", "#2ea043"), False: ("not solved", "#cf4b42"), None: ("outcome unknown", "#9aa4b2")}

LINE = 0.17
"""Inches of a line of a legend, or beside a bar, in letters of 8 points."""

MOST_LINES = 8
"""Lines of a name; a longer name ends with an ellipsis."""

BESIDE_BAR, IN_LEGEND = 30, 56
"""Characters of a line beside bars and of a legend, in a chart of 4.6 or 5 inches."""


def import_figure() -> Any:
    """matplotlib's Figure, which draws without a display, or an ImportError that names the extra."""
    with needing("plots", "pictures need matplotlib"):
        from matplotlib.figure import Figure
    return Figure


def take_literally(figure: Any) -> None:
    """Show texts of a figure as they are, since users choose names: no formulas, and nothing that cannot be encoded."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text(text.get_text().encode(errors="replace").decode())


def save_png(figure: Any, path: Path) -> None:
    """Write the picture durably; on failure an existing file is unchanged."""
    take_literally(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def draw_rollouts(
    path: Path, strips: list[list[tuple[int, np.ndarray]]], table: list[dict[str, Any]], headline: str
) -> None:
    """Draw a PNG.

    Args:
        strips: for each of the first episodes some pairs (step, frame), frames (height, width, 3) uint8.
        table: seed, score, success and steps of every episode, in order; success is None if unknown.
    """
    columns = max(map(len, strips))
    height, width = strips[0][0][1].shape[:2]
    stills_height = len(strips) * (1.2 * min(2.0, height / width) + 0.25)
    size = max(6.4, 1.25 * columns + 1.4), stills_height + 2.6
    figure = import_figure()(figsize=size, dpi=110, layout="constrained")
    figure.suptitle(headline, fontsize=11, color=INK, fontweight="bold", x=0.01, ha="left")
    stills_part, scores_part = figure.subfigures(2, 1, height_ratios=[stills_height, 2.0])
    grid = stills_part.subplots(len(strips), columns, squeeze=False)
    for axes_row, strip, row in zip(grid, strips, table, strict=False):
        _draw_strip(axes_row, strip, row)
    draw_scores(scores_part.subplots(), table)
    save_png(figure, path)


def _draw_strip(axes_row: Any, strip: list[tuple[int, np.ndarray]], row: dict[str, Any]) -> None:
    """One episode: stills labelled by step, seed and score at the left; the colour of the last frame is the outcome."""
    for axes in axes_row:
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_visible(False)
    for axes, (step, frame) in zip(axes_row, strip, strict=False):
        axes.set_visible(True)
        axes.imshow(frame, interpolation="antialiased")
        axes.set_xlabel(f"step {step}", fontsize=7, color=INK, labelpad=2)
        for spine in axes.spines.values():
            spine.set_color("#d0d4da")
    last = axes_row[len(strip) - 1]
    for spine in last.spines.values():
        spine.set_color(_OUTCOMES[row["success"]][1])
        spine.set_linewidth(2.5)
    axes_row[0].set_ylabel(
        f"seed {row['seed']}\nscore {row['score']:.2f}", fontsize=8, color=INK, rotation=0, ha="right", va="center"
    )


def draw_scores(axes: Any, table: list[dict[str, Any]]) -> None:
    """All scores as bars from worst to best, NaN first, and their mean as a line."""
    order = sorted(table, key=lambda row: (math.isfinite(row["score"]), row["score"]))
    scores = [row["score"] for row in order]
    n_missing = sum(not math.isfinite(score) for score in scores)
    width = 0.82 if len(scores) <= 100 else 1.0
    for outcome, (label, colour) in _OUTCOMES.items():
        places = [i for i, row in enumerate(order) if row["success"] is outcome and math.isfinite(row["score"])]
        if places:
            axes.bar(places, [scores[i] for i in places], color=colour, width=width, label=label)
    if not n_missing:
        mean = np.mean(scores)
        axes.axhline(mean, color=MEAN, linewidth=1.2, linestyle=(0, (4, 2)), label=f"mean {mean:.3f}")
    if n_missing < len(scores):
        style = {"frameon": False, "fontsize": 8, "handlelength": 1.4, "labelcolor": INK}
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, **style)
    axes.set_xlim(-0.6, len(scores) - 0.4)
    axes.set_xticks([])
    missing = f"{n_missing} without a score, " if n_missing else ""
    axes.set_xlabel(f"{len(scores)} episodes, {missing}worst to best", fontsize=8, color=INK)
    axes.set_ylabel("score", fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa4b2")
    axes.grid(axis="y", color="#e4e7ec", linewidth=0.8)
    axes.set_axisbelow(True)


def in_lines(name: str, width: int) -> str:
    """A name in lines of at most `width` characters, broken at spaces. Users, sweeps and instructions make
    names as long as they like."""
    if len(name) <= width:
        return name
    lines = textwrap.wrap(name, width, break_on_hyphens=False, max_lines=MOST_LINES, placeholder="…")
    return "\n".join(lines)


def count_lines(names: list[str]) -> int:
    """Lines of all names together."""
    return sum(1 + name.count("\n") for name in names)
