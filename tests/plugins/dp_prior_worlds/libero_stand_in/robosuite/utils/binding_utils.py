"""Contexts of OpenGL."""

from types import SimpleNamespace


class GLContext:
    """What is drawn is in the context that is current, whichever simulation draws."""

    current = None

    def __init__(self, size):
        self.size = size

    def make_current(self):
        GLContext.current = self


class MjRenderContextOffscreen:
    def __init__(self, sim, device_id):
        self.vopt = SimpleNamespace(geomgroup=[1, 1])
        self.gl_ctx = GLContext(sim.model.nq)
        self.gl_ctx.make_current()
        sim._render_context_offscreen = self


class MjSim:
    """A simulation of a model; the stand-in has none."""
