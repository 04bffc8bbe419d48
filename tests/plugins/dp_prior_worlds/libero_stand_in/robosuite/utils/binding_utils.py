"""Contexts of OpenGL."""

from types import SimpleNamespace


class MjRenderContextOffscreen:
    def __init__(self, sim, device_id):
        self.vopt = SimpleNamespace(geomgroup=[1, 1])
        sim._render_context_offscreen = self


class MjSim:
    """A simulation of a model; the stand-in has none."""
