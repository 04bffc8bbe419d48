"""Episodes in which a camera differs from the other episodes: exchanged with another, blue for red, or moved.

Each is compared with the median of the other episodes, in small median pictures of its first seconds. A camera at a
hand sees something else every time, so a difference alone is no fault: another reading has to fit better.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from dp_prior.data.frames import FrameSource
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.survey import Survey

EPISODES, FRAMES, STRIDE, MOST_PASSED = 12, 5, 20, 3000
"""Episodes of a camera that are compared, frames of each and steps between these; frames that are decoded of a camera
in all, for files are decoded from their beginning."""

SIZE = 48, 64
"""Height and width of the pictures that are compared."""

BETTER, LEAST = 0.5, 2.0
"""Another reading fits better if its distance is at most this share of the distance of the present one, which is at
least `LEAST` of 255."""

LEAST_COLOUR, SAME_PATTERN = 0.4, 0.2
"""Levels of red over blue by which exchanged channels differ at least; and correlation of its pattern from which the
channels are as in the other episodes, under light of another colour."""

MOVED, MOST_MOVED, FITS, FIXED, GAIN = 0.05, 0.3, 0.55, 0.55, 0.25
"""A camera moved by at least the first and at most the second share of the picture, if the shifted pictures correlate
by `FITS` and by `GAIN` more than the others do unshifted, which is `FIXED` between the other episodes."""

LEAST_SPREAD = 1e-6
"""Squared levels of brightness below which a picture has no contrast, but rounding."""


@dataclass(frozen=True)
class Views:
    """Pictures of a camera. Attributes: pictures: (height, width, 3) float32 medians by the place of an episode."""

    camera: str
    pictures: dict[int, np.ndarray]

    @classmethod
    def of(cls, camera: str, source: FrameSource) -> Views:
        """Read a few frames of evenly spread episodes.

        Raises:
            DataError: they cannot be read.
        """
        lengths, fit, pictures = np.diff(source.ends, prepend=0), Fit(size=SIZE, how="resize"), {}
        count = min(EPISODES, len(source.parts))
        for part in (source.parts[number] for number in evenly_spread(len(source.parts), count).tolist()):
            begins = np.cumsum([0, *lengths[list(part.episodes)]])[:-1]
            near = [place for place, begin in enumerate(begins) if begin + FRAMES * STRIDE <= MOST_PASSED // count]
            near = near or [0]
            picked = [near[place] for place in evenly_spread(len(near), -(-EPISODES // count)).tolist()]
            place_of_row: dict[int, int] = {}
            for place in picked:
                episode, begin = part.episodes[place], int(begins[place])
                end = begin + min(FRAMES * STRIDE, int(lengths[episode]))
                place_of_row |= dict.fromkeys(range(begin, end, STRIDE), episode)
            stop, frames_of = max(place_of_row, default=-1) + 1, {}
            frames = itertools.chain.from_iterable(source.read(part, 0))
            for row, frame in zip(range(stop), frames, strict=False):
                if row in place_of_row:
                    small = fit.apply(torch.from_numpy(np.array(frame))[None])[0].numpy()
                    frames_of.setdefault(place_of_row[row], []).append(small)
            pictures |= {place: np.median(group, axis=0).astype(np.float32) for place, group in frames_of.items()}
        return cls(camera, dict(sorted(pictures.items())))

    def others(self, place: int) -> np.ndarray:
        """The median of the other episodes."""
        return np.median([picture for episode, picture in self.pictures.items() if episode != place], axis=0)


def find_in_views(views: Mapping[str, Views], survey: Survey) -> Iterator[Finding]:
    """All findings of this kind, for cameras of two episodes and more."""
    comparable, exchanged = [camera_views for camera_views in views.values() if len(camera_views.pictures) > 1], set()
    for first, second in itertools.combinations(comparable, 2):
        common = sorted(first.pictures.keys() & second.pictures.keys())
        odd = [place for place in common if _is_exchanged(first, second, place)]
        yield from _camera_findings(
            odd,
            common,
            survey,
            f"{first.camera} and {second.camera} are exchanged",
            "exchange them",
            "cameras-exchanged",
        )
        exchanged |= {first.camera, second.camera} if odd else set()
    for camera_views in comparable:
        if camera_views.camera in exchanged:  # its other faults follow from the exchange
            continue
        places = list(camera_views.pictures)
        odd = [place for place in places if _is_blue_for_red(camera_views, place)]
        problem = f"{camera_views.camera}: red and blue are exchanged"
        yield from _camera_findings(
            odd, places, survey, problem, "one recorder wrote BGR; write RGB", "colours-exchanged"
        )
        yield from _moved(camera_views, survey)


def _camera_findings(
    odd: list[int], places: list[int], survey: Survey, problem: str, remedy: str, code: str
) -> Iterator[Finding]:
    """One finding for all odd episodes."""
    if odd:
        numbers = survey.chosen.named(odd)
        beside = "against the other" if len(places) == 2 else f"of {len(places)} looked at"
        listed = ", ".join(map(str, numbers))
        text = f"{problem} in episode{'s' * (len(odd) > 1)} {listed} {beside}; {remedy}"
        yield Finding("warning", text, numbers[0], leave_out=numbers if 2 * len(odd) < len(places) else (), code=code)


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(abs(first - second).mean())


def _is_exchanged(first: Views, second: Views, place: int) -> bool:
    """Whether each of two cameras saw what the other one sees in the other episodes."""
    of_first, of_second = (camera_views.pictures[place] for camera_views in (first, second))
    usual, usual_other = first.others(place), second.others(place)
    straight = _distance(of_first, usual) + _distance(of_second, usual_other)
    crossed = _distance(of_first, usual_other) + _distance(of_second, usual)
    return straight >= 2 * LEAST and crossed <= BETTER * straight


def _is_blue_for_red(views: Views, place: int) -> bool:
    """Whether red minus blue is distributed as blue minus red in the other episodes, in no similar pattern."""
    mine, usual = (picture[..., 0] - picture[..., 2] for picture in (views.pictures[place], views.others(place)))
    spread = [np.sort(difference, axis=None) for difference in (mine, usual, -mine)]
    straight, turned = _distance(spread[0], spread[1]), _distance(spread[2], spread[1])
    is_turned = turned <= BETTER * straight and straight - turned >= LEAST_COLOUR
    return is_turned and _correlation(mine, usual) < SAME_PATTERN


def _moved(views: Views, survey: Survey) -> Iterator[Finding]:
    """Episodes whose pictures fit the others' shifted."""
    details = {place: _details(picture) for place, picture in views.pictures.items()}
    shifts = {}
    for place, mine in details.items():
        rest = [detail for other, detail in details.items() if other != place]
        usual = np.median(rest, axis=0)
        fixed = np.median([_correlation(detail, usual) for detail in rest])
        if fixed < FIXED:
            continue
        here, (shift, best) = _correlation(mine, usual), _best_shift(mine, usual)
        if max(abs(part) for part in shift) >= MOVED and best >= FITS and best - here >= GAIN:
            shifts[place] = shift
    if shifts:
        down, right = np.abs(list(shifts.values())).max(0)
        how = f"{'up to ' * (len(shifts) > 1)}{right:.0%} of the width, {down:.0%} of the height"
        problem = f"{views.camera}: the camera stands otherwise, by {how},"
        remedy = "look at the page; a policy sees the task from one place only"
        yield from _camera_findings(list(shifts), list(views.pictures), survey, problem, remedy, "camera-moved")


def _details(picture: np.ndarray) -> np.ndarray:
    """(H, W) brightness without what changes slowly, so that light does not count."""
    grey = torch.from_numpy(picture.mean(-1))[None, None]
    blurred = torch.nn.functional.avg_pool2d(torch.nn.functional.pad(grey, (6, 6, 6, 6), "replicate"), 13, 1)
    return (grey - blurred)[0, 0].numpy()


def _best_shift(mine: np.ndarray, usual: np.ndarray) -> tuple[tuple[float, float], float]:
    """Shares of height and width by which `mine` has to go back to fit best, and the correlation there."""
    mine, usual = (picture - picture.mean(dtype=np.float64) for picture in (mine, usual))
    size = np.array(mine.shape)
    down, right = (np.arange(-reach, reach + 1) for reach in (MOST_MOVED * size).astype(int))
    shape, ones = tuple(2 * size), np.ones(mine.shape)

    def overlapping(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """(down, right) sums of the products of two pictures where they overlap, for each shift of the first."""
        spectrum = np.fft.rfft2(first, shape) * np.fft.rfft2(second, shape).conj()
        return np.fft.irfft2(spectrum, shape)[np.ix_(down, right)]

    count, of_mine, of_usual = overlapping(ones, ones), overlapping(mine, ones), overlapping(ones, usual)
    varied = (overlapping(mine**2, ones) - of_mine**2 / count, overlapping(ones, usual**2) - of_usual**2 / count)
    spread = np.sqrt(np.maximum(varied[0], 0) * np.maximum(varied[1], 0))
    matches = (overlapping(mine, usual) - of_mine * of_usual / count) / np.maximum(spread, LEAST_SPREAD)
    row, column = np.unravel_index(np.argmax(matches), matches.shape)
    return (float(down[row] / size[0]), float(right[column] / size[1])), float(matches[row, column])


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Pearson's; 0 of a picture without contrast."""
    first, second = first - first.mean(), second - second.mean()
    size = math.sqrt(np.vdot(first, first) * np.vdot(second, second))
    return float(np.vdot(first, second)) / size if size > 0 else 0.0
