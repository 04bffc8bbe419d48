"""Renderers: camera frames of recorded states, for the frame cache, and of live ones, for environments.

A record has `state_shape`, the shape of one state, `create(size)`, which returns a `Renderer`, and `versions()`, the
versions of the packages that decide about its pixels.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dp_prior.config import family
from dp_prior.renderers.pusht import PushTRendererConfig, PushTWithoutGoalRendererConfig

RendererConfig = family(
    "renderers", PushTRendererConfig, PushTWithoutGoalRendererConfig, needs=("create", "state_shape", "versions")
)


class Renderer(Protocol):
    """A frame is a function of its state in float32, whatever came before. One thread uses a renderer at a time."""

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """(n, *state_shape) -> (n, height, width, 3) uint8 RGB."""
