"""Rollouts: a policy acts in an environment, with the same agent that runs it on a robot."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.config import Config
from dp_prior.data.samples.order import INSTRUCTION_CHARACTERS
from dp_prior.envs.vector import EnvStep, VectorEnv, check_obs, check_step
from dp_prior.evaluation.film import Film
from dp_prior.evaluation.motion import MEASURES, Motion, signals
from dp_prior.evaluation.samples import heartbeat, work_of
from dp_prior.files.left_behind import left_behind
from dp_prior.inference.vector_agent import VectorAgent
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.metrics import ReducingRanks
from dp_prior_client.onboard.range_watch import RangeLimits

if TYPE_CHECKING:
    from dp_prior.evaluation.view import CameraView
    from dp_prior.inference.instructions import Instructions

STAGE_CHARACTERS = 32
REPORTED_HALF_RANGES = 10.0
"""Half ranges of training beyond which an observation is reported: another unit leads there, a lost policy
seldom."""


def check_fit(env: VectorEnv, spec: Spec, config: Config) -> None:
    """Raises ValueError unless observations and actions have the policy's keys and shapes, also those taken away."""
    kind = config.env.type
    shapes = {key: tuple(shape[1:]) for key, shape in spec.cond_shapes.items() if key not in spec.previous_actions}
    wrong = [
        key
        for key, shape in shapes.items()
        if not _fits(env.obs_shapes.get(key), shape, key in spec.fits, spec.kind(key) == "text")
    ]
    if wrong:
        raise ValueError(
            f"the policy reads observations {shapes}, but environment {kind!r} gives {env.obs_shapes}; "
            f"they differ in {', '.join(wrong)}. Name the keys of the data as the environment names them"
        )
    if env.action_dim != spec.x_shape[-1]:
        raise ValueError(
            f"the policy's actions have {spec.x_shape[-1]} numbers, those of environment {kind!r} {env.action_dim}"
        )
    if config.blind or config.shuffle:
        from dp_prior.evaluation.blind import refuse_blinding, refuse_shuffling

        refuse_blinding(spec, config.blind)
        refuse_shuffling(spec, config.shuffle)


def _fits(env_shape: tuple[int, ...] | None, shape: tuple[int, ...], is_resized: bool, is_text: bool) -> bool:
    """Whether an environment's observation fits the policy. A camera whose frames are resized may have any size; a text
    that is embedded has shape ()."""
    is_picture = is_resized and env_shape is not None and len(env_shape) == 3 and env_shape[2] == shape[2]
    return env_shape == shape or is_picture or (is_text and env_shape == ())


@dataclass
class _Episodes:
    """The state of a block of n episodes.

    Attributes:
        scores, successes: (n,) as of the last step.
        steps: (n,) steps taken.
        solved_at: (n,) step of the first success; NaN before a success.
        stages: (n,) stage reached; empty texts without stages.
        broken: (n,) bool, True from the first action of the policy on that is not finite.
        done: (n,) bool, True from the end of the episode on.
    """

    scores: np.ndarray
    successes: np.ndarray
    steps: np.ndarray
    solved_at: np.ndarray
    stages: np.ndarray
    broken: np.ndarray
    done: np.ndarray

    @classmethod
    def begin(cls, n: int) -> _Episodes:
        """The state before the first step."""
        return cls(*np.zeros((3, n)), np.full(n, np.nan), np.full(n, ""), *np.zeros((2, n), dtype=bool))

    @property
    def active(self) -> np.ndarray:
        """(n,) bool, True for episodes that the policy still acts in."""
        return ~(self.done | self.broken)

    def progress(self, max_steps: int) -> float:
        """Share of the block that is over, from 0 to 1."""
        return float(np.where(self.active, self.steps / max_steps, 1.0).mean())

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Break the episodes whose action is not finite, and return the actions to execute.

        A broken episode has no score; the environment gets finite actions for its row until the block is over.
        """
        is_finite = np.isfinite(actions)
        self.broken |= ~self.done & ~is_finite.all(axis=1)
        return np.where(is_finite, actions, 0.0)

    def take(self, step: EnvStep) -> None:
        """Update the episodes from a step of the environment."""
        self.steps[~self.done] += 1
        self.scores, self.successes = (step.info[key].astype(np.float64) for key in ("score", "success"))
        self.solved_at = np.where((self.successes == 1) & np.isnan(self.solved_at), self.steps, self.solved_at)
        self.stages = step.info.get("stage", self.stages)
        self.done = step.done

    def rows(self, columns: np.dtype) -> np.ndarray:
        """(n,) rows with the outcome of each episode; a broken episode has no score and is not solved."""
        rows = np.zeros(len(self.steps), columns)
        rows["score"] = np.where(self.broken, np.nan, self.scores)
        rows["success"] = np.where(self.broken, self.successes * 0.0, self.successes)  # unknown stays unknown
        rows["solved_at"] = np.where(self.broken, np.nan, self.solved_at)
        rows["steps"], rows["stage"], rows["broken"] = self.steps, self.stages, self.broken
        return rows


class Rollouts:
    """Runs blocks of episodes of a policy in an open environment.

    Attributes:
        followed: the signals whose motion is measured.
        rate: control steps per second: those of the policy's data, or else of the environment.
    """

    def __init__(self, config: Config, env: VectorEnv, policy: Any):
        """
        Args:
            config: a `RolloutConfig`.
        """
        self._config, self._env, self._policy = config, env, policy
        self._instructions: Instructions | None = None
        if policy.spec.texts or config.instructions is not None:
            from dp_prior.inference.instructions import Instructions

            self._instructions = Instructions(policy.spec, config.instructions)
        self.followed = signals(env.obs_shapes, env.action_dim, policy.spec, config.env.angles)
        self.rate = float(policy.spec.fps or env.fps)

    @property
    def columns(self) -> np.dtype:
        """Of the rows of `run`: `solved_at` is the step of the first success, NaN without one, and `motion` has the
        measures of each signal; texts are empty where the environment gives none."""
        numbers = [(name, float) for name in ("score", "success", "steps", "solved_at")]
        others = [("broken", bool), ("stage", f"U{STAGE_CHARACTERS}"), ("instruction", f"U{INSTRUCTION_CHARACTERS}")]
        return np.dtype([("episode", int), *numbers, ("motion", float, len(self.followed) * len(MEASURES)), *others])

    def run(
        self,
        episodes: Sequence[int],
        film: Film | None = None,
        ranks: ReducingRanks | None = None,
        keep: Callable[[np.ndarray], object] = lambda actions: None,
    ) -> np.ndarray:
        """Run a block of episodes.

        Args:
            keep: receives the executed actions of every step.

        Returns:
            (len(episodes),) rows, see `columns`.

        Raises:
            ValueError: observations or actions of the environment do not fit the policy.
        """
        config, env, policy = self._config, self._env, self._policy
        check_fit(env, policy.spec, config)
        is_shown = film is not None and config.shows_cameras(policy.spec)
        view = _camera_view(policy, config.show) if is_shown else None
        agent = self._agent()
        agent.reset(episodes)
        env.is_watched = True
        first_obs = env.reset([config.first_seed + episode for episode in episodes])
        check_obs(first_obs, env, len(episodes))
        obs = self._seen(first_obs)
        self._await_instructions(obs, ranks)
        motion = Motion(self.followed, first_obs, env.max_steps, self.rate)
        block = _Episodes.begin(len(episodes))
        with film or Film(None, 0, env.fps) as film:
            film.add(partial(self._draw, view, obs), block.done, block.successes)
            while block.active.any():
                heartbeat(ranks)
                work_of(ranks).tell(block.progress(env.max_steps))
                actions = agent.act(obs, active=block.active)
                executed = block.executed(actions)
                keep(executed)
                n_filmed = film.episodes if is_shown and not block.done[: film.episodes].all() else 0
                if hasattr(env, "n_filmed"):  # it draws the filmed rows alone
                    env.n_filmed, n_filmed = n_filmed, 0
                env.is_watched = agent.watches or n_filmed > 0
                step = env.step(executed)
                check_step(step, env, len(episodes), int(block.steps.max()) + 1)
                step = EnvStep(*step)
                obs = self._seen(step.obs)
                motion.add(actions, step.obs)
                block.take(step)
                film.add(partial(self._draw, view, obs), block.done, block.successes)
        rows = block.rows(self.columns)
        rows["episode"], rows["motion"] = episodes, motion.measured(block.steps)
        rows["instruction"] = next((values for values in first_obs.values() if values.dtype.kind == "U"), "")
        return rows

    def _draw(self, view: CameraView | None, obs: dict[str, np.ndarray], rows: Sequence[int]) -> np.ndarray:
        """Pictures of some episodes: what the cameras show, or the environment's rendering without a view."""
        return self._env.render(rows) if view is None else view(obs, rows)

    def _await_instructions(self, obs: dict[str, np.ndarray], ranks: ReducingRanks | None) -> None:
        """Embed the instructions, whose model is loaded for it; a stop of the run leaves that behind."""
        if self._instructions is not None and any(values.dtype.kind == "U" for values in obs.values()):
            left_behind(partial(self._instructions.embedded, obs), partial(heartbeat, ranks))

    def _agent(self) -> VectorAgent:
        """Acts in a block of episodes as configured."""
        config = self._config
        return VectorAgent(
            self._policy,
            n_action_steps=config.n_action_steps,
            seed=config.noise_seed,
            sampler=config.sampler,
            warm_start=config.warm_start,
            merge=config.merge,
            delay=config.delay,
            instructions=self._instructions,
            guidance_scale=config.guidance_scale,
            ranges=RangeLimits(tell=REPORTED_HALF_RANGES),
        )

    def _seen(self, obs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The observations as the policy sees them, after shuffling and blinding."""
        config = self._config
        if not config.blind and not config.shuffle:
            return obs
        from dp_prior.evaluation.blind import blinded, shuffled

        return blinded(shuffled(obs, config.shuffle, config.noise_seed), self._policy, config.blind)


def enlarged(env: VectorEnv, spec: Spec) -> Iterator[str]:
    """A line for each camera whose frames, or the region of them, have fewer pixels than the policy takes.

    Raises:
        ValueError: a region has no pixel of its frames.
    """
    for key, fit in spec.fits.items():
        high, wide = env.obs_shapes[key][:2]
        region_size = tuple(side.stop - side.start for side in fit.box(high, wide))
        if math.prod(region_size) < math.prod(fit.size):
            region = "" if fit.region is None else f", of which the policy sees {region_size[0]} x {region_size[1]}"
            yield (
                f"the environment draws camera {key!r} with {high} x {wide} pixels{region}, enlarged to "
                f"{fit.size[0]} x {fit.size[1]}; draw at least {fit.drawn[0]} x {fit.drawn[1]}"
            )


def _camera_view(policy: Any, show: str | None) -> CameraView:
    """The view of a policy's cameras; imported for films of cameras alone."""
    from dp_prior.evaluation.view import CameraView

    return CameraView(policy, keypoints=show == "keypoints")
