"""Renderers draw camera frames from states: of recordings, for the frame cache, or of live environments.

A record has `state_shape`, the shape of one state; `create(size)`, which returns a `Renderer`; and `versions()`, the
versions of the packages that determine the pixels. A renderer that releases Python's interpreter lock may also have
`stages(states)`, from the first state of each episode to a number each: a renderer of its own, in a thread of its own,
draws the episodes of a number.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dp_prior.config import family

RendererConfig = family(
    "renderers",
    needs=("create", "state_shape", "versions"),
)


class Renderer(Protocol):
    """A frame depends on its state in float32 only, not on earlier calls. Use a renderer from one thread at a time."""

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """(n, *state_shape) -> (n, height, width, 3) uint8 RGB."""
