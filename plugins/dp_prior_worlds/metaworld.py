"""Meta-World: 50 tasks for a simulated Sawyer arm (Yu et al. 2020, arXiv:1910.10897), by the package metaworld.

Meta-World's gymnasium ids are not used: `reset(seed=...)` there draws one of 50 starts and ignores the seed.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dp_prior.envs.env_record import EnvRecord, Expert
from dp_prior.envs.lockstep import Lockstep
from dp_prior_worlds.goal_choice import INSTRUCTION, number_of
from dp_prior_worlds.metaworld_tasks import INSTRUCTIONS, SETS, instructed_tasks
from dp_prior_worlds.renderers.metaworld import (
    SCENE,
    MetaWorldCamera,
    MetaWorldRenderer,
    MetaWorldRendererConfig,
    environments,
    scene_of,
)

Side = Annotated[int, Field(ge=16, le=4096)]


class MetaWorldConfig(EnvRecord):
    """A Meta-World task observed as a state, or several with an instruction. Score: 1 if solved, which ends the
    episode, else 0."""

    type: Literal["metaworld"] = "metaworld"

    steps_in_turn: ClassVar = True

    score_range: ClassVar = (0.0, 1.0)

    modules: ClassVar = ("metaworld", "mujoco")
    """The modules that simulate, for the environment's fingerprint."""

    task: str | Annotated[tuple[str, ...], Field(min_length=1)]
    """Name of the task, for example `push-v3`; or several, `MT10`, `MT50` or a list of names: an episode's task is that
    at the place of its seed modulo their number, and the observation `instruction` tells it."""

    n_envs: int = Field(default=10, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=500, ge=1, le=500)
    """Control steps after which an unsolved episode is over; 80 per second. Meta-World's own limit is 500."""

    cameras: dict[MetaWorldCamera, tuple[Side, Side]] = {}
    """Cameras to observe, and their height and width; drawn only when a chunk is predicted."""

    shadows: bool = False
    """Draw shadows and reflections, as Meta-World's own pictures have them; five times the time on a CPU."""

    render_size: Side = 256
    """Side of a film's picture, in pixels; from the camera `corner2`."""

    def create(self) -> Lockstep:
        """Create the environment. Observations: state (39,): hand x, y, z in m, opening of the gripper in [0, 1],
        position and quaternion of two objects (zeros for a missing object); the same 18 numbers one step earlier; and
        the goal x, y, z in m. hand (4,), the first four numbers of the state; scene (184,), from which pictures are
        drawn, see `scene_of`; each camera (height, width, 3) uint8; and for several tasks instruction (), a text.

        Actions are (4,) in [-1, 1]: the hand's x, y, z in cm and the force that closes the gripper.

        Raises:
            ImportError: metaworld is missing.
            ValueError: a task is unknown, or named twice.
        """

        def camera(name: MetaWorldCamera, size: tuple[int, int]) -> MetaWorldRenderer:
            return MetaWorldRendererConfig(camera=name, shadows=self.shadows).create(size, self.n_envs)

        tasks = instructed_tasks(self.task)
        check_tasks(tasks or (self.task,))
        task_type = InstructedTask if tasks else SeededTask
        film = camera("corner2", (self.render_size, self.render_size))
        drawn = {name: camera(name, size) for name, size in self.cameras.items()}
        shapes = {"state": (39,), "hand": (4,), "scene": (SCENE,)}
        shapes |= {name: (*size, 3) for name, size in self.cameras.items()}
        return Lockstep(
            [task_type(tasks or self.task, film, self.max_steps) for _ in range(self.n_envs)],
            max_steps=self.max_steps,
            fps=80,
            obs_shapes=shapes | ({INSTRUCTION: ()} if tasks else {}),
            read_obs=_read,
            draw=partial(_draw, cameras=drawn),
            score="success",
            success_score=None,
        )

    def expert(self) -> Expert:
        """Meta-World's scripted policy of the task, or of the task that the instruction names.

        Raises: see `create`.
        """
        tasks = instructed_tasks(self.task) or (self.task,)
        check_tasks(tasks)
        policies = {INSTRUCTIONS[task]: scripted_policy(task) for task in tasks}
        return lambda obs: policies[str(obs.get(INSTRUCTION, INSTRUCTIONS[tasks[0]]))](obs["state"])


Observation = dict[str, Any]
"""Observations of a task: state (39,) float64, as an expert needs the numbers, scene (184,) float32, and of one of
several tasks instruction, a text."""


def _read(observed: Observation) -> dict[str, np.ndarray]:
    state = observed["state"].astype(np.float32)
    instruction = {INSTRUCTION: np.array(observed[INSTRUCTION])} if INSTRUCTION in observed else {}
    return {"state": state, "hand": state[:4], "scene": observed["scene"], **instruction}


def _draw(observed: Observation, cameras: Mapping[str, MetaWorldRenderer]) -> dict[str, np.ndarray]:
    return {name: draw(observed["scene"][None])[0] for name, draw in cameras.items()}


class SeededTask:
    """One environment of a task. The seed determines the start; the goal is observed; success ends the episode."""

    def __init__(self, task: str, film: MetaWorldRenderer | None = None, max_steps: int = 500):
        """
        Args:
            film: draws the pictures of `render`.
            max_steps: steps after which an episode is truncated. An expert that takes over needs more than Meta-World's
                500.

        Raises: see `task_class`.
        """
        env = task_class(task)()
        env._partially_observable = False
        del env.sawyer_observation_space  # a cached property, recomputed with the bounds of the goal
        env.seeded_rand_vec, env._freeze_rand_vec = True, False  # starts are drawn from the generator that `seed` seeds
        env._set_task_called, env.max_path_length = True, max_steps
        self._task, self._env, self._film = task, env, film
        self.action_space = env.action_space

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """Reset to the start of a seed; returns the observation and an empty info."""
        self._env.seed(seed)
        state, info = self._env.reset()
        return {"state": state, "scene": self._scene()}, info

    def step(self, action: np.ndarray) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute an action; returns observation, reward, whether the task is solved, whether `max_steps` have passed,
        and Meta-World's info."""
        state, reward, _, truncated, info = self._env.step(action)
        return {"state": state, "scene": self._scene()}, float(reward), info["success"] == 1.0, truncated, info

    def render(self) -> np.ndarray:
        """(size, size, 3) uint8 for films."""
        return self._film(self._scene()[None])[0]

    def close(self) -> None:
        """Close Meta-World's environment; cameras close with the last task."""
        self._env.close()

    def _scene(self) -> np.ndarray:
        return scene_of(self._task, self._env.model, self._env.data)


class InstructedTask:
    """One environment of several tasks: the seed determines task and start, and the instruction is observed."""

    def __init__(self, tasks: tuple[str, ...], film: MetaWorldRenderer | None = None, max_steps: int = 500):
        """See `SeededTask`."""
        self._tasks, self._open = tasks, partial(SeededTask, film=film, max_steps=max_steps)
        self._task, self._env = tasks[0], self._open(tasks[0])
        self.action_space = self._env.action_space  # of every task

    def reset(self, seed: int) -> tuple[Observation, dict[str, Any]]:
        """See `SeededTask.reset`."""
        self._turn_to(self._tasks[number_of(seed, len(self._tasks))])
        return self._with_instruction(*self._env.reset(seed))

    def step(self, action: np.ndarray) -> tuple[Any, ...]:
        """See `SeededTask.step`."""
        return self._with_instruction(*self._env.step(action))

    def render(self) -> np.ndarray:
        """See `SeededTask.render`."""
        return self._env.render()

    def close(self) -> None:
        """See `SeededTask.close`."""
        self._env.close()

    def _with_instruction(self, observed: Observation, *rest: Any) -> tuple[Any, ...]:
        return {**observed, INSTRUCTION: INSTRUCTIONS[self._task]}, *rest

    def _turn_to(self, task: str) -> None:
        """Open another task. One model is open at a time: 50 models in each row would take 1 GB, opening takes 0.2
        s."""
        if task != self._task:
            self._env.close()
            self._task, self._env = task, self._open(task)


def scripted_policy(task: str) -> Callable[[np.ndarray], np.ndarray]:
    """Meta-World's own policy of a task: state (39,) -> action (4,) in [-1, 1].

    Raises:
        ImportError: metaworld is missing.
    """
    from metaworld.policies import ENV_POLICY_MAP

    policy = ENV_POLICY_MAP[task]()

    def act(state: np.ndarray) -> np.ndarray:
        with warnings.catch_warnings():  # the policies warn of large actions at nearly every step
            warnings.simplefilter("ignore")
            action = policy.get_action(state.astype(np.float64))  # a copy, since the policies of doors write into it
        return np.clip(action, -1.0, 1.0)

    return act


def check_tasks(tasks: tuple[str, ...]) -> None:
    """Raise unless every task exists and is named once; see `task_class`."""
    sets = SETS.keys() & set(tasks)
    if sets:
        raise ValueError(f"the list of tasks has {min(sets)!r}, a set; give a set alone, or the names of its tasks")
    for task in tasks:
        task_class(task)
    twice = sorted({task for task in tasks if tasks.count(task) > 1})
    if twice:
        raise ValueError(f"the tasks of Meta-World name {' and '.join(map(repr, twice))} twice; name each task once")


def task_class(task: str) -> type:
    """Meta-World's class of a task.

    Raises:
        ImportError: metaworld is missing.
        ValueError: the task is unknown.
    """
    classes = environments()
    if task not in classes:
        names = [*classes, *SETS]
        close = difflib.get_close_matches(task, names, n=3, cutoff=0.4)
        hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else "Its tasks: " + ", ".join(names)
        raise ValueError(f"Meta-World has no task {task!r}. {hint}")
    return classes[task]
