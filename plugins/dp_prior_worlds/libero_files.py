"""LIBERO's own demonstrations: an HDF5 file for each task of a suite, which tells the instruction in its attributes.

LIBERO's writer executes an action before the cameras are read, so a row of a file holds an action, the simulator's
state before the action, and the observation after the action. A policy acts after an observation: rows here pair an
observation with the next action and the state at that time, and an episode is a row shorter than in the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dp_prior.data.errors import DataError, MissingError, UnreadableError, first_few
from dp_prior.data.formats.episode_store import TASK
from dp_prior.data.formats.grouped import GroupedStore, Header, Layout
from dp_prior.data.formats.hdf5_groups import Hdf5Episode
from dp_prior.data.formats.store_record import EpisodeStoreRecord
from dp_prior.data.found_files import by_number
from dp_prior.data.hdf5 import ENDINGS, attribute, group_at, groups_at, import_h5py, opened_hdf5
from dp_prior.files.regular_files import expanded
from dp_prior_worlds.libero import STEPS

ACTIONS, NAME = "actions", "task"
"""Keys of the actions, and of the name of the task, which an environment needs to begin in a recorded state."""

OBSERVED = ("obs/", "robot_states")
"""Beginnings of the keys that LIBERO's writer observes after the action of a row."""

CONVENTION, PROBLEM, TASK_FILE = "macros_image_convention", "problem_info", "bddl_file_name"
"""Attributes of `data`: how pictures stand, what the task is, and the file that defines the task."""

STILL = 1e-4
"""Length of an action of differences below which the arm stands still; OpenVLA's copies leave such steps out."""

RATE = 20
"""Control steps per second of all recordings."""

_SCENE = re.compile(r"^[A-Z_]+_SCENE\d+_")


class TaskFile(NamedTuple):
    """The attributes of a file."""

    path: Path
    name: str
    instruction: str
    is_inverted: bool
    """Whether the first row of a picture is the lowest, as OpenGL reads pictures."""
    is_late: bool
    """Whether observations follow the action of their row, as LIBERO's own writer records them."""
    demonstrations: list[str]
    suite: str
    """Name of the suite: the folder of the file that defines the task, or of this file."""


class LiberoStoreConfig(EpisodeStoreRecord):
    """The demonstrations of a LIBERO suite, one HDF5 file for each task, or one of these files. Pictures are turned
    upright, and `task_index` numbers the instructions in the files' attributes."""

    type: Literal["libero"] = "libero"

    path: Path
    """The folder with the files `*_demo.hdf5`, or one file; relative to the working directory, `~` is the home
    directory."""

    pictures: Literal["upright", "rotated", "opengl"] = "upright"
    """How pictures are read; an environment of the policy has the same setting, see `LiberoConfig.pictures`. rotated:
    as published policies see them, and vla-evaluation-harness sends them."""

    @classmethod
    def is_at(cls, path: Path) -> bool:
        """See `EpisodeStoreRecord`; decides by the first file."""
        try:
            return any(_tells_a_task(file) for file in _files(path)[:1])
        except (DataError, UnreadableError, ImportError):
            return False

    def create(self) -> LiberoStore:
        """Open the files and read their layout; arrays are read when asked for.

        Raises:
            ImportError: h5py is not installed.
        """
        import_h5py()
        path = expanded(self.path)
        if not path.exists():
            raise MissingError(str(path.absolute()), ["no such file or folder; check data.episodes.path"])
        files = [_task_file(file) for file in _files(path)]
        if not any(file.demonstrations for file in files):
            finding = "holds no file *_demo.hdf5 with groups data/demo_0 and so on"
            raise DataError(str(path), [f"{finding}; expected the folder of a suite, such as libero_spatial"])
        return LiberoStore(path, files, self.pictures)


class LiberoDemonstration(Hdf5Episode):
    """See `EpisodeArrays`; rows begin with the first observation, and end with the last that an action follows."""

    def __init__(self, task: TaskFile, number: int, width: int, group: str, pictures: str):
        """
        Args:
            number: of the task.
            width: characters of the longest name of a task.
            pictures: see `LiberoStoreConfig`.
        """
        super().__init__(task.path, group)
        self._task, self._number, self._name_type = task, number, np.dtype(f"<U{width}")
        rows = -1 if task.is_inverted != (pictures == "opengl") else 1
        columns = -1 if pictures == "rotated" else 1
        self._turn = np.s_[:, ::rows, ::columns]

    @cached_property
    def layout(self) -> Layout:
        """See `EpisodeArrays`; with the number and the name of the task."""
        headers = {key: self._shortened(header) for key, header in super().layout.items()}
        rows = headers.get(ACTIONS, ((0,), None))[0][:1]
        return {**headers, TASK: (rows, np.dtype(np.int64)), NAME: (rows, self._name_type)}

    def header(self, key: str) -> Header | None:
        """See `EpisodeArrays`."""
        if key in (TASK, NAME):
            return self.layout[key]
        header = super().header(key)
        return None if header is None else self._shortened(header)

    def rows(self, key: str, first: int, stop: int) -> np.ndarray:
        """See `EpisodeArrays`."""
        return np.concatenate([*self.blocks(key, first, stop, max(stop - first, 1))])

    def blocks(self, key: str, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
        """See `EpisodeArrays`; pictures stand as asked for."""
        if key in (TASK, NAME):
            value = self._number if key == TASK else self._task.name
            yield np.full(stop - first, value, self.layout[key][1])
            return
        later = int(self._task.is_late and not key.startswith(OBSERVED))
        for block in super().blocks(key, first + later, stop + later, step):
            yield block[self._turn] if block.ndim == 4 else block

    def _shortened(self, header: Header) -> Header:
        """The header without the row that is left out."""
        shape, dtype = header
        return ((max(shape[0] - 1, 0), *shape[1:]), dtype) if self._task.is_late and shape else header


class LiberoStore(GroupedStore):
    """See `GroupedStore`."""

    text_key = TASK

    counted = (NAME,)

    def __init__(self, path: Path, tasks: list[TaskFile], pictures: str):
        self._tasks, self._pictures = tasks, pictures
        width = max(len(task.name) for task in tasks)
        episodes = []
        self._places: dict[str, list[int]] = {}
        for number, task in enumerate(tasks):
            first = len(episodes)
            episodes += [LiberoDemonstration(task, number, width, group, pictures) for group in task.demonstrations]
            self._places.setdefault(task.name, []).extend(range(first, len(episodes)))
        super().__init__(path, "LIBERO HDF5", episodes, ACTIONS)

    def dtype(self, key: str) -> str:
        return "string" if key == NAME else super().dtype(key)

    def stored_metadata(self) -> dict[str, Any]:
        """The control rate, and the instructions of the tasks."""
        return {"fps": RATE, "tasks": [task.instruction for task in self._tasks]}

    def environment(self) -> dict[str, Any] | None:
        """See `EpisodeStore`; None for files of several suites, or of none that has steps of published evaluations."""
        suites = {task.suite for task in self._tasks}
        suite = suites.pop()
        if suites or suite not in STEPS:
            return None
        return {"type": "libero", "suite": suite, "pictures": self._pictures}

    def parts(self) -> dict[str, list[int]]:
        """See `EpisodeStore`; the demonstrations of each task."""
        return {name: places for name, places in self._places.items() if places}

    def describe(self) -> dict[str, Any]:
        """See `EpisodeStore`; with how each file is read."""
        read = [[task.path.name, task.is_inverted, task.is_late, len(task.demonstrations)] for task in self._tasks]
        return {**super().describe(), "files": read, "pictures": self._pictures}

    def remarks(self) -> list[str]:
        """See `EpisodeStore`; how the files differ from the rows that a policy learns, and where to test the policy."""
        lines = [
            f"{len(self._tasks)} tasks of LIBERO with instructions from the files' attributes; a task's name is a list "
            f"for data.choice and split.parts, and the environment libero has these tasks (docs/libero.md)"
        ]
        inverted = sum(task.is_inverted for task in self._tasks)
        late = sum(task.is_late for task in self._tasks)
        if inverted:
            lines.append(
                f"pictures of {inverted} of {len(self._tasks)} files are stored upside down, as OpenGL reads them, and "
                f'read as those of the environment libero with pictures "{self._pictures}"'
            )
        if late:
            lines.append(
                f"rows of {late} of {len(self._tasks)} files hold what was observed after their action; here an "
                f"observation has the action that follows, and an episode is a row shorter"
            )
        return [*lines, *self._still_steps()]

    def _still_steps(self) -> Iterator[str]:
        """Report steps whose action changes nothing."""
        actions = self.read(ACTIONS)
        begins = np.concatenate([[0], self.episode_ends[:-1]])
        turns = np.concatenate([[True], actions[1:, -1] != actions[:-1, -1]])
        turns[begins] = False  # the gripper of a first step has nothing to differ from
        is_still = (np.linalg.norm(actions[:, :-1], axis=1) < STILL) & ~turns
        if is_still.any():
            count, share = int(is_still.sum()), is_still.mean()
            longest = [name for name, places in self._places.items() if self._share(is_still, places) > 0.1]
            where = f", more than 10 % in {first_few(longest)}" if longest else ""
            yield (
                f"{count} of {len(actions)} actions ({share:.1%}) move nothing{where}; a policy learns to pause there. "
                f"OpenVLA's copies leave these steps out"
            )

    def _share(self, is_still: np.ndarray, places: list[int]) -> float:
        """The share of still steps of some episodes."""
        ends = [0, *self.episode_ends.tolist()]
        rows = [is_still[ends[place] : ends[place + 1]] for place in places]
        return float(np.concatenate(rows).mean()) if sum(map(len, rows)) else 0.0


def _files(path: Path) -> list[Path]:
    """The file, or the files of the tasks in a folder, by their names."""
    if path.is_dir():
        return sorted(file for file in path.glob("*_demo.*") if file.suffix in ENDINGS)
    return [path] if path.suffix in ENDINGS and path.is_file() else []


def _tells_a_task(path: Path) -> bool:
    """Whether a file has the attributes of LIBERO, or is a copy of such a file by its name."""
    with opened_hdf5(path, "its layout") as file:
        if not groups_at(file, "data/demo_*"):
            return False
        attributes = group_at(file, "data").attrs
        return {PROBLEM, TASK_FILE} <= {*attributes} or path.parent.name.startswith("libero_")


def _task_file(path: Path) -> TaskFile:
    """Read the attributes of a file.

    Raises:
        DataError: the file is damaged, or no file of demonstrations.
    """
    name = path.stem.removesuffix("_demo")
    with opened_hdf5(path, "its attributes") as file:
        data = group_at(file, "data")
        problem, convention = attribute(data, PROBLEM), attribute(data, CONVENTION)
        definition = attribute(data, TASK_FILE)
        groups = sorted(groups_at(file, "data/demo_*"), key=by_number)
    suite = path.parent.name
    if isinstance(definition, str) and definition:
        name, suite = Path(definition).stem, Path(definition).parent.name
    instruction = _SCENE.sub("", name).replace("_", " ")
    if problem is not None:
        try:
            instruction = json.loads(problem)["language_instruction"]
            instruction = (
                "".join(instruction).strip().strip('"')
            )  # parts of a text, or a text, as LIBERO's reader has it
        except (KeyError, TypeError, ValueError, RecursionError):
            finding = f"attribute {PROBLEM!r} of data is {problem!r:.80}; expected JSON with language_instruction"
            raise DataError(str(path), [finding]) from None
    return TaskFile(path, name, instruction, convention != "opencv", convention is not None, groups, suite)
