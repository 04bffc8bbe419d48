"""The camera of Push-T: gym-pusht's own picture of the scene, as an observation and of recorded states."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format

from dp_prior.durable import replacing

RENDERED_AT_ONCE = 256


def make_camera_env(size: tuple[int, int], render_size: int) -> Any:
    """A PushTEnv whose observation is {"state": (5,), "camera": (*size, 3) uint8}.

    It renders what the policy sees, enlarged by a whole number to about `render_size`.

    Args:
        size: height and width.

    Raises:
        ImportError: gym-pusht is missing.
    """
    from gym_pusht.envs import PushTEnv

    class CameraEnv(PushTEnv):
        def get_obs(self) -> dict[str, np.ndarray]:
            return {"state": super().get_obs(), "camera": self._render()}

        def render(self) -> np.ndarray:
            factor = max(1, render_size // max(size))
            return self._render().repeat(factor, 0).repeat(factor, 1)

    return CameraEnv(
        obs_type="state", render_mode="rgb_array", observation_height=size[0], observation_width=size[1]
    )  # fmt: skip


class StateCamera:
    """Takes pictures of given states."""

    def __init__(self, size: tuple[int, int]):
        """Args: size: height and width."""
        self._env = make_camera_env(size, size[0])
        self._env.reset(seed=0)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """(n, 5) states, see `PushTConfig` -> (n, *size, 3) uint8."""
        return np.stack([self._take(state) for state in states.astype(np.float64)])

    def _take(self, state: np.ndarray) -> np.ndarray:
        env = self._env
        env.agent.position = state[:2].tolist()
        env.block.angle = float(state[4])  # first: it turns the block around its centre of gravity
        env.block.position = state[2:4].tolist()
        for body in (env.agent, env.block):
            env.space.reindex_shapes_for_body(body)
        return env._render()


def write_pictures(demonstrations: Path, out: Path, size: tuple[int, int]) -> int:
    """Copy demonstrations as `write_demonstrations` leaves them, with a picture of every state under the key `camera`.

    Returns:
        Number of frames.

    Raises:
        FileExistsError: there is such a file already.
        ImportError: gym-pusht is missing.
    """
    if out.exists():
        raise FileExistsError(f"{out} exists; choose another file, or delete it")
    with np.load(demonstrations, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    states, camera = arrays["state"], StateCamera(size)
    head = {"descr": "|u1", "fortran_order": False, "shape": (len(states), *size, 3)}
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as stream:
                npy_format.write_array(stream, array, allow_pickle=False)
        with archive.open("camera.npy", "w", force_zip64=True) as stream:
            npy_format.write_array_header_1_0(stream, head)
            for first in range(0, len(states), RENDERED_AT_ONCE):
                stream.write(camera(states[first : first + RENDERED_AT_ONCE]).tobytes())
    return len(states)
