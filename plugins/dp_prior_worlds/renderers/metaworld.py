"""Cameras of Meta-World's tasks: pictures of a scene by MuJoCo, with the meshes and cameras of the package metaworld.

A scene determines a picture of Meta-World: the task, the places of bodies and marks at the start, and MuJoCo's
positions. A frame depends on the scene alone, so frames of a recording and of a live task are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from importlib.metadata import version
from typing import Any, ClassVar, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.files.entry_points import needing
from dp_prior_worlds.opengl import open_renderer

MetaWorldCamera = Literal[
    "corner", "corner2", "corner2_near", "corner3", "corner4", "topview", "behindGripper", "gripperPOV"
]

MOVED: dict[str, tuple[str, tuple[float, float, float]]] = {"corner2_near": ("corner2", (0.75, 0.075, 0.7))}
"""Cameras of Meta-World that stand elsewhere than there, and where in m: `corner2` as LeRobot's environment and others
move it, so that the table fills the picture."""

UPSIDE_DOWN = ("corner", "corner2", "corner2_near", "corner3", "corner4")  # as Meta-World mounts them
BODIES, SITES, POSITIONS = 39, 16, 18  # largest numbers of a task
SCENE = 1 + 3 * BODIES + 3 * SITES + POSITIONS
TASKS_HELD = 10  # tasks that stay open at least, as many as MT10 has; a task takes 90 MB, and opening it 0.5 s


class MetaWorldRendererConfig(Config):
    """Pictures of Meta-World's tasks from the `scene` of `MetaWorldConfig`."""

    type: Literal["metaworld"] = "metaworld"

    camera: MetaWorldCamera = "corner4"
    """Camera of Meta-World; `corner2_near` is `corner2` where LeRobot's environment puts it. Pictures of those in a
    corner, which are mounted upside down, are turned upright."""

    shadows: bool = False
    """Draw shadows and reflections, as Meta-World's own pictures have them: five times the time on a CPU."""

    state_shape: ClassVar[tuple[int, ...]] = (SCENE,)

    def create(self, size: tuple[int, int], rows: int = 1) -> MetaWorldRenderer:
        """Create a renderer of scenes, see `scene_of`.

        Args:
            size: height and width of a frame.
            rows: most tasks that take turns, all of which stay open.

        Raises:
            ImportError: metaworld is missing.
        """
        return MetaWorldRenderer(self, size, rows)

    def stages(self, scenes: np.ndarray) -> np.ndarray:
        """(E,) the numbers of the tasks of (E, 184) scenes, so that a task opens once for all its episodes."""
        return scenes[:, 0]

    def versions(self) -> dict[str, str]:
        """Versions of the packages that determine the pixels, by package; the last bits depend on OpenGL's driver.

        Raises:
            ImportError: metaworld is missing.
        """
        environments()
        return {name: version(name) for name in ("metaworld", "mujoco")}


class MetaWorldRenderer:
    """See `Renderer`. OpenGL opens at the first picture, and belongs to the thread that draws."""

    def __init__(self, config: MetaWorldRendererConfig, size: tuple[int, int], rows: int):
        """See `MetaWorldRendererConfig.create`."""
        self._tasks = list(environments())
        self._opened = lru_cache(max(TASKS_HELD, rows))(partial(_Stage, config, size))

    def __call__(self, scenes: np.ndarray) -> np.ndarray:
        """See `Renderer`.

        Raises:
            ConfigError: see `open_renderer`.
            ValueError: a scene begins with no task's number.
        """
        return np.stack([self._opened(self._task(scene[0])).draw(scene) for scene in scenes.astype(np.float32)])

    def _task(self, number: float) -> str:
        if number not in range(len(self._tasks)):
            raise ValueError(
                f"a scene begins with {number:g}; expected the number of a task, 0 to {len(self._tasks) - 1}"
            )
        return self._tasks[int(number)]


class _Stage:
    """One task, opened for drawing."""

    def __init__(self, config: MetaWorldRendererConfig, size: tuple[int, int], task: str):
        import mujoco

        self._config = config
        self._model = model = mujoco.MjModel.from_xml_path(str(environments()[task].model_name.fget(None)))
        self._camera, place = MOVED.get(config.camera, (config.camera, None))
        if place is not None:
            model.cam_pos[model.camera(self._camera).id] = place
        self._data = mujoco.MjData(model)
        self._renderer = open_renderer(model, size, shadows=config.shadows, owner=self)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = config.shadows

    def draw(self, scene: np.ndarray) -> np.ndarray:
        """Draw a scene (184,) as (height, width, 3) uint8."""
        import mujoco

        rest = scene[1:]
        for array, room in _parts(self._model, self._data):
            array[...] = rest[: array.size].reshape(array.shape)
            rest = rest[room:]
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)
        self._renderer.update_scene(self._data, self._camera)
        frame = self._renderer.render()
        return frame[::-1, ::-1] if self._config.camera in UPSIDE_DOWN else frame


def _parts(model: Any, data: Any) -> tuple[tuple[np.ndarray, int], ...]:
    """The arrays that determine a picture of a task, each with its number of places in a scene."""
    return (model.body_pos, 3 * BODIES), (model.site_pos, 3 * SITES), (data.qpos, POSITIONS)


def scene_of(task: str, model: Any, data: Any) -> np.ndarray:
    """The scene (184,) float32 of a live task: its number in Meta-World's order, positions of bodies and of sites in
    their parents' frames in m, and MuJoCo's positions, each padded with zeros."""
    scene, begin = np.zeros(SCENE, np.float32), 1
    scene[0] = list(environments()).index(task)
    for array, room in _parts(model, data):
        scene[begin : begin + array.size] = array.ravel()
        begin += room
    return scene


def environments() -> Mapping[str, Any]:
    """Meta-World's classes by task, in its order.

    Raises:
        ImportError: metaworld is missing.
    """
    with needing("metaworld", "Meta-World is not installed"):
        from metaworld.env_dict import ALL_V3_ENVIRONMENTS
    return ALL_V3_ENVIRONMENTS
