"""Cameras of gym-aloha's worlds: pictures of a state by MuJoCo, with the meshes and cameras of gym-aloha.

A frame is drawn from the state alone, so frames of a recording and of a live world are the same bit for bit. The state
has the left finger of each gripper; the right finger is drawn opposite.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.files.entry_points import needing
from dp_prior_worlds.opengl import open_renderer

AlohaTask = Literal["transfer_cube", "insertion"]
AlohaCamera = Literal["top", "angle", "front_close", "left_pillar", "right_pillar", "left_wrist", "right_wrist"]

OBJECTS = {"transfer_cube": 1, "insertion": 2}
JOINTS = 14  # of both arms, the left one first: six angles in rad, and the opening of the gripper
TIPS = 6  # x, y and z in m of the points between the fingertips, left first
NEAR_SIZES = {"transfer_cube": 6, "insertion": 15}  # how near objects are, see `AlohaWorld.near`
GRIPPERS = [6, 13]  # of the joints: 0 closed, 1 open
CLOSED, OPEN = 0.01844, 0.05800  # m, positions of a left finger that gym-aloha counts as 0 and 1
EPISODES_DRAWN = 10  # by one thread
QPOS = [0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14]  # MuJoCo's positions of the joints
FINGERS = [6, 14], [7, 15]  # MuJoCo's positions of the left and of the right fingers


class AlohaRendererConfig(Config):
    """Pictures of gym-aloha's worlds from the states of `AlohaConfig`."""

    type: Literal["aloha"] = "aloha"

    task: AlohaTask = "transfer_cube"
    """The world: with a cube, or with peg and socket."""

    camera: AlohaCamera = "top"
    """Camera of gym-aloha; `top` is that of the published results."""

    shadows: bool = False
    """Draw the shadows that gym-aloha's own pictures have: three times the time on a CPU."""

    @property
    def state_shape(self) -> tuple[int, ...]:
        """The joints, the fingertips, position and quaternion of each object, and how near they are."""
        return (JOINTS + TIPS + 7 * OBJECTS[self.task] + NEAR_SIZES[self.task],)

    def create(self, size: tuple[int, int]) -> AlohaRenderer:
        """Create a renderer of states in the layout of `AlohaConfig`.

        Args:
            size: height and width of a frame.

        Raises:
            ImportError: gym-aloha is missing.
        """
        return AlohaRenderer(self, size)

    def stages(self, states: np.ndarray) -> np.ndarray:
        """(E,) a number for every ten episodes, which are drawn together; opening a world for them takes one second."""
        return np.arange(len(states)) // EPISODES_DRAWN

    def versions(self) -> dict[str, str]:
        """Versions of the packages that determine the pixels, by package; the last bits depend on OpenGL's driver.

        Raises:
            ImportError: gym-aloha is missing.
        """
        need_aloha()
        return {name: version(name) for name in ("gym-aloha", "mujoco")}


class AlohaRenderer:
    """See `Renderer`. OpenGL opens at the first picture, and belongs to the thread that draws."""

    def __init__(self, config: AlohaRendererConfig, size: tuple[int, int]):
        """Args: size: height and width of a frame."""
        self._config, self._size = config, size
        self._renderer: Any = None

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """See `Renderer`.

        Raises:
            ConfigError: see `open_renderer`.
        """
        return np.stack([self._draw(state) for state in states.astype(np.float32)])

    def _draw(self, state: np.ndarray) -> np.ndarray:
        import mujoco

        self._renderer = self._renderer or self._opened()
        self._data.qpos[:] = np.concatenate([qpos_of(state[:JOINTS]), objects_of(state, self._config.task)])
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, self._config.camera)
        self._renderer.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = self._config.shadows
        return self._renderer.render()

    def _opened(self) -> Any:
        import mujoco

        self._model = load_model(self._config.task)
        self._data = mujoco.MjData(self._model)
        return open_renderer(self._model, self._size, shadows=self._config.shadows, owner=self)


def joints_of(qpos: np.ndarray) -> np.ndarray:
    """The joints (14,) of MuJoCo's positions."""
    joints = qpos[QPOS]
    joints[GRIPPERS] = (joints[GRIPPERS] - CLOSED) / (OPEN - CLOSED)
    return joints


def qpos_of(joints: np.ndarray) -> np.ndarray:
    """MuJoCo's positions (16,) of joints (14,), or of a joint command."""
    qpos = np.zeros(16)
    qpos[QPOS] = joints
    openings = CLOSED + joints[GRIPPERS].astype(np.float64) * (OPEN - CLOSED)
    qpos[FINGERS[0]], qpos[FINGERS[1]] = openings, -openings
    return qpos


def objects_of(state: np.ndarray, task: AlohaTask) -> np.ndarray:
    """The positions and quaternions (7,) or (14,) of the objects of a state."""
    return state[JOINTS + TIPS :][: 7 * OBJECTS[task]]


def load_model(task: AlohaTask) -> Any:
    """Load MuJoCo's model of a world of gym-aloha.

    Raises:
        ImportError: gym-aloha is missing.
    """
    need_aloha()
    import mujoco
    from gym_aloha.constants import ASSETS_DIR

    return mujoco.MjModel.from_xml_path(str(ASSETS_DIR / f"bimanual_viperx_{task}.xml"))


def need_aloha() -> None:
    """Raises ImportError, which names the extra, unless gym-aloha and MuJoCo are installed."""
    with needing("aloha", "the worlds of ALOHA need gym-aloha and MuJoCo"):
        import gym_aloha  # noqa: F401
        import mujoco  # noqa: F401
