"""The base class of the records of environments whose simulator runs in another Python."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import numpy as np

from dp_prior.config import Outside
from dp_prior.envs.env_record import EnvRecord
from dp_prior.envs.lockstep import Lockstep, ScoreRule
from dp_prior.envs.vector import SEED
from dp_prior.files.regular_files import expanded
from dp_prior_worlds.apart.process import SimulatorError, SimulatorProcess, versions_in

HOMES = "~/.local/share/dp_prior"
"""Folder of the simulators' own environments."""


class ApartRecord(EnvRecord):
    """An environment whose simulator runs in a process and a Python of its own, since its versions clash with those
    here. `program` is the simulator's side of the process."""

    program: ClassVar[Path]
    """A file for the other Python, which defines `create(settings)`, see docs/environments.md."""

    requires: ClassVar[str]
    """What to install into the other Python, as arguments of pip."""

    home: ClassVar[str]
    """Name of the folder below `HOMES` with the simulator's own environment, for a record without `python`."""

    distributions: ClassVar[tuple[str, ...]] = ()
    """Names of the distributions that simulate, whose versions belong to the environment's fingerprint."""

    steps_in_turn: ClassVar = True

    python: Annotated[str | None, Outside()] = None
    """Path of the interpreter that has the simulator, or of a script that starts the interpreter with its arguments;
    `~` is the home directory. null: `bin/python` in the simulator's folder of `~/.local/share/dp_prior`."""

    @property
    def interpreter(self) -> str:
        """The path of the interpreter that runs the simulator."""
        return str(expanded(Path(self.python or f"{HOMES}/{self.home}/bin/python")))

    @property
    def packages(self) -> Mapping[str, str]:
        """Versions of the packages that simulate, in the Python of the simulator."""
        return versions_in(self.interpreter, self.distributions)

    @abstractmethod
    def settings(self) -> Mapping[str, Any]:
        """Arguments of the program's `create`, as JSON."""

    def opened(
        self, max_steps: Callable[[Any], int], score: ScoreRule, start_keys: tuple[str, ...] = (SEED,)
    ) -> Lockstep:
        """Start the process, and create the environment of `n_envs` rows; see `SimulatorProcess`.

        Args:
            max_steps: steps of an episode, by what the simulator tells of itself.
            score: see `Lockstep`.
            start_keys: see `StartsAsRecorded`.
        """
        settings = {**self.settings(), "n_envs": self.n_envs}
        advice = (
            f"make an environment for the simulator: python3.11 -m venv {HOMES}/{self.home} && "
            f"{HOMES}/{self.home}/bin/python -m pip install {self.requires}; or name another interpreter with these "
            f"packages, 3.8 or later, in env.python"
        )
        process = SimulatorProcess(self.interpreter, self.program, settings, advice)
        description = process.description
        return Lockstep(
            [ApartWorld(process, row) for row in range(self.n_envs)],
            max_steps=max_steps(description),
            fps=description["fps"],
            obs_shapes={name: tuple(shape) for name, shape in description["obs_shapes"].items()},
            read_obs=lambda world: world.observed,
            draw=ApartWorld.draw,
            score=score,
            success_score=None,
            start_keys=start_keys,
            begin=ApartWorld.begin,
        )


class ApartWorld:
    """One row of a simulator in another process; the world is its own raw observation."""

    def __init__(self, process: SimulatorProcess, row: int):
        self._process, self._row = process, row
        self.observed: dict[str, np.ndarray] = {}
        low, high = process.description["low"], process.description["high"]
        self.action_space = SimpleNamespace(low=low, high=high, shape=low.shape, dtype=np.dtype(np.float64))

    def reset(self, seed: int) -> tuple[ApartWorld, dict[str, Any]]:
        """Reset to the start of a seed; returns this world and an empty info."""
        return self.begin({SEED: seed}), {}

    def begin(self, start: Mapping[str, Any]) -> ApartWorld:
        """Reset to a recorded start.

        Raises:
            ValueError: the simulator refuses the start.
        """
        try:
            self.observed = self._process.call("reset", row=self._row, start=dict(start))
        except SimulatorError as error:
            if error.refusal:
                raise ValueError(error.refusal) from error
            raise
        return self

    def step(self, action: np.ndarray) -> tuple[ApartWorld, float, bool, bool, dict[str, Any]]:
        """Execute an action; see gymnasium's `step`."""
        answer = self._process.call("step", row=self._row, action=action)
        self.observed = answer["obs"]
        return self, answer["reward"], answer["terminated"], answer["truncated"], answer["info"]

    @property
    def description(self) -> Mapping[str, Any]:
        """The simulator's description of itself."""
        return self._process.description

    def ask(self, method: str) -> Any:
        """Call a method of the simulator's program for the row."""
        return self._process.call(method, row=self._row)

    def draw(self) -> dict[str, np.ndarray]:
        """The pictures of the row by name."""
        return self._process.call("draw", row=self._row)

    def render(self) -> np.ndarray:
        """(side, side, 3) uint8 for films."""
        return self._process.call("render", row=self._row)

    def close(self) -> None:
        """End the process, which all rows share."""
        self._process.close()
