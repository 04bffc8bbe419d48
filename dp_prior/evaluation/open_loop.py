"""Open loop: the actions that a policy would have given in recorded episodes, as a film of frames above curves.

Each chunk is predicted from recorded observations, whatever the policy predicted before: errors do not add up as they
do on a robot, and nothing here says that the task would be solved.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dp_prior.evaluation.picture import INK, MEAN, import_figure, take_literally
from dp_prior.tensors.pixels.video_files import import_av
from dp_prior.tensors.pixels.video_writer import VideoWriter

USUAL_FPS = 10.0
"""Frames per second of a film of data that do not state their rate."""

WIDTH, PANEL, MARGIN = 960, 96, 34
"""Pixels of a picture of curves: its width, the height of a panel, and room at the left, above and below."""

_DPI = 100


@dataclass(frozen=True)
class OpenLoop:
    """Actions of an episode of T steps, of which the first n are filmed.

    Attributes:
        title: of the film, in one line.
        recorded, predicted: (T, D), NaN where nothing was recorded, or is padding.
        names: of the D dimensions.
        every: steps from one prediction to the next.
    """

    title: str
    recorded: np.ndarray
    predicted: np.ndarray
    names: Sequence[str]
    every: int


def import_film_packages() -> None:
    """Import what writes a film. Raises ImportError, which names the extra."""
    import_av()
    import_figure()


def episode_runs(place: Callable[[int], tuple[int, int] | None], n: int, count: int) -> list[tuple[int, range]]:
    """Number and samples of the first episodes of n samples, which are in the order of episodes and steps.

    Of an episode that is read at a lower rate, the samples that begin at its first row.

    Args:
        place: episode and step of a sample; None where samples are no moments.
    """
    runs: list[tuple[int, range]] = []
    previous = None
    for sample in range(n):
        now = place(sample)
        if now is None:
            return []
        if previous is None or now[0] != previous[0]:
            if len(runs) == count:
                break
            runs.append((now[0], range(sample, sample + 1)))
        elif now[1] > previous[1] and runs[-1][1].stop == sample:
            runs[-1] = (now[0], range(runs[-1][1].start, sample + 1))
        previous = now
    return runs


def write_film(path: Path, fps: float | None, episodes: Iterator[tuple[OpenLoop, Iterator[np.ndarray]]]) -> None:
    """Write a video of several episodes in a row.

    Args:
        episodes: each with the pictures of its steps, (height, width, 3) uint8; those of all episodes have one size.
    """
    with VideoWriter(path, fps or USUAL_FPS) as writer:
        for actions, pictures in episodes:
            curves = None
            for step, picture in enumerate(pictures):
                curves = curves or Curves(actions, max(WIDTH, picture.shape[1]))
                frame = curves.below(picture, step)
                writer.write(frame)
            for _ in range(round(writer.fps)):
                writer.write(frame)


class Curves:
    """Curves of an episode, drawn twice: a frame of the film shows the predictions up to its step and no further."""

    def __init__(self, actions: OpenLoop, width: int):
        self._actions, self._width = actions, width
        dimensions = actions.recorded.shape[1]
        across = 1 if dimensions <= 2 else 2 if dimensions <= 6 else 4
        self._grid = -(-dimensions // across), across
        self._before, _ = self._draw(is_predicted=False)
        self._after, self._panels = self._draw(is_predicted=True)

    def below(self, picture: np.ndarray, step: int) -> np.ndarray:
        """The curves at a step, (height, width, 3) uint8, below a picture of that step."""
        last, every = len(self._actions.recorded) - 1, self._actions.every
        predicted_until = min(last, step // every * every + every - 1)
        curves = self._before.copy()
        for top, bottom, left, right in self._panels:
            now, until = (left + round((right - left) * place / max(1, last)) for place in (step, predicted_until))
            curves[top:bottom, left : until + 1] = self._after[top:bottom, left : until + 1]
            curves[top:bottom, now : now + 2] = (217, 130, 43)
        above = np.full((picture.shape[0], self._width, 3), 255, np.uint8)
        left = (self._width - picture.shape[1]) // 2
        above[:, left : left + picture.shape[1]] = picture
        return np.concatenate([above, curves])

    def _draw(self, is_predicted: bool) -> tuple[np.ndarray, list[tuple[int, int, int, int]]]:
        """The picture, and top, bottom, left and right of each panel in it."""
        (down, across), actions = self._grid, self._actions
        width, height = self._width, down * PANEL + 2 * MARGIN
        figure = import_figure()(figsize=(width / _DPI, height / _DPI), dpi=_DPI)
        room = {"left": 1.4 * MARGIN / width, "right": 1 - MARGIN / 2 / width}
        figure.subplots_adjust(**room, bottom=MARGIN / height, top=1 - 1.3 * MARGIN / height, hspace=0.4, wspace=0.22)
        figure.suptitle(actions.title, x=0.01, y=1 - 4 / height, ha="left", va="top", fontsize=9, color=INK)
        panels = []
        for number, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
            if number >= actions.recorded.shape[1]:
                axes.set_visible(False)
                continue
            axes.plot(actions.recorded[:, number], color="#9aa4b2", linewidth=3)
            predicted, *_ = axes.plot(actions.predicted[:, number], color=MEAN, linewidth=1.2)
            predicted.set_visible(is_predicted)  # invisible ones count for the limits, so that both pictures agree
            axes.set_xlim(0, max(1, len(actions.recorded) - 1))
            axes.set_title(actions.names[number], fontsize=7, loc="left", color=INK, pad=2)
            axes.tick_params(labelsize=6, colors=INK)
            box = axes.get_position()
            rows = height - round(box.y1 * height) + 1, height - round(box.y0 * height)
            panels.append((*rows, round(box.x0 * width) + 1, round(box.x1 * width)))
        take_literally(figure)
        file = io.BytesIO()
        figure.savefig(file, format="rgba", dpi=_DPI)
        pixels = np.frombuffer(file.getvalue(), np.uint8).reshape(height, width, 4)
        return pixels[..., :3].copy(), panels
