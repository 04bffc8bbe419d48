"""Push-T: push a T onto its outline (Florence et al. 2021, Chi et al. 2023), simulated by the package gym-pusht."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from dp_prior.config import Config
from dp_prior.envs.lockstep import Lockstep
from dp_prior.envs.pusht_camera import make_camera_env
from dp_prior.envs.pusht_pictures import DIMENSION, PictureEncoder

_OBS_SHAPES = {"agent_pos": (2,), "block_pos": (2,), "block_angle": (1,), "state": (5,)}


class PushTConfig(Config):
    """Push-T as a state or camera frames. Score: best coverage so far / 0.95, at most 1, with which an episode ends."""

    type: Literal["pusht"] = "pusht"

    n_envs: int = Field(default=25, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=300, ge=1)
    """Control steps after which an unsolved episode is over; 10 per second."""

    render_size: int = Field(default=256, ge=16, le=4096)
    """Side of a rendered picture, in pixels."""

    embedding: bool = False
    """Add the observation `embedding`, of a picture of the state; see `dp-prior embed-demonstrations`."""

    camera: tuple[Annotated[int, Field(ge=16, le=512)], Annotated[int, Field(ge=16, le=512)]] | None = None
    """Gives the observation `camera` too: the picture of the scene, of this height and width, as in the recorded
    image data sets (96 x 96). Films then show it instead of the larger picture."""

    def create(self) -> Lockstep:
        """The environment. Observations: agent_pos (2,) px, block_pos (2,) px, block_angle (1,) radians in [0, 2 pi),
        and state (5,), which is the three in this order; with `embedding` also embedding (256,) of length 1, with
        `camera` also camera (height, width, 3) uint8.

        Actions are target positions of the agent, (2,) px in [0, 512].
        """
        try:
            from gym_pusht.envs import PushTEnv
        except ImportError as error:
            raise ImportError(
                f'the Push-T environment needs gym-pusht ({error}): pip install "dp_prior[pusht]"'
            ) from error
        shapes = _OBS_SHAPES | ({"embedding": (DIMENSION,)} if self.embedding else {})
        read = _read_embedding(PictureEncoder()) if self.embedding else _read_state
        if self.camera is not None:
            shapes |= {"camera": (*self.camera, 3)}
            return self._lockstep(
                [make_camera_env(self.camera, self.render_size) for _ in range(self.n_envs)],
                PushTEnv.metadata["render_fps"],
                shapes,
                lambda raw: {**read(raw["state"]), "camera": raw["camera"]},
            )
        size = {"visualization_width": self.render_size, "visualization_height": self.render_size}
        envs = [PushTEnv(obs_type="state", render_mode="rgb_array", **size) for _ in range(self.n_envs)]
        return self._lockstep(envs, PushTEnv.metadata["render_fps"], shapes, read)

    def _lockstep(
        self,
        envs: list[Any],
        fps: float,
        obs_shapes: dict[str, tuple[int, ...]],
        read_obs: Callable[[Any], dict[str, np.ndarray]],
    ) -> Lockstep:
        return Lockstep(
            envs,
            max_steps=self.max_steps,
            fps=fps,
            obs_shapes=obs_shapes,
            read_obs=read_obs,
            score="max",
            success_score=None,
        )


def _read_state(state: np.ndarray) -> dict[str, np.ndarray]:
    """gym-pusht's state (5,) by key; the angle is reduced again, since rounding to float32 can give a full turn."""
    state = state.astype(np.float32)
    state[4] %= np.float32(2 * np.pi)
    return {"agent_pos": state[0:2], "block_pos": state[2:4], "block_angle": state[4:5], "state": state}


def _read_embedding(encode: PictureEncoder) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """`_read_state`, with the embedding of a picture of the state added."""

    def read(state: np.ndarray) -> dict[str, np.ndarray]:
        obs = _read_state(state)
        return {**obs, "embedding": encode(obs["state"][None])[0]}

    return read
