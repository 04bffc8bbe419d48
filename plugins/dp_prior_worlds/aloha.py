"""ALOHA in simulation: two arms hand over a cube, or put a peg into a socket (Zhao et al. 2023, arXiv:2304.13705), with
the worlds of the package gym-aloha."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from dp_prior.envs.env_record import EnvRecord, Expert
from dp_prior.envs.lockstep import Lockstep
from dp_prior_worlds.aloha_expert import AlohaExpert
from dp_prior_worlds.aloha_world import AlohaWorld
from dp_prior_worlds.renderers.aloha import (
    JOINTS,
    NEAR_SIZES,
    OBJECTS,
    TIPS,
    AlohaCamera,
    AlohaRenderer,
    AlohaRendererConfig,
    AlohaTask,
    load_model,
)

Side = Annotated[int, Field(ge=16, le=4096)]


class AlohaConfig(EnvRecord):
    """Two arms that hand over a cube, or insert a peg. Score: the farthest stage reached, 0.25 each; 1 is solved and
    ends the episode."""

    type: Literal["aloha"] = "aloha"

    steps_in_turn: ClassVar = True

    score_range: ClassVar = (0.0, 1.0)

    modules: ClassVar = ("gym_aloha", "mujoco")
    """The modules that simulate, for the environment's fingerprint."""

    task: AlohaTask = "transfer_cube"
    """`transfer_cube` or `insertion`."""

    n_envs: int = Field(default=10, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=400, ge=1)
    """Control steps after which an unsolved episode is over; 50 per second. The published results have 400."""

    cameras: dict[AlohaCamera, tuple[Side, Side]] = {}
    """Cameras to observe, and their height and width; drawn only when a chunk is predicted."""

    shadows: bool = False
    """Draw shadows, as the published pictures have them; three times the time on a CPU."""

    render_size: int = Field(default=240, ge=16, le=3072)
    """Height of a film's picture, in pixels; 4:3, from the camera `angle`."""

    def create(self) -> Lockstep:
        """Create the environment. Observations: agent_pos (14,), six joint angles in rad and the gripper opening in
        [0, 1] of each arm, left first; tips (6,), positions in m of the points between the fingertips; objects (7,) or
        (14,), position in m and quaternion of the cube, or of peg and socket; near (6,) or (15,), tanh of the offsets
        from the fingertips to each object, in units of 5 cm and in each gripper's frame, and of the offset from socket
        to peg; state (33,) or (49,), these four in this order; and each camera (height, width, 3) uint8.

        Actions are (14,) positions for the joints in the same layout.

        Raises:
            ImportError: gym-aloha is missing.
            ValueError: cameras are observed on a machine without OpenGL.
        """

        def camera(name: AlohaCamera, size: tuple[int, int]) -> AlohaRenderer:
            return AlohaRendererConfig(task=self.task, camera=name, shadows=self.shadows).create(size)

        drawn = {name: camera(name, size) for name, size in self.cameras.items()}
        model = load_model(self.task)
        film = camera("angle", (self.render_size, self.render_size * 4 // 3))
        parts = {"agent_pos": JOINTS, "tips": TIPS, "objects": 7 * OBJECTS[self.task], "near": NEAR_SIZES[self.task]}
        numbers = {"state": sum(parts.values()), **parts}
        return Lockstep(
            [AlohaWorld(self.task, model, drawn, film) for _ in range(self.n_envs)],
            max_steps=self.max_steps,
            fps=50,
            obs_shapes={key: (n,) for key, n in numbers.items()} | {name: (*s, 3) for name, s in self.cameras.items()},
            read_obs=AlohaWorld.observe,
            draw=AlohaWorld.draw,
            score="max",
            success_score=None,
        )

    def expert(self) -> Expert:
        """Create the expert of the demonstrations.

        Raises:
            ImportError: gym-aloha is missing.
        """
        world = AlohaWorld(self.task, load_model(self.task))
        expert, low, high = AlohaExpert(self.task, world.model), world.action_space.low, world.action_space.high
        return lambda obs: np.clip(expert.act(obs["state"]), low, high)
