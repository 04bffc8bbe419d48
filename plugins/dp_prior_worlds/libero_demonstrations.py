"""Demonstrations of LIBERO's suites by a scripted expert, in files with the layout of LIBERO's own.

An episode depends on its seed, which also tells the task. LIBERO draws the starts, so no published start is among them.
As by LIBERO's writer, a row has an action, the simulator's state before and the observation after the action.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.hdf5 import import_h5py, written_hdf5
from dp_prior.files.durable import refuse_existing, temporary_directory, try_writing
from dp_prior_worlds.expert_demonstrations import Disturbance, disturbed_episode, solved_episodes
from dp_prior_worlds.goal_choice import number_of
from dp_prior_worlds.libero import LiberoConfig
from dp_prior_worlds.libero_expert import pick_and_place
from dp_prior_worlds.played_episodes import PlayedEpisodes
from dp_prior_worlds.robosuite_demonstrations import moved

TASKS = {"libero_object": None, "libero_spatial": (0, 1, 2, 3, 5, 6, 7, 8, 9)}
"""Tasks of the suites that the expert solves, see `LiberoConfig.tasks`: one object, picked up and placed. The walls of
a drawer leave its hand no room."""

CAMERAS = ("agentview_rgb", "eye_in_hand_rgb")
"""Cameras of LIBERO's own files."""

SIDE = 128
"""Height and width in pixels of the pictures of LIBERO's own files."""

NUMBERS = ("ee_states", "gripper_states", "joint_states")
"""Observations of the files, beside the pictures."""

ROWS = ("actions", "executed", "states", *(f"obs/{name}" for name in (*NUMBERS, *CAMERAS)))
"""Arrays of an episode, in the order of `demonstrate`."""

NOISE_RATE = 0.03  # probability per step of a disturbed episode that a disturbance begins
NOISE_STEPS = 3, 8  # fewest and most steps of a disturbance
NOISE = np.array([0.5, 0.5, 0.5, 0.05, 0.05, 0.1])  # standard deviation of the offset, in the units of an action
OPEN_RATE = 0.1  # probability that a disturbance opens the gripper

STORED = {"compression": "gzip", "compression_opts": 4}
"""Options of written pictures."""


def demonstrate(
    seed: int,
    suite: str,
    noise: float = 0.0,
    python: str | None = None,
    side: int = SIDE,
    tasks: tuple[int, ...] | None = None,
) -> tuple[np.ndarray, ...]:
    """Play one episode of a suite; the seed determines the task, the start and the disturbances.

    A disturbance shifts the executed action; see `disturbed_episode`.

    Args:
        noise: probability that the episode has disturbances.
        python: see `LiberoConfig`.
        side: height and width of the pictures; 0 draws none, and their arrays are empty.
        tasks: numbers of the tasks that take turns by seed; None for `TASKS`.

    Returns:
        The arrays (T, ...) of `ROWS`, and whether the task was solved within the steps of published evaluations.

    Raises:
        ConfigError: LIBERO cannot be started.
    """
    env, rng = _opened(suite, python, side, tasks or TASKS[suite]), np.random.default_rng(seed)
    world, rows, is_solved = env.envs[0], [], False
    disturbance = Disturbance(NOISE_RATE, NOISE_STEPS, _shift) if rng.random() < noise else None

    def step(action: np.ndarray) -> Mapping[str, Any] | None:
        nonlocal is_solved
        _, _, is_solved, _, _ = world.step(action)
        pictures = world.draw()
        empty = np.zeros((0, 0, 3), np.uint8)
        observed = [world.observed[name] for name in NUMBERS]
        rows.append([*observed, *(pictures.get(camera, empty) for camera in CAMERAS)])
        return None if is_solved or len(rows) >= env.max_steps else world.ask("scene")

    world.reset(seed)
    scenes, actions, executed = disturbed_episode(world.ask("scene"), pick_and_place, step, disturbance, rng)
    states = np.array([scene["states"] for scene in scenes])
    observations = [np.array(column) for column in zip(*rows, strict=True)]
    return np.array(actions), np.array(executed), states, *observations, np.array(is_solved)


def write_suite(
    path: Path,
    suite: str,
    episodes: int,
    seed: int = 0,
    workers: int | None = None,
    noise: float = 0.0,
    python: str | None = None,
    tasks: tuple[int, ...] | None = None,
) -> int:
    """Write a folder with a file for each of `TASKS`, or of `tasks`: the first `episodes` solved episodes of the task's
    seeds, from `seed` on. After an interruption the same call resumes after the stored episodes.

    Args:
        workers: number of processes, each with a process of LIBERO, None for one per core; does not affect the result.
        noise: share of disturbed episodes.

    Returns:
        Number of seeds tried.

    Raises:
        FileExistsError: the folder exists; raised before an episode is played.
        ConfigError: LIBERO cannot be started.
        ImportError: h5py is missing.
    """
    import_h5py()
    call = partial(demonstrate, suite=suite, noise=noise, python=python)
    played = SolvedEpisodes(call if tasks is None else partial(call, tasks=tasks), path)
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try_writing(path.parent)
    described = tasks_of(suite, python, tasks)
    try:
        solved, tried = solved_episodes(played, episodes, seed, workers, len(described))
        with temporary_directory(path) as folder:
            for number, (task, instruction) in enumerate(described):
                numbers = sorted(seed for seed in solved if number_of(seed, len(described)) == number)
                write_task(folder / f"{task}_demo.hdf5", suite, task, instruction, map(played.arrays, numbers))
            os.rename(folder, path)
        return tried
    finally:
        played.remove_written()


def tasks_of(suite: str, python: str | None = None, tasks: tuple[int, ...] | None = None) -> list[tuple[str, str]]:
    """The name and the instruction of each task of a suite that the expert solves, or of `tasks`.

    Raises:
        ConfigError: LIBERO cannot be started.
    """
    env = LiberoConfig(suite=suite, tasks=tasks or TASKS[suite], python=python, n_envs=1).create()
    try:
        description = env.envs[0].description
        return list(zip(description["tasks"], description["instructions"], strict=True))
    finally:
        env.close()


@dataclass(frozen=True)
class SolvedEpisodes(PlayedEpisodes):
    """Plays the episode of a seed and answers whether the task was solved alone; `arrays` reads what was played."""

    def __call__(self, seed: int) -> tuple[np.ndarray, ...]:
        """Whether the episode is solved."""
        return super().__call__(seed)[-1:]

    def arrays(self, seed: int) -> dict[str, np.ndarray]:
        """The arrays of a played episode by the names of `ROWS`."""
        return dict(zip(ROWS, super().__call__(seed)[:-1], strict=True))


def write_task(
    path: Path, suite: str, task: str, instruction: str, episodes: Iterator[Mapping[str, np.ndarray]]
) -> None:
    """Write the file of a task with the groups and attributes of LIBERO's writer, and `executed` where it differs from
    the actions to learn."""
    total, n_episodes = 0, 0
    with written_hdf5(path) as file:
        data = file.create_group("data")
        data.attrs["problem_info"] = json.dumps({"language_instruction": instruction})
        data.attrs["macros_image_convention"] = "opengl"
        data.attrs["bddl_file_name"] = f"{suite}/{task}.bddl"
        data.attrs["tag"] = "scripted expert of dp_prior"
        for arrays in episodes:
            group, length = data.create_group(f"demo_{n_episodes}"), len(arrays["actions"])
            for name, values in arrays.items():
                is_picture = name.removeprefix("obs/") in CAMERAS
                options = {"chunks": (1, *values.shape[1:]), **STORED} if is_picture else {}
                group.create_dataset(name, data=values, **options)
            solved_at = np.eye(length, dtype=np.uint8)[-1]
            group.create_dataset("rewards", data=solved_at)
            group.create_dataset("dones", data=solved_at)
            group.attrs["num_samples"] = length
            total, n_episodes = total + length, n_episodes + 1
        data.attrs["num_demos"], data.attrs["total"] = n_episodes, total


def _shift(rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray]:
    offset, opens = rng.normal(0.0, NOISE), rng.random() < OPEN_RATE
    return lambda action: moved(action, offset, opens)


@lru_cache(1)  # starting LIBERO takes seconds, and a start depends on its seed alone
def _opened(suite: str, python: str | None, side: int, tasks: tuple[int, ...] | None) -> Any:
    cameras = dict.fromkeys(CAMERAS, (side, side)) if side else {}
    return LiberoConfig(
        suite=suite,
        tasks=tasks,
        python=python,
        n_envs=1,
        starts="drawn",
        cameras=cameras,
        pictures="opengl",
    ).create()
