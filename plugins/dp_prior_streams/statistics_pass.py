"""One pass over all numbers of a data set: statistics, the fingerprint and evenly spread samples, kept in the cache."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import TASK
from dp_prior.data.recorded.episodes import EpisodeParts
from dp_prior.data.recorded.motion import MOST_FRAMES, MOST_NUMBERS, motion_of
from dp_prior.data.recorded.selection import ACTION
from dp_prior.data.recorded.trajectories import copied_numbers
from dp_prior.files.json_text import seal, unseal
from dp_prior.tensors.action_motion import ActionMotion
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior_streams.part_plan import PartPlan

log = logging.getLogger(__name__)

FIELDS = ("min", "max", "mean", "std", "q01", "q99")

MOST_COMPARED = 1024
"""Rows in which the action is compared with observations of the same step."""


class NumberGroups(Protocol):
    """Selected numbers of a data set in groups, each of which fits into memory.

    Attributes:
        plan: how the chosen episodes are divided into groups.
        digest: changes with the numbers.
        warnings: about the numbers that were read so far.
    """

    plan: PartPlan
    digest: str
    warnings: list[str]

    def group(self, group: int) -> Mapping[str, np.ndarray]:
        """The numbers of a group by the policy's name; a group may add the number of each step's instruction."""

    def load(self, name: str) -> bytes:
        """The content of a file that `keep` wrote.

        Raises:
            OSError: there is none.
        """

    def keep(self, name: str, content: bytes) -> None:
        """Write a file that stays."""

    def keep_tasks(self, tasks: np.ndarray, chosen: Chosen) -> None:
        """Keep the number of the instruction of every step of the chosen episodes."""


class KeyStatistics:
    """Statistics of one key, taken piece by piece: mean and deviation by sums, the quantiles exactly, from the least
    and the greatest hundredth of the values."""

    def __init__(self, count: int, shape: tuple[int, ...]):
        """Args: count: rows of all pieces."""
        self._total, self._shape, self._count = count, shape, 0
        width = math.prod(shape)
        self._tail = math.ceil(0.01 * max(count - 1, 0)) + 2
        self._mean, self._squares = np.zeros(width), np.zeros(width)
        self._low, self._high = np.zeros((0, width)), np.zeros((0, width))

    def add(self, rows: np.ndarray) -> None:
        """Take the next (n, *shape) rows."""
        if not len(rows):
            return
        values, count = rows.reshape(len(rows), -1).astype(np.float64), self._count
        mean = values.mean(0)
        squares, shift, n = ((values - mean) ** 2).sum(0), mean - self._mean, count + len(values)
        self._squares += squares + shift**2 * count * len(values) / n
        self._mean += shift * len(values) / n
        self._count = n
        both = np.concatenate([self._low, values])
        self._low = np.sort(both, axis=0)[: self._tail]
        both = np.concatenate([self._high, values])
        self._high = np.sort(both, axis=0)[-self._tail :]

    def result(self) -> Statistics:
        """The statistics of all rows."""
        deviation = np.sqrt(self._squares / self._total)
        columns = (self._low[0], self._high[-1], self._mean, deviation, self._quantile(0.01), self._quantile(0.99))
        return Statistics(self._total, *(column.reshape(self._shape) for column in columns))

    def _quantile(self, share: float) -> np.ndarray:
        """Interpolate a quantile like `np.quantile`."""
        position = share * (self._total - 1)
        place, rest = math.floor(position), position - math.floor(position)
        tail = self._low if share < 0.5 else self._high
        if share >= 0.5:
            place += len(tail) - self._total  # the tail ends with the greatest value
        below, above = tail[place], tail[min(place + 1, len(tail) - 1)]
        return above - (above - below) * (1 - rest) if rest >= 0.5 else below + (above - below) * rest


@dataclass(frozen=True)
class PassResult:
    """Results of one pass.

    Attributes:
        statistics: of the training rows, by key.
        digests: SHA-256 of all rows of each key.
        warnings: about the numbers of the files.
        motion: of the actions to train on.
    """

    statistics: dict[str, Statistics]
    digests: dict[str, str]
    warnings: list[str]
    motion: ActionMotion | None = None

    def encoded(self) -> bytes:
        """The content of a file."""
        tables = {}
        for key, statistics in self.statistics.items():
            values = {field: getattr(statistics, field) for field in FIELDS}
            tables[key] = {"count": statistics.count, "shape": list(statistics.min.shape)}
            tables[key] |= {field: array.ravel().tolist() for field, array in values.items()}
        motion = None if self.motion is None else self.motion.model_dump(mode="json")
        document = {"statistics": tables, "digests": self.digests, "warnings": self.warnings, "motion": motion}
        return seal({"format": 1, **document})

    @classmethod
    def decoded(cls, data: bytes) -> PassResult:
        """The result in the content of a file.

        Raises:
            ValueError, KeyError: the file is damaged.
        """
        document = unseal(data)
        statistics = {}
        for key, table in document["statistics"].items():
            arrays = (np.array(table[field], np.float64).reshape(table["shape"]) for field in FIELDS)
            statistics[key] = Statistics(table["count"], *arrays)
        motion = ActionMotion.from_json(json.dumps(document["motion"]), source="motion")
        return cls(statistics, document["digests"], document["warnings"], motion)


@dataclass(frozen=True)
class MotionParts:
    """What the motion of actions follows from.

    Attributes:
        sampled: (n, *shape) rows spread evenly over the training rows, by key.
        steps: (A,) largest difference of two consecutive actions of training; NaN without two.
        distances: (A, D) largest difference of each number of the action to each number of an observation, by key.
    """

    sampled: dict[str, np.ndarray]
    steps: np.ndarray
    distances: dict[str, np.ndarray]

    def motion(self, spec: Spec, actions: Statistics) -> ActionMotion:
        """The motion of all actions to train on; which number each answers is seen in the sampled rows."""
        of_samples = motion_of(spec, self.sampled, np.array([len(self.sampled[ACTION])]))
        entries: list[tuple[Any, ...]] = []
        for number, (low, answer) in enumerate(zip(of_samples.low, of_samples.answers, strict=True)):
            if low is None:
                entries.append((None,) * len(ActionMotion.model_fields))
                continue
            step = float(self.steps[number])
            distance = None if answer is None else float(self.distances[answer[0]][number, answer[1]])
            extremes = float(actions.min[number]), float(actions.max[number])
            entries.append((*extremes, None if np.isnan(step) else step, answer, distance))
        return ActionMotion(**dict(zip(ActionMotion.model_fields, zip(*entries, strict=True), strict=True)))


class StatisticsPass:
    """The result of the pass, from the cache, or from all parts in turn."""

    def __init__(self, parts: NumberGroups, episodes: EpisodeParts):
        """
        Raises:
            DataError: numbers cannot be trained on.
            UnreachableError: a part does not arrive.
        """
        train = hashlib.sha256(episodes.numbers["train"].astype("<i8").tobytes()).hexdigest()
        self._parts = parts
        self._name = f"statistics/{parts.digest[:24]}-{train[:24]}.json"
        self._motion_parts: MotionParts | None = None
        try:
            self.result = PassResult.decoded(parts.load(self._name))
        except (OSError, ValueError, KeyError) as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("all numbers are read again, since %s is damaged: %s", self._name, error)
            self.result, self._motion_parts = _Pass(parts, episodes).run()

    def motion(self, spec: Spec) -> ActionMotion:
        """The motion of the actions; afterwards the cache has the result, so that no other start reads the data set."""
        if self.result.motion is None:
            motion = self._motion_parts.motion(spec, self.result.statistics[ACTION])
            self.result = replace(self.result, motion=motion)
            self._parts.keep(self._name, self.result.encoded())
        return self.result.motion


class _KeyPass:
    """What is taken of one key, group by group.

    Attributes:
        statistics: of the training rows.
        digest: SHA-256 of all rows.
        compared, sampled: chosen rows of each group.
    """

    def __init__(self, count: int, shape: tuple[int, ...]):
        """Args: count: training rows; shape: of a row."""
        self.statistics, self.digest = KeyStatistics(count, shape), hashlib.sha256()
        self.compared: list[np.ndarray] = []
        self.sampled: list[np.ndarray] = []

    def add(self, array: np.ndarray, is_train: np.ndarray, compared: np.ndarray, sampled: np.ndarray) -> None:
        """Take the next group. Args: array: (n, *shape); is_train: (n,) bool; compared, sampled: places in it."""
        self.statistics.add(array[is_train])
        self.digest.update(np.ascontiguousarray(array, "<f4").data)
        self.compared.append(array[compared])
        self.sampled.append(array[sampled])


class _Pass:
    def __init__(self, parts: NumberGroups, episodes: EpisodeParts):
        self._parts, self._episodes = parts, episodes
        steps, _ = episodes.steps("train", episodes.stride)
        count = min(len(steps), MOST_FRAMES)
        self._train_rows = len(steps)
        self._sample_rows = steps[np.arange(count) * len(steps) // max(count, 1)]
        total = int(parts.plan.group_ends[-1])
        self._compared_rows = np.unique(np.linspace(0, total - 1, MOST_COMPARED).astype(np.int64))
        self._is_train = np.zeros(len(episodes.ends), bool)
        self._is_train[episodes.numbers["train"]] = True
        self._steps: np.ndarray | None = None
        self._distances: dict[str, np.ndarray] = {}

    def run(self) -> tuple[PassResult, MotionParts]:
        """Read every group once."""
        keys: dict[str, _KeyPass] = {}
        tasks: list[np.ndarray] = []
        plan = self._parts.plan
        for group in range(len(plan.groups)):
            arrays = dict(self._parts.group(group))
            if (numbers := arrays.pop(f"{TASK}.tasks", None)) is not None:
                tasks.append(np.array(numbers))
            begin, end = plan.span(group)
            places = plan.episodes(begin, end)
            is_train = np.repeat(self._is_train[places], np.diff(self._episodes.ends, prepend=0)[places])
            compared, sampled = _within(self._compared_rows, begin, end), _within(self._sample_rows, begin, end)
            for key, array in arrays.items():
                if key not in keys:
                    keys[key] = _KeyPass(self._train_rows, array.shape[1:])
                keys[key].add(array, is_train, compared, sampled)
            self._add_motion(arrays, places, begin, is_train)
        if tasks:
            self._parts.keep_tasks(np.concatenate(tasks), self._episodes.chosen)
        order = np.argsort(np.argsort(self._sample_rows, kind="stable"), kind="stable")
        rows_compared = {key: np.concatenate(of_key.compared) for key, of_key in keys.items()}
        result = PassResult(
            {key: of_key.statistics.result() for key, of_key in keys.items()},
            {key: of_key.digest.hexdigest() for key, of_key in keys.items()},
            [*self._parts.warnings, *copied_numbers(rows_compared)],
        )
        samples = {key: np.concatenate(of_key.sampled)[order] for key, of_key in keys.items()}
        return result, MotionParts(samples, self._steps, self._distances)

    def _add_motion(
        self, arrays: Mapping[str, np.ndarray], places: np.ndarray, begin: int, is_train: np.ndarray
    ) -> None:
        """Take the largest steps of the actions, and their largest distances to observed numbers."""
        actions, stride = arrays[ACTION], self._episodes.stride
        if self._steps is None:
            self._steps = np.full(actions.shape[1], np.nan, np.float32)
        lengths = np.diff(self._episodes.ends, prepend=0)
        for place in places[self._is_train[places]].tolist():
            end = int(self._episodes.ends[place]) - begin
            rows = actions[end - int(lengths[place]) : end]
            if len(rows) > stride:
                self._steps = np.fmax(self._steps, np.abs(rows[stride:] - rows[:-stride]).max(0))
        values = np.asarray(actions[is_train])
        for key, array in arrays.items():
            if key == ACTION or array.ndim != 2 or array.shape[1] > MOST_NUMBERS or not len(values):
                continue
            observed = np.asarray(array[is_train])
            furthest = np.stack([np.abs(values[:, [number]] - observed).max(0) for number in range(values.shape[1])])
            self._distances[key] = np.maximum(self._distances.get(key, furthest), furthest)


def _within(rows: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The rows from `begin` on and before `end`, as places in this range."""
    return rows[(rows >= begin) & (rows < end)] - begin
