"""The camera of Push-T: gym-pusht's picture of a state, bit for bit.

A running simulator also marks the points of contact, a pixel or a few of a frame of 96 x 96. The state does not hold
these points, so they are missing here.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import ClassVar, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.files.entry_points import needing

SCREEN = 512  # side of gym-pusht's drawing, in px


class PushTRendererConfig(Config):
    """Pictures of Push-T as gym-pusht draws them."""

    type: Literal["pusht"] = "pusht"

    state_shape: ClassVar[tuple[int, ...]] = (5,)

    draws_goal: ClassVar[bool] = True

    def create(self, size: tuple[int, int]) -> PushTRenderer:
        """Create a renderer of states in the layout of `PushTConfig`: agent x, y and block x, y in px, block angle.

        Args:
            size: height and width of a frame.

        Raises:
            ImportError: gym-pusht is missing.
        """
        return PushTRenderer(size, draws_goal=self.draws_goal)

    def versions(self) -> dict[str, str]:
        """Versions of the packages that determine the pixels, by package.

        Raises:
            ImportError: gym-pusht is missing.
        """
        _need_gym_pusht()
        import cv2
        import pygame
        import pymunk

        return {
            "gym-pusht": version("gym-pusht"),
            "pymunk": pymunk.version,
            "pygame": pygame.version.ver,
            "opencv": cv2.__version__,
        }


class PushTWithoutGoalRendererConfig(PushTRendererConfig):
    """Pictures of Push-T without the goal, for policies that learn the goal from an instruction."""

    type: Literal["pusht_without_goal"] = "pusht_without_goal"

    draws_goal: ClassVar[bool] = False


class PushTRenderer:
    """See `Renderer`.

    Calls gym-pusht's own drawing code on gym-pusht's objects, but draws background and goal only once, and shrinks the
    screen buffer without a transposed copy: 0.48 ms per frame of 96 x 96 instead of 1.67 ms.
    """

    def __init__(self, size: tuple[int, int], *, draws_goal: bool = True):
        """Args: size: height and width of a frame."""
        _need_gym_pusht()
        import pygame
        from gym_pusht.envs import PushTEnv
        from gym_pusht.envs.pymunk_override import DrawOptions, to_pygame

        self._size = size
        self._env = env = PushTEnv(obs_type="state")
        env.reset(seed=0)
        self._background = pygame.Surface((SCREEN, SCREEN), depth=32)
        self._background.fill((255, 255, 255))
        goal = env.get_goal_pose_body(env.goal_pose)
        for shape in env.block.shapes if draws_goal else ():
            corners = [to_pygame(goal.local_to_world(corner), self._background) for corner in shape.get_vertices()]
            pygame.draw.polygon(self._background, pygame.Color("LightGreen"), corners)
        self._screen = self._background.copy()
        self._options = DrawOptions(self._screen)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """See `Renderer`."""
        return np.stack([self._draw(state) for state in states.astype(np.float32).astype(np.float64)])

    def _draw(self, state: np.ndarray) -> np.ndarray:
        import cv2

        env = self._env
        env.agent.position = state[:2].tolist()
        env.block.angle = float(state[4])  # first: this turns the block about its centre of gravity
        env.block.position = state[2:4].tolist()
        for body in (env.agent, env.block):
            env.space.reindex_shapes_for_body(body)
        self._screen.blit(self._background, (0, 0))
        env.space.debug_draw(self._options)
        pixels = np.frombuffer(self._screen.get_buffer(), np.uint8).reshape(SCREEN, SCREEN, 4)
        return cv2.cvtColor(cv2.resize(pixels, self._size[::-1]), cv2.COLOR_BGRA2RGB)


def _need_gym_pusht() -> None:
    with needing("pusht", "pictures of Push-T need gym-pusht"):
        import gym_pusht.envs  # noqa: F401
