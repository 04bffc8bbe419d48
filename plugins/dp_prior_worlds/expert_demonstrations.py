"""Demonstrations of scripted experts: disturbed episodes, and the files that hold the solved ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.data.files import load_npz, raise_refusal
from dp_prior.files.durable import creating, refuse_existing, replacing, try_writing
from dp_prior_worlds.goal_choice import instruction_rows, number_of
from dp_prior_worlds.recorders import interrupts_held, recorders

Observed = TypeVar("Observed")
Demonstrate = Callable[[int], tuple[np.ndarray, np.ndarray, bool]] | Callable[[int], tuple[np.ndarray, ...]]
"""Plays the episode of a seed; returns states (T, state), actions (T, action), the executed actions (T, action) if they
differ, then scenes (T, scene) if states do not determine pictures, and whether the episode is solved."""


class Disturbance(NamedTuple):
    """Shifts of executed actions, each of which begins at random and lasts some steps."""

    rate: float
    """Probability per step that a shift begins."""

    steps: tuple[int, int]
    """Fewest and most steps of a shift."""

    draw: Callable[[np.random.Generator], Callable[[np.ndarray], np.ndarray]]
    """Draws a shift: the executed action for the action that the expert chose."""


def disturbed_episode(
    observed: Observed,
    expert: Callable[[Observed], np.ndarray],
    step: Callable[[np.ndarray], Observed | None],
    disturbance: Disturbance | None,
    rng: np.random.Generator,
) -> tuple[list[Observed], list[np.ndarray], list[np.ndarray]]:
    """Play an episode in which the expert shows the way back from disturbances (Laskey et al. 2017, DART,
    arXiv:1703.09327): a disturbance shifts the executed actions, while the actions to learn are the expert's.

    Args:
        observed: the first observation.
        step: executes an action; returns the next observation, or None after the last step.
        disturbance: None executes what the expert chooses.

    Returns:
        The observations, the expert's actions and the executed actions, one of each per step.
    """
    observations, actions, executed, remaining = [], [], [], 0
    while observed is not None:
        observations.append(observed)
        actions.append(expert(observed))
        if disturbance is not None and remaining == 0 and rng.random() < disturbance.rate:
            remaining = rng.integers(*disturbance.steps, endpoint=True)
            shift = disturbance.draw(rng)
        executed.append(shift(actions[-1]) if remaining else actions[-1])
        remaining = max(remaining - 1, 0)
        observed = step(executed[-1])
    return observations, actions, executed


def record(
    path: str | Path,
    demonstrate: Demonstrate,
    episodes: int,
    seed: int,
    workers: int | None,
    instructions: Sequence[str] = (),
) -> int:
    """Write the first `episodes` solved episodes of the seeds from `seed` on as one compressed npz.

    With instructions: the first `episodes` solved episodes of each instruction, in the order of their seeds; see
    `number_of`. The file then has the array `task` (N,), each row's number among `instructions`.

    An episode depends only on its seed. If executed actions differ from the actions to learn, the file also has
    `executed` and the `seed` of each episode, from which the episodes can be replayed.

    Args:
        path: file to write at the end; see `write_episodes`.
        demonstrate: must be picklable.
        workers: number of processes, None for one per core; does not affect the result.

    Returns:
        Number of seeds tried.

    Raises:
        FileExistsError: the file exists; raised before an episode is played.
        OSError: the folder cannot be written; raised before an episode is played.
        RuntimeError: a process died.
    """
    path = Path(path)
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try_writing(path.parent)
    kinds = len(instructions) or 1
    solved, tried = solved_episodes(demonstrate, episodes, seed, workers, kinds)
    seeds = sorted(solved)
    columns = [*zip(*(solved[number] for number in seeds), strict=True)]  # of all episodes
    further = {name: np.concatenate(parts) for name, parts in zip(("executed", "scene"), columns[2:], strict=False)}
    if further:
        further["seed"] = np.array(seeds)
    if instructions:
        numbers = [number_of(number, kinds) for number in seeds]
        lengths = [len(states) for states in columns[0]]
        further |= instruction_rows("task", numbers, lengths, instructions)
    write_episodes(path, [*zip(*columns[:2], strict=True)], **further)
    return tried


def solved_episodes(
    demonstrate: Demonstrate, episodes: int, seed: int, workers: int | None, kinds: int
) -> tuple[dict[int, list[np.ndarray]], int]:
    """Play seeds from `seed` on until `episodes` are solved of each kind, the seed modulo `kinds`; see `record`.

    Returns:
        The arrays of the solved episodes, without whether they are solved, by seed; and the number of seeds tried.
    """
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; a set needs at least 1.")
    streams = [count(first, kinds) for first in range(seed, seed + kinds)]
    missing = [episodes] * kinds
    solved: dict[int, list[np.ndarray]] = {}
    tried = 0
    with recorders(workers) as pool:
        while any(missing):
            wave = []
            for stream, n_missing in zip(streams, missing, strict=True):
                wave += islice(stream, n_missing)
            wave.sort()
            with interrupts_held():  # processes start here
                played = pool.map(demonstrate, wave)
            for number, (*arrays, is_solved) in zip(wave, played, strict=True):
                tried += 1
                if is_solved:
                    solved[number] = arrays
                    missing[number_of(number - seed, kinds)] -= 1
    return solved, tried


def write_episodes(path: Path, episodes: Sequence[tuple[np.ndarray, np.ndarray]], **further: np.ndarray) -> None:
    """Write one compressed npz in the layout of a replay buffer: `state`, `action` and `episode_ends`.

    Args:
        path: file to write, durably. A missing directory is created.
        episodes: states (T, state) and actions (T, action) of each episode.
        further: further arrays, by name.

    Raises:
        FileExistsError: the file exists.
    """
    states, actions = zip(*episodes, strict=True)
    ends = np.cumsum([len(state) for state in states])
    arrays = {"state": np.concatenate(states), "action": np.concatenate(actions), "episode_ends": ends, **further}
    with creating(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def write_arrays(path: Path, **arrays: np.ndarray) -> None:
    """Write a compressed npz, durably; replaces an existing file."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez_compressed(file, **arrays)


def read_demonstrations(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read state (N, 5), action (N, 2) and episode ends of Push-T demonstrations.

    Raises:
        FileNotFoundError: the file does not exist.
        ConfigError: the file does not hold demonstrations of Push-T.
        UnreadableError: the system refused to read it.
    """
    expected = "expected demonstrations of Push-T as `dp-prior make-demonstrations` writes them"
    try:
        states, actions, ends = load_npz(path, ["state", "action", "episode_ends"]).values()
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # on damaged files, NumPy and zipfile raise all kinds
        raise_refusal(path, error)
        raise ConfigError(str(path), [f"cannot be read ({error or type(error).__name__}); {expected}"]) from None
    if states.ndim != 2 or states.shape[1] != 5 or actions.shape != (len(states), 2):
        shapes = f"has state {states.shape} and action {actions.shape}"
        raise ConfigError(str(path), [f"{shapes}; {expected}, with 5 and 2 numbers a step"])
    if ends.ndim != 1 or not len(ends) or ends[-1] != len(states) or (np.diff(ends, prepend=0) < 1).any():
        raise ConfigError(str(path), [f"has episode ends that do not rise to {len(states)}, its steps; {expected}"])
    return states, actions, ends
