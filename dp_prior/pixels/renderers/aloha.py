"""Cameras of gym-aloha's worlds: pictures of a state by MuJoCo, with the meshes and cameras of gym-aloha.

A frame is drawn from joint positions alone, so frames of a recording and of a live world are the same bit for bit.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.config.extras import needing

AlohaTask = Literal["transfer_cube", "insertion"]
AlohaCamera = Literal["top", "angle", "front_close", "left_pillar", "right_pillar", "left_wrist", "right_wrist"]

ARMS = 16  # joints of both arms, fingers included; those of the objects follow
OBJECTS = {"transfer_cube": 1, "insertion": 2}


class AlohaRendererConfig(Config):
    """Pictures of gym-aloha's worlds from the `qpos` that demonstrations have."""

    type: Literal["aloha"] = "aloha"

    task: AlohaTask = "transfer_cube"
    """The world: with a cube, or with peg and socket."""

    camera: AlohaCamera = "top"
    """Camera of gym-aloha; `top` is that of the published results."""

    shadows: bool = False
    """Draw the shadows that gym-aloha's own pictures have: three times the time on a CPU."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        """MuJoCo's joint positions: 16 of the arms, and position and quaternion of each object."""
        return (ARMS + 7 * OBJECTS[self.task],)

    def create(self, size: tuple[int, int]) -> AlohaRenderer:
        """A renderer of joint positions.

        Args:
            size: height and width of a frame.

        Raises:
            ImportError: gym-aloha is missing.
        """
        return AlohaRenderer(self, size)

    def versions(self) -> dict[str, str]:
        """Versions of the packages that determine the pixels, by package. OpenGL's driver does too, in the last bits.

        Raises:
            ImportError: gym-aloha is missing.
        """
        _need_aloha()
        return {name: version(name) for name in ("gym-aloha", "mujoco")}


class AlohaRenderer:
    """See `Renderer`. OpenGL is asked for at the first picture, and belongs to the thread that draws it."""

    def __init__(self, config: AlohaRendererConfig, size: tuple[int, int]):
        """Args: size: height and width of a frame."""
        import mujoco

        self._config, self._size = config, size
        self._model = load_model(config.task)
        self._data = mujoco.MjData(self._model)
        visual = self._model.vis
        visual.global_.offheight, visual.global_.offwidth = size
        visual.quality.shadowsize *= config.shadows
        self._renderer: Any = None

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """See `Renderer`.

        Raises:
            ValueError: there is no OpenGL here; the message names the variable and the packages.
        """
        return np.stack([self._draw(state) for state in states.astype(np.float32)])

    def close(self) -> None:
        """Release OpenGL's buffers."""
        if self._renderer is not None:
            self._renderer.close()

    def _draw(self, qpos: np.ndarray) -> np.ndarray:
        import mujoco

        self._renderer = self._renderer or self._opened()
        self._data.qpos[:] = qpos
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, self._config.camera)
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = self._config.shadows
        return self._renderer.render()

    def _opened(self) -> Any:
        import mujoco

        try:
            return mujoco.Renderer(self._model, *self._size)
        except Exception as error:  # of MuJoCo, PyOpenGL or glfw, by platform
            raise ValueError(
                f"MuJoCo cannot render here ({error}). Without a display set the environment variable MUJOCO_GL to egl "
                f"(Debian: libegl1 libegl-mesa0 libgl1-mesa-dri) or osmesa (libosmesa6), see docs/environments.md"
            ) from error


def load_model(task: AlohaTask) -> Any:
    """MuJoCo's model of a world of gym-aloha.

    Raises:
        ImportError: gym-aloha is missing.
    """
    _need_aloha()
    import mujoco
    from gym_aloha.constants import ASSETS_DIR

    return mujoco.MjModel.from_xml_path(str(ASSETS_DIR / f"bimanual_viperx_{task}.xml"))


def _need_aloha() -> None:
    with needing("aloha", "the worlds of ALOHA need gym-aloha and MuJoCo"):
        import gym_aloha  # noqa: F401
        import mujoco  # noqa: F401
