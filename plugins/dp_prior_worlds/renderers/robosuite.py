"""Pictures of a live simulation of robosuite, as in its data sets, and the import of the package.

Pictures are drawn from the simulation rather than from a recorded state, since each start has another model.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from dp_prior.files.entry_points import needing
from dp_prior_worlds.opengl import REMEDY, open_renderer


class RobosuiteStage:
    """One start, opened for drawing. Pictures are robosuite's, but upright, as in robomimic's files."""

    def __init__(self, sim: Any, size: tuple[int, int]):
        """
        Args:
            sim: robosuite's simulation.
            size: height and width of a picture.

        Raises:
            ConfigError: see `open_renderer`.
        """
        import mujoco

        self._data = sim.data._data
        self._renderer = open_renderer(sim.model._model, size, shadows=True, owner=self)
        self._options = mujoco.MjvOption()
        self._options.geomgroup[0] = 0  # shapes of collision; group 1 has the visible shapes

    def draw(self, camera: str) -> np.ndarray:
        """(height, width, 3) uint8."""
        self._renderer.update_scene(self._data, camera, self._options)
        return self._renderer.render()


def need_robosuite() -> Any:
    """Import robosuite, without its messages about its own set-up.

    Raises:
        ImportError: robosuite is missing; the message names the extra.
        ValueError: the library of EGL is missing, which robosuite opens when imported.
    """
    logging.getLogger("robosuite_logs").addFilter(_is_news)
    with needing("robosuite", "robosuite is not installed"):
        try:
            import robosuite
        except AttributeError as error:  # of PyOpenGL: robosuite opens EGL's library at once
            raise ValueError(f"robosuite cannot be imported here without EGL's library ({error}). {REMEDY}") from error
        import mujoco  # noqa: F401
    return robosuite


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a message of robosuite's is about more than its own set-up."""
    return record.levelno >= logging.ERROR
