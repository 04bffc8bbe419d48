"""The whole content of a data set, in any format: the source of a conversion."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.formats.choice import ALL_EPISODES, ChoiceConfig, ranges
from dp_prior.data.formats.chosen import Chosen
from dp_prior.data.formats.episode_store import TASK, EpisodeStore
from dp_prior.data.frames import FrameContents, FrameSource
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.depths import Depths


@dataclass(frozen=True)
class Recording:
    """Episodes with all their keys, by their new names.

    Attributes:
        chosen: the episodes that are converted.
        stride: rows of the source from one step to the next.
        ends: (E,) int64 exclusive end row of each episode, in steps.
        keys: key of numbers in the store, by the new name.
        cameras: frames of colours and of depth, by the new name; arrays of depth are numbers.
        fps: control steps per second; None if the source does not state the rate.
        tasks: instructions, by the numbers under `TASK`.
        names: names of the numbers of a vector, by the vector's name.
        robot_type: the robot's name in LeRobot; None if the source does not name the robot.
        pictures: whether cameras stay pictures, which keep every pixel, in a format that also has videos.
    """

    store: EpisodeStore
    chosen: Chosen
    stride: int
    ends: np.ndarray
    keys: Mapping[str, str]
    cameras: Mapping[str, FrameSource]
    fps: float | None
    tasks: list[str]
    names: Mapping[str, list[str]]
    robot_type: str | None
    pictures: bool = False

    @classmethod
    def of(
        cls,
        store: EpisodeStore,
        *,
        renames: Mapping[str, str],
        left_out: Collection[str],
        fps: float | None,
        choice: ChoiceConfig = ALL_EPISODES,
        stride: int = 1,
        robot_type: str | None = None,
        pictures: bool = False,
    ) -> Recording:
        """Open a data set.

        Args:
            renames: new names by key.
            left_out: keys that are not converted.
            fps: control steps per second, where the files lack the rate or are wrong.
            choice: choice of episodes.
            stride: keep every nth row of an episode, from the first row.
            robot_type: the robot's name; None for the source's name.
            pictures: see the class.

        Raises:
            DataError: every key that is neither numbers nor frames or cannot be read, in one report.
        """
        chosen, faults = choice.of(store)
        shapes = store.keys()
        problems = [*faults, *_without_steps(store, chosen)]
        unknown = sorted({*renames, *left_out} - {*shapes})
        problems += [f"has no key {key!r} to rename or leave out. {nearest_name(key, shapes)}" for key in unknown]
        contents = dict.fromkeys(store.depths(), Depths()) | dict.fromkeys(store.cameras(), COLOURS)
        keys, cameras = {}, {}
        for key in shapes:
            if key in left_out or key in store.counted:
                continue
            name = renames.get(key, TASK if key == store.text_key else key)
            if name in keys or name in cameras:
                problems.append(f"two keys would be named {name!r}")
            try:
                frames = _frames(store, key, name, chosen, contents.get(key))
            except DataError as error:
                of_key = [problem for problem in error.problems if problem not in faults]  # not of episodes
                problems += [f"key {key!r}: {problem}; leave it out with --leave-out" for problem in of_key]
                continue
            if frames is None:
                keys[name] = key
            else:
                cameras[name] = frames
        if problems:
            raise DataError(store.where, problems)
        metadata = store.metadata()
        rate = fps or metadata["fps"]
        return cls(
            store=store,
            chosen=chosen,
            stride=stride,
            ends=np.cumsum(-(-chosen.lengths // stride)),
            keys=keys,
            cameras=cameras,
            fps=rate / stride if rate and stride > 1 else rate,
            tasks=_tasks(store),
            names={renames.get(key, key): number_names for key, number_names in metadata["names"].items()},
            robot_type=robot_type or metadata["robot_type"],
            pictures=pictures,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """The facts beside the arrays; JSON-able."""
        robot = {} if self.robot_type is None else {"robot_type": self.robot_type}
        return {"fps": self.fps, "tasks": self.tasks, "names": dict(self.names), **robot}

    def read(self, name: str) -> np.ndarray:
        """Read the (N, *shape) numbers of a key, in the stored type.

        Raises:
            DataError: the key cannot be read, or lacks rows.
        """
        values, rows = self.chosen.read(self.store, self.keys[name]), int(self.chosen.ends[-1])
        if len(values) < rows:
            finding = f"has {len(values)} rows, the episodes {rows}; leave it out with --leave-out"
            raise DataError(self.store.locate(self.keys[name], 0), [finding])
        return values[:rows] if self.stride == 1 else values[:rows][self._is_step]

    def contents(self, name: str) -> FrameContents:
        """The kind of a camera's frames: colours or depth."""
        return Depths() if "depth" in self.cameras[name].describe() else COLOURS

    def frames(self, name: str, count: int | None = None) -> Iterator[np.ndarray]:
        """Read the (k, H, W, channels) frames of all steps in order: uint8 RGB, or depth in float32 metres.

        Args:
            count: frames in each block, fewer in the last block; None for a block per episode.
        """
        blocks = self._steps_of(self.cameras[name])
        total = int(self.ends[-1])
        lengths = np.diff(self.ends, prepend=0) if count is None else np.diff([*range(0, total, count), total])
        contents = self.contents(name)
        held = np.empty((0, *self.cameras[name].size, contents.channels), contents.dtype)
        for length in lengths.tolist():
            pieces, have = [held], len(held)
            while have < length:
                pieces.append(next(blocks))
                have += len(pieces[-1])
            joined = np.concatenate(pieces)
            held = joined[length:]
            yield joined[:length]
        for _ in blocks:  # the end of the blocks checks that there are no more frames than steps
            pass

    @property
    def _is_step(self) -> np.ndarray:
        """(n,) bool, which chosen rows are written."""
        return np.concatenate([np.arange(length) for length in self.chosen.lengths]) % self.stride == 0

    def _steps_of(self, source: FrameSource) -> Iterator[np.ndarray]:
        """Read the frames of a camera that are written, as blocks."""
        is_step, row = self._is_step, 0
        for part in _in_order(source):
            for block in source.read(part, 0):
                yield block if self.stride == 1 else block[is_step[row : row + len(block)]]
                row += len(block)


def _without_steps(store: EpisodeStore, chosen: Chosen) -> Iterator[str]:
    """Tell how to leave out the chosen episodes that have no steps."""
    empty = store.numbers()[chosen.numbers[chosen.lengths == 0]]
    if len(empty):
        yield f"dp-prior convert leaves them out by --without {','.join(map(str, ranges(empty)))}"


def _frames(
    store: EpisodeStore, key: str, name: str, chosen: Chosen, contents: FrameContents | None
) -> FrameSource | None:
    """Open the frames of a key, which has the new name `name`; None for a key of numbers, depth included.

    Args:
        contents: colours or depth; None for a key that holds no frames.

    Raises:
        DataError: the key holds neither numbers nor frames, or cannot be read.
    """
    if contents is not COLOURS and store.is_number(key):
        return None
    if contents is None:
        raise DataError(store.locate(key, 0), [f"holds {store.dtype(key)}, which is no number"])
    source = store.frames(key, chosen.recorded, contents, chosen.numbers)
    _check_order(source, name)
    return source


def _tasks(store: EpisodeStore) -> list[str]:
    """The instructions, in the order of their numbers 0, 1, ..."""
    texts = store.texts()
    if sorted(texts) != list(range(len(texts))):
        finding = f"tasks are numbered {sorted(texts)[:5]}, ...; expected 0, 1, ..."
        raise DataError(store.where, [finding])
    return [texts[number] for number in range(len(texts))]


def _in_order(source: FrameSource) -> list[Any]:
    return sorted(source.parts, key=lambda part: part.episodes[0])


def _check_order(source: FrameSource, name: str) -> None:
    """Raises DataError unless reading the files of a camera in sequence gives the episodes in order."""
    episodes = list(itertools.chain.from_iterable(part.episodes for part in _in_order(source)))
    if episodes != list(range(len(source.ends))):
        raise DataError(str(source.root), [f"files of {name!r} hold episodes in another order than the data"])
