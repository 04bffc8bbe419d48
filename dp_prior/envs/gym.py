"""Any registered gymnasium environment with Box actions; observations other than Boxes are dropped."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, JsonValue, field_validator

from dp_prior.config import Outside
from dp_prior.envs.env_record import EnvRecord
from dp_prior.envs.lockstep import SINCE_GYM_26, Lockstep, ScoreRule, first_observation
from dp_prior.envs.vector import SEED
from dp_prior.files.entry_points import needing


class GymConfig(EnvRecord):
    """A gymnasium environment by registered id; the package must be installed and must register the environment."""

    type: Literal["gym"] = "gym"

    id: str
    """Registered id, for example `Pendulum-v1`."""

    n_envs: int = Field(default=10, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int | None = Field(default=None, ge=1)
    """Control steps after which an episode is over; null for the registered limit."""

    make_arguments: Annotated[dict[str, JsonValue], Outside()] = {}
    """Further keyword arguments of the environment."""

    obs_key: str = "state"
    """Key of the observation if the environment returns a plain array. A Dict keeps its keys; entries other than Boxes
    are dropped."""

    score: ScoreRule = "sum"
    """The score of an episode: sum, max or last of its rewards, or success (1 or 0)."""

    success_score: float | None = None
    """Score from which an episode counts as solved; null reads `is_success` or `success` from the environment's info.
    The success rate is NaN if no episode's info has such an entry."""

    @field_validator("id")
    @classmethod
    def _registered_only(cls, id: str) -> str:
        if ":" in id:
            raise ValueError(
                f"{id!r} names a module to import, and a configuration never imports anything; write "
                f"{id.partition(':')[2]!r} and name the module with --import, see docs/environments.md"
            )
        return id

    @field_validator("make_arguments")
    @classmethod
    def _not_ours(cls, make_arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        for name in ("max_episode_steps", "render_mode", "disable_env_checker", "vectorization_mode"):
            if name in make_arguments:
                raise ValueError(f"{name!r} is set by this package; set a limit with the field max_steps")
        return make_arguments

    @property
    def score_range(self) -> tuple[float, float]:
        """Limits of an episode's score; rewards are unlimited."""
        return (0.0, 1.0) if self.score == "success" else (-math.inf, math.inf)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that simulate, for the environment's fingerprint: gymnasium, the environment's own module, and
        the usual engine."""
        entry = self.registration().entry_point
        maker = entry if isinstance(entry, str) else entry.__module__
        return "gymnasium", maker.partition(".")[0].partition(":")[0], "mujoco"

    def create(self) -> Lockstep:
        """Create the environment.

        Raises:
            ImportError: gymnasium is missing.
            ValueError: the id is unknown, no observation is a Box, the action is no one-dimensional Box, or its
                methods are those of the older gym.
        """
        with needing("gym", f"the environment {self.id!r} needs gymnasium"):
            import gymnasium
        probe = self._make(gymnasium, None)
        shapes, read_obs = _observations(gymnasium, self.id, probe.observation_space, self.obs_key)
        _check_actions(gymnasium, self.id, probe.action_space)
        taken = inspect.signature(probe.unwrapped.reset).parameters.values()
        if not any(parameter.name == "seed" or parameter.kind is parameter.VAR_KEYWORD for parameter in taken):
            raise ValueError(
                f"reset of environment {self.id!r} takes no seed; expected reset(seed, options), {SINCE_GYM_26}"
            )
        max_steps = self.max_steps or probe.spec.max_episode_steps
        metadata = probe.metadata
        probe.close()
        if max_steps is None:
            raise ValueError(f"environment {self.id!r} is registered without a limit of steps; give max_steps")
        mode = "rgb_array" if "rgb_array" in (metadata.get("render_modes") or ()) else None
        return Lockstep(
            [self._make(gymnasium, mode) for _ in range(self.n_envs)],
            max_steps=max_steps,
            fps=metadata.get("render_fps") or 30,
            obs_shapes=shapes,
            read_obs=read_obs,
            score=self.score,
            success_score=self.success_score,
            start_keys=(),
            begin=_begin,
        )

    def registration(self) -> Any:
        """gymnasium's registration of the id, which another process can register as well."""
        import gymnasium

        return gymnasium.spec(self.id)

    @property
    def steps_in_turn(self) -> bool:
        """Whether a worker process can create the environment: the id is registered by the name of a class."""
        entry_point = self.registration().entry_point
        return isinstance(entry_point, str) and not entry_point.startswith("__main__")

    def maker(self) -> Callable[[], Lockstep]:
        return functools.partial(_registered, self.registration(), self)

    def _make(self, gymnasium: Any, render_mode: str | None) -> Any:
        options = {"max_episode_steps": self.max_steps, "render_mode": render_mode}
        options = {name: value for name, value in options.items() if value is not None}  # not every class takes them
        try:
            return gymnasium.make(self.id, disable_env_checker=True, **options, **self.make_arguments)
        except (gymnasium.error.Error, TypeError) as error:
            raise ValueError(
                f"gymnasium cannot make environment {self.id!r}: {error} "
                f"Check the id and make_arguments, and name the package that registers it with --import, "
                f"see docs/environments.md."
            ) from error


def _registered(registration: Any, record: GymConfig) -> Lockstep:
    """Register the id as in the parent process, and create the environment."""
    import gymnasium

    gymnasium.registry[record.id] = registration
    return record.create()


def _begin(env: Any, start: dict[str, Any]) -> Any:
    """Reset to a recorded start, by its seed and further entries as `options`; returns the first observation."""
    seed = start.pop(SEED, None)
    return first_observation(env.reset(seed=None if seed is None else int(seed), options=start or None))


def _observations(
    gymnasium: Any, id: str, space: Any, obs_key: str
) -> tuple[dict[str, tuple[int, ...]], Callable[[Any], dict[str, np.ndarray]]]:
    """Shapes of observations by key, and the function that converts a raw observation."""
    spaces = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {obs_key: space}
    shapes = {key: tuple(box.shape) for key, box in spaces.items() if isinstance(box, gymnasium.spaces.Box)}
    if not shapes:
        raise ValueError(
            f"observations of environment {id!r} are {space}; expected a Box or a Dict with Boxes. "
            f"Wrap the environment, for example in gymnasium.wrappers.FlattenObservation, and register that."
        )

    def array(value: Any) -> np.ndarray:
        value = np.asarray(value)
        return value if value.dtype == np.uint8 else value.astype(np.float32)

    def read(raw: Any) -> dict[str, np.ndarray]:
        try:
            return {key: array(raw[key] if space is not spaces[key] else raw) for key in shapes}
        except (IndexError, KeyError, TypeError, ValueError) as error:
            finding = f"has the keys {list(raw)}" if isinstance(raw, dict) else f"is a {type(raw).__name__}"
            raise ValueError(
                f"an observation of environment {id!r} {finding} ({type(error).__name__}: {error}), but its "
                f"observation_space is {space}; let reset and step return what it says"
            ) from error

    return shapes, read


def _check_actions(gymnasium: Any, id: str, space: Any) -> None:
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise ValueError(
            f"actions of environment {id!r} are {space}; expected a one-dimensional Box: "
            f"a diffusion policy predicts vectors of real numbers"
        )
