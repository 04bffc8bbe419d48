"""Mirror images of recorded episodes: as many training episodes again where robot and task are symmetric.

A planar task is mirrored at a line, two arms at the plane between them. The effect on a vector depends on the meaning
of its elements, and on a frame on the place of its camera, so each key states its own mirror.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from dp_prior.config import Config
from dp_prior.data.columns.mirrored import Flip
from dp_prior.data.errors import DataError
from dp_prior.data.recorded.episodes import OpenedEpisodes
from dp_prior.data.recorded.extra import Extra
from dp_prior.data.recorded.selection import ACTION, KeyConfig
from dp_prior.tensors.rotations import RotationSlice
from dp_prior_client.onboard.rotation_check import is_rotation, not_a_rotation

if TYPE_CHECKING:
    from dp_prior.data.samples.weighted_order import Share

Sign = Literal[-1, 1]


class MirrorConfig(Config):
    """How a vector reads in the mirror: element i becomes sign[i] * value[order[i]] + offset[i], in data units.

    Angles are not brought back to a range, so encode them (`angle`, `planar`, or as rotations).
    """

    order: tuple[int, ...] | None = None
    """For each element, the index of the element that it is mirrored from, such as the other arm's; null: its own."""

    sign: Sign | tuple[Sign, ...] = 1
    """1 or -1, for all elements or for each."""

    offset: float | tuple[float, ...] = 0.0
    """Added, for all elements or for each: twice the position of the mirror where it is not at 0."""

    def faults(self) -> Iterator[str]:
        listed = [setting for setting in (self.order, self.sign, self.offset) if isinstance(setting, tuple)]
        fault = self.fault(len(listed[0])) if listed else self.fault(1)
        if fault:
            yield fault

    def fault(self, width: int) -> str | None:
        """Why this is no mirror of vectors of `width` elements; None for a mirror."""
        for name in ("order", "sign", "offset"):
            setting = getattr(self, name)
            if isinstance(setting, tuple) and len(setting) != width:
                return f"{name} has {len(setting)} elements; expected {width}"
        if self.order is not None and sorted(self.order) != list(range(width)):
            return f"order is {list(self.order)}; expected each of 0 to {width - 1} once"
        order, sign, offset = self._arrays(width)
        again = sign * offset[order] + offset  # of 0, mirrored twice
        is_wrong = (order[order] != np.arange(width)) | (sign != sign[order]) | (np.abs(again) > 1e-6 * np.abs(offset))
        if is_wrong.any():
            i = int(np.flatnonzero(is_wrong)[0])
            settings = f"order {order[i]}, sign {sign[i]:g}, offset {offset[i]:g}"
            other = f"order {order[order[i]]}, sign {sign[order[i]]:g}, offset {offset[order[i]]:g}"
            return f"mirrored twice element {i} is another one: {settings}; element {order[i]} has {other}"
        return None

    def image(self, values: np.ndarray) -> np.ndarray:
        """(N, D) float32 in the mirror. Args: values: (N, D) float32."""
        order, sign, offset = self._arrays(values.shape[1])
        return (sign * values[:, order] + offset).astype(np.float32)

    def _arrays(self, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Each setting with one number for each element."""
        order = np.arange(width) if self.order is None else np.array(self.order)
        sign = np.broadcast_to(np.array(self.sign, np.float64), width)
        offset = np.broadcast_to(np.array(self.offset, np.float64), width)
        return order, sign, offset


class FrameMirrorConfig(Config):
    """How the frames of a camera read in the mirror."""

    flip: Flip
    """The flip of the frame: exchange left and right, up and down, or the two sides of a diagonal of a square frame:
    `diagonal` from the upper left, `antidiagonal` from the lower left."""

    camera: str | None = None
    """The camera whose flipped frames this camera sees in the mirror, such as the other arm's camera; null: this camera
    itself."""


class MirrorImages(Extra):
    """The mirror image of every episode, behind the recorded episodes; those of train episodes are trained on."""

    @classmethod
    def open(cls, record: Mapping[str, MirrorConfig], opened: OpenedEpisodes) -> tuple[Self, OpenedEpisodes]:
        episodes = opened.episodes
        arrays, ends = with_images(record, opened.keys, opened.arrays, episodes.ends)
        train = episodes.numbers["train"]
        numbers = {**episodes.numbers, "train": np.concatenate([train, len(episodes.ends) + train])}
        return cls(), replace(opened, arrays=arrays, episodes=replace(episodes, ends=ends, numbers=numbers))

    def summary(self, windows: int, shares: Sequence[Share] | None) -> Iterator[str]:
        yield "half of those to train on are mirror images"


def with_images(
    mirrors: Mapping[str, MirrorConfig],
    keys: Mapping[str, KeyConfig],
    arrays: Mapping[str, np.ndarray],
    ends: np.ndarray,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Episodes, and after them the mirror image of each in the same order.

    Args:
        mirrors: by the policy's name, that of the action under "action".
        keys, arrays: (N, D) float32 by the policy's name, the action under `ACTION`.
        ends: (E,) end row of each episode.

    Returns:
        (2 N, D) of each key, (2 E,) ends.

    Raises:
        DataError: a mirror does not fit its vectors, or does not give rotations where they are.
    """
    problems, both = [], {}
    for key, values in arrays.items():
        name = "action" if key == ACTION else key
        fault = f"the data have shape {values.shape[1:]} per step; expected a vector" if values.ndim != 2 else None
        fault = fault or mirrors[name].fault(values.shape[1])
        if fault is None:
            image = mirrors[name].image(values)
            fault = _no_rotation(image, keys[key].rotations)
            both[key] = np.concatenate([values, image])
        problems += [f"{name}: {fault}"] if fault else []
    if problems:
        raise DataError("mirror", problems)
    return both, np.concatenate([ends, ends[-1] + ends])


def _no_rotation(image: np.ndarray, rotations: tuple[RotationSlice, ...]) -> str | None:
    """The first mirrored value that is no rotation where one is expected; None for rotations."""
    for rotation in rotations:
        values = image[:, slice(*rotation.slice)]
        bad = np.flatnonzero(~is_rotation(values, rotation.form))
        if len(bad):
            return f"slice {list(rotation.slice)}: {not_a_rotation(values[bad[0]].tolist(), rotation.form)}"
    return None
