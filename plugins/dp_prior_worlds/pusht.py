"""Push-T: push a T onto its outline (Florence et al. 2021, Chi et al. 2023), simulated by the package gym-pusht."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from dp_prior.envs.env_record import EnvRecord
from dp_prior.envs.lockstep import Lockstep
from dp_prior.envs.vector import SEED
from dp_prior.files.entry_points import needing
from dp_prior_worlds.pusht_keypoints import KEYPOINTS, keypoints

if TYPE_CHECKING:
    from dp_prior.envs.env_record import Expert

OBS_SHAPES = {"agent_pos": (2,), "block_pos": (2,), "block_angle": (1,), "state": (5,), "keypoint": KEYPOINTS.shape}


class PushTConfig(EnvRecord):
    """Push-T observed as state or camera frames. Score: best coverage so far / 0.95, at most 1; 1 ends the episode."""

    type: Literal["pusht"] = "pusht"

    steps_in_turn: ClassVar = True

    score_range: ClassVar = (0.0, 1.0)

    modules: ClassVar = ("gym_pusht", "pymunk")
    """The modules that simulate, for the environment's fingerprint."""

    angles: ClassVar = {"state": (4,), "block_angle": (0,)}
    """Numbers of observations that are angles in radians, by key."""

    n_envs: int = Field(default=25, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=300, ge=1)
    """Control steps after which an unsolved episode is over; 10 per second."""

    render_size: int = Field(default=256, ge=16, le=4096)
    """Side of a rendered picture, in pixels."""

    embedding: bool = False
    """Add the observation `embedding`, computed from a picture of the state; see `dp-prior make-demonstrations --change
    embed`."""

    camera: tuple[Annotated[int, Field(ge=16, le=512)], Annotated[int, Field(ge=16, le=512)]] | None = None
    """Add the observation `camera`, a picture of the state with this height and width; 96 x 96 in the recorded image
    data sets."""

    def create(self) -> Lockstep:
        """Create the environment. Observations: agent_pos (2,) px, block_pos (2,) px, block_angle (1,) radians in
        [0, 2 pi); state (5,), these three concatenated in this order; keypoint (9, 2) px on the block, as in the
        published human demonstrations; with `embedding` also embedding (256,) of norm 1, with `camera` also camera
        (height, width, 3) uint8.

        Actions are target positions of the agent, (2,) px in [0, 512].
        """
        shapes, sensors, cameras = dict(OBS_SHAPES), {"keypoint": keypoints}, {}
        if self.embedding:
            from dp_prior_worlds.pusht_pictures import DIMENSION, PictureEncoder  # imports torch

            shapes["embedding"], sensors["embedding"] = (DIMENSION,), PictureEncoder()
        if self.camera is not None:
            from dp_prior_worlds.renderers.pusht import PushTRendererConfig

            shapes["camera"], cameras["camera"] = (*self.camera, 3), PushTRendererConfig().create(self.camera)
        read, draw = partial(read_state, sensors=sensors), partial(sensed, sensors=cameras)
        return self._lockstep(repeatable_env(), shapes, read, draw)

    def expert(self) -> Expert:
        """Create the expert of the demonstrations."""
        from dp_prior_worlds.pusht_expert import PushTExpert

        expert = PushTExpert()
        return lambda obs: expert.act(obs["state"])

    def _lockstep(
        self,
        env_type: Any,
        shapes: dict[str, tuple[int, ...]],
        read_obs: Callable[[Any], Any],
        draw: Callable[[Any], Any],
        start_keys: tuple[str, ...] = ("state",),
    ) -> Lockstep:
        size = {"visualization_width": self.render_size, "visualization_height": self.render_size}
        return Lockstep(
            [env_type(obs_type="state", render_mode="rgb_array", **size) for _ in range(self.n_envs)],
            max_steps=self.max_steps,
            fps=env_type.metadata["render_fps"],
            obs_shapes=shapes,
            read_obs=read_obs,
            draw=draw,
            score="max",
            success_score=None,
            start_keys=start_keys,
            begin=lambda env, start: env.begin(start),
        )


def repeatable_env() -> Any:
    """Create the class of gym-pusht's PushTEnv with rewards that repeat to the last bit.

    gym-pusht's own coverage sums over the block's shapes in the order of a set, which differs between processes.
    """
    with needing("pusht", "the Push-T environment needs gym-pusht"):
        from gym_pusht.envs.pusht import PushTEnv, pymunk_to_shapely

    class RepeatablePushTEnv(PushTEnv):
        _recorded: np.ndarray | None = None
        _goal_at: list[float] | None = None

        def _get_coverage(self) -> float:
            pose = self.goal_pose.tolist()
            if pose != self._goal_at:  # seldom; drawing the same goal took a fifth of a step
                self._goal_at = pose
                self._goal = pymunk_to_shapely(self.get_goal_pose_body(self.goal_pose), self._block_shapes)
                self._goal_area = self._goal.area
            block = pymunk_to_shapely(self.block, self._block_shapes)
            return self._goal.intersection(block).area / self._goal_area

        def begin(self, start: Mapping[str, Any]) -> Any:
            """Begin an episode at a recorded `state` (5,), at rest; returns the first observation.

            gym-pusht's own `reset_to_state` turns the block after placing it, and then simulates 0.01 s.
            """
            self._recorded = start["state"]
            try:
                self.reset(seed=int(start.get(SEED, 0)))
            finally:
                self._recorded = None
            return self.get_obs()

        def _set_state(self, state: np.ndarray) -> None:
            if self._recorded is None:
                return super()._set_state(state)
            x, y, block_x, block_y, angle = np.asarray(self._recorded, np.float64).tolist()
            self.agent.position = x, y
            self.block.angle = angle  # first, since it turns the block about its centre of gravity
            self.block.position = block_x, block_y
            self.space.reindex_shapes_for_body(self.block)

    return RepeatablePushTEnv


Sensors = Mapping[str, Callable[[np.ndarray], np.ndarray]]
"""Observations by name, each a function of (n, 5) float32 states."""


def read_state(state: np.ndarray, sensors: Sensors) -> dict[str, np.ndarray]:
    """Split gym-pusht's state (5,) by key, and add the observations of sensors."""
    rounded = _rounded(state)
    parts = {"agent_pos": rounded[0:2], "block_pos": rounded[2:4], "block_angle": rounded[4:5], "state": rounded}
    return parts | sensed(state, sensors)


def sensed(state: np.ndarray, sensors: Sensors) -> dict[str, np.ndarray]:
    """Compute the observations of sensors at gym-pusht's state (5,)."""
    return {name: sense(_rounded(state)[None])[0] for name, sense in sensors.items()}


def _rounded(state: np.ndarray) -> np.ndarray:
    """A state (5,) in float32."""
    rounded = state.astype(np.float32)
    rounded[4:] = reduced(state[4:])
    return rounded


def reduced(angle: np.ndarray) -> np.ndarray:
    """Reduce angles in radians to float32 in [0, 2 pi), twice, since rounding can give a full turn."""
    return (angle % (2 * np.pi)).astype(np.float32) % np.float32(2 * np.pi)
