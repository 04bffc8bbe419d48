"""Depth of a data set: the distances of a few episodes, and frames of them in grey, the near ones bright."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.frames import FramePart, FrameSource
from dp_prior.data.frames.depths import Depths
from dp_prior.data.recorded.camera import DepthConfig
from dp_prior_studio.inspection.cameras import Strip, frozen, left_out, strips_of
from dp_prior_studio.inspection.finding import Finding, refused
from dp_prior_studio.inspection.survey import Survey

HALF_BRIGHT = 0.5
"""Metres that are shown half as bright as the nearest ones."""

SPARSE = 4
"""Pixels from one whose distance is looked at to the next."""

NEAR_AND_FAR = (0.01, 0.99)
"""Quantiles of the measured distances that are proposed as the range."""

USUAL_REACH = (0.01, 100.0)
"""Metres between which the median distance of a robot's sensor lies; other values suggest another unit."""


@dataclass(frozen=True)
class Distances:
    """Distances of a few episodes.

    Attributes:
        size: height and width of the recorded frames.
        range: metres at `NEAR_AND_FAR`; None if nothing was measured.
        median: metres; 0 if nothing was measured.
        unmeasured: share of the pixels.
        inside: share of the measured pixels in the range of a configuration; None without one.
    """

    key: str
    size: tuple[int, int]
    range: tuple[float, float] | None
    median: float
    unmeasured: float
    inside: float | None

    @classmethod
    def of(cls, key: str, size: tuple[int, int], metres: np.ndarray, stated: DepthConfig | None) -> Distances:
        """Args: metres: (n,) of some pixels, 0 where nothing was measured; stated: what a configuration says."""
        measured = metres[metres > 0]
        if not len(measured):
            return cls(key, size, None, 0.0, 1.0, None)
        near, far = (float(end) for end in np.quantile(measured, NEAR_AND_FAR))
        inside = None if stated is None else float(((measured >= stated.near) & (measured <= stated.far)).mean())
        return cls(key, size, (near, far), float(np.median(measured)), 1 - len(measured) / len(metres), inside)

    def __str__(self) -> str:
        reach = "nothing measured" if self.range is None else f"{self.range[0]:.3g} to {self.range[1]:.3g} m"
        return (
            f"{self.key}, {self.size[0]} x {self.size[1]} (height x width), {reach}, {self.unmeasured:.0%} unmeasured"
        )

    @property
    def is_usual(self) -> bool:
        """Whether the distances are those of a sensor for robots; in another unit all frames look alike in grey."""
        return USUAL_REACH[0] <= self.median <= USUAL_REACH[1]

    def findings(self) -> Iterator[Finding]:
        """Findings about the distances."""
        if self.range is None:
            yield Finding(
                "warning",
                f"{self.key}: no pixel has a distance; look at the recording, or leave it out",
                code="depth-empty",
            )
            return
        if not self.is_usual:
            finding = f"{self.key}: half of the distances lie beyond {self.median:.3g} m"
            yield Finding("warning", f"{finding}; look at unit, which is 0.001 for millimetres", code="depth-unit")
        if self.inside is not None and self.inside < 0.5:
            near, far = self.range
            finding = f"{self.key}: {self.inside:.0%} of the distances lie within near and far; most are {near:.3g} to"
            yield Finding("warning", f"{finding} {far:.3g} m; look at near, far and unit", code="depth-range")


class ShadedDepth:
    """See `FrameSource`; depth as grey pictures, black where nothing was measured.

    Attributes:
        metres: of some pixels of every frame that was read.
    """

    def __init__(self, source: FrameSource):
        self.root, self.size, self._source = source.root, source.size, source
        self.ends, self.parts = source.ends, source.parts
        self.metres: list[np.ndarray] = []

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        for block in self._source.read(part, skip):
            self.metres.append(block[:, SPARSE // 2 :: SPARSE, SPARSE // 2 :: SPARSE].ravel())
            shade = np.where(block > 0, 255 * HALF_BRIGHT / (HALF_BRIGHT + block), 0)
            yield shade.astype(np.uint8).repeat(3, axis=3)

    def files(self) -> list[Path]:
        return self._source.files()

    def describe(self) -> dict[str, Any]:
        return self._source.describe()


def look_at_depth(
    survey: Survey, keys: Mapping[str, DepthConfig | None]
) -> tuple[list[Strip], list[Distances], list[Finding], list[str]]:
    """Strips and distances of these keys, what is wrong with them, and a line for each key that cannot be read.

    Args:
        keys: the record of each key in a configuration; None without a configuration, where no key must be readable.
    """
    strips, distances, findings, gaps = [], [], [], []
    for key, stated in keys.items():
        frames_of = (key, survey.chosen.recorded, Depths(), survey.chosen.numbers)
        try:
            source = survey.store.frames(*frames_of) if stated is None else stated.source(survey.store, survey.chosen)
            shaded = ShadedDepth(source)
            shaded_strips = strips_of(key, shaded, survey, stated)
        except DataError as error:
            problems = error.placed(survey.store.path)
            if stated is None:
                findings.append(left_out(key, problems[0]))
            else:
                findings += refused(key, problems)
        except ImportError as error:
            gaps.append(f"{key}: {error}")
        else:
            measured = Distances.of(key, source.size, np.concatenate(shaded.metres), stated)
            strips += shaded_strips
            distances.append(measured)
            findings += [*(frozen(shaded_strips, survey) if measured.is_usual else ()), *measured.findings()]
    return strips, distances, findings, gaps
