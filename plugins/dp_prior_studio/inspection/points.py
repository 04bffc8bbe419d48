"""Point clouds of a data set: where the points of a few episodes lie, and the workspace that is proposed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.formats.episode_store import step_of
from dp_prior.data.recorded.points import cloud_fault
from dp_prior.evaluation.samples import evenly_spread
from dp_prior.networks.encoders.points import PointEncoderConfig
from dp_prior_studio.inspection.cameras import EPISODES
from dp_prior_studio.inspection.finding import MOST_NAMED, Finding, refused
from dp_prior_studio.inspection.survey import Survey

WORKSPACE = (0.005, 0.995)
"""Quantiles of the positions that are proposed as the box."""


@dataclass(frozen=True)
class Cloud:
    """The points of a few episodes.

    Attributes:
        shape: points at a step, and numbers of a point.
        box: lowest and highest corner, at `WORKSPACE`, in the unit of the data.
        white: 1 or 255, the number that colours seem to have at most; None without colours.
        others: lowest and highest of the numbers beside positions; None if they are colours, or without such numbers.
        missing: share of the points that are not finite.
        empty: rows, of those looked at, without a point.
        stated: the encoder of a configuration; None without one.
        inside: points at a step in the box of that encoder, median and share.
    """

    key: str
    shape: tuple[int, ...]
    box: tuple[list[float], list[float]]
    white: float | None
    others: tuple[float, float] | None
    missing: float
    empty: list[int]
    stated: PointEncoderConfig | None
    inside: tuple[int, float]

    @classmethod
    def of(cls, key: str, values: np.ndarray, stated: PointEncoderConfig | None) -> Cloud | None:
        """None without a point. Args: values: (n, points, 3 or 6)."""
        is_point = np.isfinite(values).all(2)
        if not is_point.any():
            return None
        points, white, range_of_rest = values[is_point], None, None
        low, high = np.quantile(points[:, :3], WORKSPACE, axis=0)
        if values.shape[2] == 6:
            lowest, highest = float(points[:, 3:].min()), float(points[:, 3:].max())
            white = next((largest for largest in (1.0, 255.0) if lowest >= 0 and highest <= largest), None)
            range_of_rest = (lowest, highest) if white is None else None
        if stated is not None and stated.box is not None:
            lowest, highest = np.array(stated.box)
            is_inside = is_point & ((values[..., :3] >= lowest) & (values[..., :3] <= highest)).all(2)
        else:
            is_inside = is_point
        box = [math.floor(100 * end) / 100 for end in low], [math.ceil(100 * end) / 100 for end in high]
        inside = int(np.median(is_inside.sum(1))), float(is_inside.sum() / is_point.sum())
        missing, empty = float(1 - is_point.mean()), np.flatnonzero(~is_point.any(1)).tolist()
        return cls(key, values.shape[1:], box, white, range_of_rest, missing, empty, stated, inside)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis} {low:g} to {high:g}" for axis, low, high in zip("xyz", *self.box, strict=True))
        colours = "" if self.white is None else f", colours to {self.white:g}"
        return f"{self.key}, {self.shape[0]:,} points{colours}, {axes}, {self.missing:.0%} not finite"

    def encoder(self) -> dict[str, Any]:
        """The JSON of an encoder for it."""
        low, high = self.box
        high = [max(end, start + 0.01) for start, end in zip(low, high, strict=True)]
        usual = PointEncoderConfig.model_fields["count"].default
        encoder = {"type": "points", "count": min(usual, self.shape[0]), "box": [low, high]}
        return encoder if self.white is None else {**encoder, "white": self.white}

    def findings(self) -> Iterator[Finding]:
        """Numbers that are no colours, and settings that do not fit."""
        if self.others is not None and (self.stated is None or self.stated.white is not None):
            low, high = self.others
            finding = (
                f"{self.key}: the last three numbers of a point go from {low:.3g} to {high:.3g}, so are no colours"
            )
            yield Finding(
                "warning", f"{finding}; the encoder reads positions alone, without white", code="points-no-colours"
            )
        if self.stated is None:
            return
        count, share = self.inside
        if self.stated.box is not None and count < self.stated.count / 4:
            finding = (
                f"{self.key}: {count} points of a step ({share:.0%}) lie in the box, but count is {self.stated.count}"
            )
            yield Finding(
                "warning", f"{finding}; most lie from {self.box[0]} to {self.box[1]}", code="points-outside-box"
            )
        if None not in (self.stated.white, self.white) and self.stated.white != self.white:
            yield Finding(
                "warning",
                f"{self.key}: colours go to {self.white:g}, but white is {self.stated.white:g}",
                code="points-white",
            )


def look_at_points(
    survey: Survey, keys: Mapping[str, PointEncoderConfig | None]
) -> tuple[list[Cloud], list[Finding], list[str]]:
    """Clouds of these keys, what is wrong with them, and a line for each key that cannot be read.

    Args:
        keys: the encoder of each key in a configuration; None without a configuration.
    """
    clouds, findings, gaps = [], [], []
    numbers = survey.chosen.numbers[evenly_spread(len(survey.chosen.numbers), EPISODES).numpy()]
    for key, stated in keys.items():
        if fault := cloud_fault(survey.store, key):
            findings.append(Finding("error", f"{key}: {fault}", code="points-fault"))
            continue
        try:
            cloud = Cloud.of(key, survey.store.episodes(key, survey.chosen.recorded, numbers), stated)
        except DataError as error:
            problems = error.placed(survey.store.path)
            if stated is not None:
                findings += refused(key, problems)
            else:
                gaps.append(f"{key}: {problems[0]}")
            continue
        if cloud is None:
            severity = "warning" if stated is None else "error"  # training refuses a key that a configuration names
            findings.append(
                Finding(
                    severity,
                    f"{key}: no point is finite; look at the recording, or leave it out",
                    code="points-never-finite",
                )
            )
            continue
        clouds.append(cloud)
        findings += [*_empty_steps(cloud, survey, numbers), *cloud.findings()]
    return clouds, findings, gaps


def _empty_steps(cloud: Cloud, survey: Survey, numbers: np.ndarray) -> Iterator[Finding]:
    """A line for each episode with steps that training refuses. Args: numbers: places of the episodes looked at."""
    ends = np.cumsum(survey.chosen.lengths[numbers])
    places = [step_of(row, ends) for row in cloud.empty]
    for which in sorted({episode for episode, _ in places})[:MOST_NAMED]:
        frames = [frame for episode, frame in places if episode == which]
        (episode,) = survey.chosen.named([int(numbers[which])])
        text = f"{cloud.key}: no point is finite in {len(frames)} steps"
        yield Finding("error", text, episode, frames[0], [episode], code="points-empty")
