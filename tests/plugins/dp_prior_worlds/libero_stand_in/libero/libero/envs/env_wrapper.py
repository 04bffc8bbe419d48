"""A hand that its actions move; solved is the task 0.3 m above the start, with a closed gripper."""

import os
from types import SimpleNamespace

import numpy as np

CAMERAS = ("agentview", "frontview", "robot0_eye_in_hand")


class Sim:
    def __init__(self, size):
        self.model = SimpleNamespace(nq=size, nv=size, camera_names=CAMERAS)
        self.qpos, self.time = np.zeros(size), 0.0
        self._render_context_offscreen = None

    def set_state_from_flattened(self, state):
        self.time, self.qpos = state[0], np.array(state[1 : 1 + self.model.nq])

    def forward(self):
        pass

    def render(self, camera_name, width, height):
        """Rows from the lowest, as OpenGL reads them: red grows upwards, green to the right, blue is the camera and
        the size of the model whose shapes are in the current context."""
        if self._render_context_offscreen is None:
            raise RuntimeError("no context is open")
        rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
        shapes = type(self._render_context_offscreen.gl_ctx).current.size
        camera = np.full_like(rows, 10 * (shapes - 3) + CAMERAS.index(camera_name))
        return np.stack([rows, columns, camera], axis=2).astype(np.uint8)


class Gripper:
    def __init__(self):
        self.current_action = np.zeros(1)

    def format_action(self, action):
        """The command changes gradually."""
        self.current_action = np.clip(self.current_action + action, -1, 1)


class Controller:
    use_delta = True

    def update(self, force=False):
        if not force:
            raise RuntimeError("nothing is updated after a reset without force")


class ControlEnv:
    def __init__(self, bddl_file_name, use_camera_obs=True, hard_reset=True, has_offscreen_renderer=True, **kwargs):
        if use_camera_obs or has_offscreen_renderer:
            raise RuntimeError("pictures of every step take most of the time")
        words = ("can", "milk", "soup", "bowl", "cup", "pot")
        word = os.path.basename(bddl_file_name).split("_")[-1][: -len(".bddl")]
        size = 3 + {"milk": 1, "soup": 2, "pot": 1}.get(word, 0)
        assert word in words and kwargs["ignore_done"]
        print("opened", word)
        self.sim = Sim(size)
        self.robots = [SimpleNamespace(gripper=Gripper(), controller=Controller(), initialization_noise=None)]
        self._joints = np.zeros(7)
        limits = (np.full(7, -1.0), np.full(7, 1.0))
        samplers = SimpleNamespace(samplers={})  # no furniture
        self.env = SimpleNamespace(
            action_spec=limits,
            control_freq=20,
            _get_observations=self._get_observations,
            conditional_placement_initializer=samplers,
        )
        self._closed = 0.0

    def seed(self, seed):
        np.random.seed(seed)

    def reset(self):
        self._joints = self.robots[0].initialization_noise["magnitude"] * np.random.randn(7)
        self.sim.set_state_from_flattened(np.r_[0.0, np.random.uniform(-0.2, 0.2, self.sim.model.nq), self.sim.qpos])
        self._start = self.sim.qpos[:3].copy()
        self.robots[0].controller = Controller()  # a reset loads the controllers anew
        return self._get_observations()

    def set_init_state(self, state):
        self.sim.set_state_from_flattened(state)
        self._start = self.sim.qpos[:3].copy()
        return self._get_observations()

    def step(self, action):
        if action[0] == 0.7:
            raise ValueError("the arm is stuck")
        self.sim.time += 0.05
        moved = self.sim.qpos[:3] + 0.05 * action[:3] if self.robots[0].controller.use_delta else action[:3]
        self.sim.qpos[:3] = moved
        self.robots[0].gripper.format_action(action[6:])
        is_solved = self.sim.qpos[2] - self._start[2] > 0.3 and self.robots[0].gripper.current_action[0] > 0
        return self._get_observations(), float(is_solved), is_solved, {}

    def close(self):
        pass

    def _get_observations(self, force_update=False):
        return {
            "robot0_eef_pos": self.sim.qpos[:3].copy(),
            "robot0_eef_quat": np.array([0.0, 0.0, np.sin(0.25), np.cos(0.25)]),
            "robot0_gripper_qpos": 0.02 * np.array([1.0, -1.0]) * (1 - self.robots[0].gripper.current_action),
            "robot0_joint_pos": self._joints + np.linspace(0, self.sim.time, 7),
        }
