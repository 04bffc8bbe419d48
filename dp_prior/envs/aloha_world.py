"""One world of gym-aloha, stepped by MuJoCo: the physics, starts and rewards of gym-aloha without its pictures.

gym-aloha renders three pictures of 480 x 640 at every step, a hundred times the cost of the physics, keeps the start in
a variable of its module, so that a process has one world, and observes no states; hence the loop here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dp_prior.pixels.renderers.aloha import ARMS, AlohaTask, load_model

SUBSTEPS = 10  # of 2 ms: 50 control steps a second
JOINTS = 14  # of both arms, left first: 6 angles in rad, and the opening of the gripper, 0 closed to 1
FINGERS = 6, 14  # in qpos: the left finger of each gripper; the right finger follows, with the opposite sign
CLOSED, OPEN = 0.01844, 0.05800  # m, positions of a left finger that count as 0 and 1
START = np.array([0, -0.96, 1.16, 0, -0.3, 0, 0.02239, -0.02239] * 2)
ARM_QPOS = np.array([0, 1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14])  # of qpos, in the order of an action

STAGES = {
    "transfer_cube": ("start", "touched", "lifted", "met", "transferred"),
    "insertion": ("start", "touched", "lifted", "met", "inserted"),
}
"""What has been reached, by gym-aloha's reward, which is the place in the list."""


Touching = set[frozenset[str]]
LEFT, RIGHT = "vx300s_left/10_left_gripper_finger", "vx300s_right/10_right_gripper_finger"
SOCKET = "socket-1", "socket-2", "socket-3", "socket-4"


def transfer_reward(touching: Touching) -> int:
    """gym-aloha's reward, 0 to 4: success is the left finger at a cube off the table, which a falling cube may be."""
    left, right, table = (frozenset(("red_box", other)) in touching for other in (LEFT, RIGHT, "table"))
    if left:
        return 3 if table else 4
    return (1 if table else 2) if right else 0


def insertion_reward(touching: Touching) -> int:
    """gym-aloha's reward, 0 to 4: success is the peg at the pin inside of the socket."""

    def touches(one: str, *others: str) -> bool:
        return any(frozenset((one, other)) in touching for other in others)

    if touches("red_peg", "pin"):
        return 4
    is_up = not touches("red_peg", "table") and not touches("table", *SOCKET)
    if is_up and touches("red_peg", *SOCKET):
        return 3
    return (2 if is_up else 1) if touches("red_peg", RIGHT) and touches(LEFT, *SOCKET) else 0


REWARDS = {"transfer_cube": transfer_reward, "insertion": insertion_reward}


class AlohaWorld:
    """A world in gymnasium's manner. The seed determines the start; success ends the episode."""

    def __init__(self, task: AlohaTask):
        """Raises: ImportError: gym-aloha is missing."""
        self.model = load_model(task)
        import mujoco
        from gymnasium.spaces import Box

        self.task = task
        self.data = mujoco.MjData(self.model)
        low, high = self.model.actuator_ctrlrange[ARM_QPOS].T
        low[[6, 13]], high[[6, 13]] = 0.0, 1.0
        self.action_space = Box(low.astype(np.float32), high.astype(np.float32))
        self._names = [self.model.geom(number).name for number in range(self.model.ngeom)]

    def reset(self, seed: int) -> tuple[AlohaWorld, dict[str, Any]]:
        """This world at the start that gym-aloha draws from a seed."""
        from gym_aloha.utils import sample_box_pose, sample_insertion_pose

        is_cube = self.task == "transfer_cube"
        return self.begin(sample_box_pose(seed) if is_cube else np.concatenate(sample_insertion_pose(seed)))

    def begin(self, objects: np.ndarray) -> tuple[AlohaWorld, dict[str, Any]]:
        """This world with the objects at positions and quaternions (7,) or (14,)."""
        import mujoco

        disabled = self.model.opt.disableflags
        self.model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_ACTUATION
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_forward(self.model, self.data)
        self.data.qpos[:] = np.concatenate([START, objects])
        self.data.ctrl[:] = START
        for _ in range(2):  # as often as gym-aloha, since the solver begins from its last solution
            mujoco.mj_forward(self.model, self.data)
        self.model.opt.disableflags = disabled
        return self, self._info()

    def step(self, action: np.ndarray) -> tuple[AlohaWorld, float, bool, bool, dict[str, Any]]:
        """This world after an action (14,), reward from 0 to 1, whether the task is solved, False, and the stage."""
        import mujoco

        for arm, (first, finger) in enumerate(zip((0, 8), FINGERS, strict=True)):
            joints = action[7 * arm : 7 * arm + 7].astype(np.float64)
            opening = CLOSED + joints[6] * (OPEN - CLOSED)
            self.data.ctrl[first:finger] = joints[:6]
            self.data.ctrl[finger : finger + 2] = opening, -opening
        mujoco.mj_step2(self.model, self.data)  # the order of dm_control, so that contacts are those of the last state
        mujoco.mj_step(self.model, self.data, SUBSTEPS - 1)
        mujoco.mj_step1(self.model, self.data)
        info = self._info()
        return self, info["reward"] / 4, info["success"], False, info

    @property
    def qpos(self) -> np.ndarray:
        """(16 + 7 per object,) float32 joint positions of MuJoCo, from which a renderer draws."""
        return self.data.qpos.astype(np.float32)

    @property
    def state(self) -> np.ndarray:
        """(14 + 7 per object,) float32: joints as an action has them, position in m and quaternion of each object."""
        joints = self.data.qpos[ARM_QPOS]
        joints[[6, 13]] = (joints[[6, 13]] - CLOSED) / (OPEN - CLOSED)
        return np.concatenate([joints, self.data.qpos[ARMS:]]).astype(np.float32)

    def close(self) -> None:
        """Nothing to release."""

    def _info(self) -> dict[str, Any]:
        reward = REWARDS[self.task](self._touching())
        return {"reward": reward, "success": reward == 4, "stage": STAGES[self.task][reward]}

    def _touching(self) -> Touching:
        """Pairs of geometries in contact, by name."""
        return {frozenset((self._names[one], self._names[other])) for one, other in self.data.contact.geom}
