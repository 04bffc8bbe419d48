"""What MuJoCo needs to draw is known before MuJoCo is asked."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.pixels.opengl import opengl
from tests.messages import naming

gl_context = pytest.importorskip("mujoco.gl_context", reason="NOT CHECKED: MuJoCo is not installed")
REMEDY = ("MUJOCO_GL", "egl", "libegl1", "osmesa", "libosmesa6", "videos 0")


def backend(module):
    return type("GLContext", (), {"__module__": module})


def test_windows_without_a_display_are_refused_before_anything_is_opened(monkeypatch):
    glfw = pytest.importorskip("glfw", reason="NOT CHECKED: glfw is not installed")
    monkeypatch.setattr(gl_context, "GLContext", backend("mujoco.glfw"))
    monkeypatch.setattr(glfw, "init", lambda: False)
    with pytest.raises(ConfigError, match=naming("display", *REMEDY)), opengl():
        pytest.fail("opened")
    monkeypatch.setattr(glfw, "init", lambda: True)
    with opengl():
        pass


def test_another_backend_needs_no_display_and_its_error_is_told(monkeypatch):
    monkeypatch.setattr(gl_context, "GLContext", backend("mujoco.egl"))
    with opengl():
        pass
    with pytest.raises(ConfigError, match=naming("no context", *REMEDY)), opengl():
        raise RuntimeError("no\ncontext")
