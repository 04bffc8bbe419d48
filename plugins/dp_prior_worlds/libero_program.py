"""LIBERO's side of its process: the tasks of a suite, their fixed starts, and pictures when asked for.

The Python that has LIBERO runs this file (`apart/child.py`), from 3.8 on; the file imports nothing of dp_prior.
"""

from __future__ import annotations

import difflib
import itertools
import os
from typing import Any

os.environ.setdefault("MUJOCO_GL", "egl")

import numpy as np  # noqa: E402
import robosuite.utils.transform_utils as transforms  # noqa: E402
from libero.libero import benchmark, get_libero_path  # noqa: E402
from libero.libero.envs.env_wrapper import ControlEnv  # noqa: E402
from robosuite.utils.binding_utils import MjRenderContextOffscreen, MjSim  # noqa: E402

IDLE = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0])
"""The action of differences that holds the arm and opens the gripper."""

FURNITURE_SEED = 0
"""Seed of a start from recorded states, which determines where the furniture stands: states do not hold this."""

ARM_NOISE = 0.02
"""Standard deviation in rad of a joint of the arm over LIBERO's published states, and over drawn starts. LIBERO itself
resets every arm to one place."""

OPENING_STEPS = 200
"""Steps of the simulator after which the gripper's command, which changes gradually, is to open."""

SPHERE, CAPSULE, CYLINDER, MESH = 2, 3, 5, 7
"""MuJoCo's numbers of shapes whose sizes are not those of a box."""

TURNS = {"upright": (-1, 1), "rotated": (-1, -1), "opengl": (1, 1)}
"""Steps through rows and columns of a picture of OpenGL, whose first row is the lowest."""


CAMERAS = {"agentview_rgb": "agentview", "eye_in_hand_rgb": "robot0_eye_in_hand"}
"""Names of LIBERO's cameras by their names in its recordings; other names are the cameras' own."""


class Suite:
    """Rows of tasks of one suite. A row keeps its task open, since opening one takes seconds."""

    def __init__(self, settings: dict[str, Any]):
        self._settings = settings
        suites = benchmark.get_benchmark_dict()
        name = settings["suite"]
        if name not in suites:
            close = difflib.get_close_matches(name, suites, n=3, cutoff=0.4)
            hint = "Did you mean {}?".format(" or ".join(map(repr, close))) if close else ", ".join(sorted(suites))
            raise ValueError(f"LIBERO has no suite {name!r}. {hint}")
        self._suite = suites[name]()
        count = self._suite.get_num_tasks()
        self._numbers = list(range(count)) if settings["tasks"] is None else settings["tasks"]
        wrong = [number for number in self._numbers if not 0 <= number < count]
        if wrong:
            raise ValueError(f"tasks names {wrong[0]}, but the suite {name!r} has 0 to {count - 1}")
        self._states = {}
        self._worlds = {}
        self._open(0, self._numbers[0])  # refuses a camera that does not exist

    def describe(self) -> dict[str, Any]:
        """What the environment's record has to know; see `ApartRecord.opened`."""
        cameras = self._settings["cameras"]
        shapes = {"instruction": [], "state": [8], "ee_states": [6], "gripper_states": [2], "joint_states": [7]}
        shapes.update({name: [*size, 3] for name, size in cameras.items()})
        low, high = self._worlds[0].env.env.action_spec
        if self._settings["absolute_actions"]:
            low, high = np.full(len(low), -np.inf), np.full(len(high), np.inf)
        tasks = [self._suite.get_task(number) for number in self._numbers]
        return {
            "fps": self._worlds[0].env.env.control_freq,
            "obs_shapes": shapes,
            "low": np.asarray(low, np.float64),
            "high": np.asarray(high, np.float64),
            "tasks": [task.name for task in tasks],
            "instructions": [task.language for task in tasks],
        }

    def reset(self, row: int, start: dict[str, Any]) -> dict[str, Any]:
        """Begin an episode: of a seed, or from the recorded state of a task, which its name or number tells."""
        if "states" in start:
            world = self._open(row, self._number_of(str(start["task"])))
            return world.begin_recorded(np.asarray(start["states"], np.float64))
        place = int(start["seed"])
        number = self._numbers[place % len(self._numbers)]
        world = self._open(row, number)
        if self._settings["starts"] == "drawn":
            world.draw_start(place)
            return world.settle(self._settings["settle_steps"])
        states = self._fixed_states(number)
        world.begin(states[place // len(self._numbers) % len(states)], FURNITURE_SEED)
        return world.settle(self._settings["settle_steps"])

    def step(self, row: int, action: np.ndarray) -> dict[str, Any]:
        """Execute an action."""
        return self._worlds[row].step(action)

    def scene(self, row: int) -> dict[str, Any]:
        """What a scripted expert must know of a row; see `World.scene`."""
        return self._worlds[row].scene()

    def draw(self, row: int) -> dict[str, np.ndarray]:
        """The pictures of the cameras by name."""
        pictures = self._settings["pictures"]
        sizes = self._settings["cameras"].items()
        return {name: self._worlds[row].picture(name, size, pictures) for name, size in sizes}

    def render(self, row: int) -> np.ndarray:
        """The picture of a film, upright."""
        side = self._settings["render_size"]
        return self._worlds[row].picture(self._settings["film_camera"], (side, side), "upright")

    def close(self) -> None:
        """Close all tasks."""
        for world in self._worlds.values():
            world.env.close()
        self._worlds.clear()

    def _open(self, row: int, number: int) -> World:
        """The world of a row, with a task opened."""
        world = self._worlds.get(row)
        if world is None or world.number != number:
            if world is not None:
                world.env.close()
                del self._worlds[row]
            world = self._worlds[row] = World(self._suite.get_task(number), number, self._settings)
        return world

    def _number_of(self, name: str) -> int:
        """The number of a task by its name, or by its instruction."""
        tasks = {number: self._suite.get_task(number) for number in self._numbers}
        for number, task in tasks.items():
            if name in (task.name, task.language, str(number)):
                return number
        close = difflib.get_close_matches(name, [task.name for task in tasks.values()], n=2, cutoff=0.3)
        raise ValueError(f"a recorded episode is of the task {name!r}, none of the suite's; near are {close}")

    def _fixed_states(self, number: int) -> np.ndarray:
        if number not in self._states:
            self._states[number] = np.asarray(self._suite.get_task_init_states(number), np.float64)
        return self._states[number]


class World:
    """One task, opened.

    Attributes:
        env: LIBERO's environment.
        number: the task's place in its suite.
    """

    def __init__(self, task: Any, number: int, settings: dict[str, Any]):
        self.number, self._task, self._is_absolute = number, task, settings["absolute_actions"]
        self._built = None
        path = os.path.join(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        self.env = ControlEnv(
            bddl_file_name=path,
            has_renderer=False,
            has_offscreen_renderer=False,  # see `picture`
            use_camera_obs=False,  # pictures are drawn when asked for
            ignore_done=True,
            hard_reset=False,  # rebuilding the model takes 3 s and changes no number
        )
        names = self.env.sim.model.camera_names
        for camera in [*settings["cameras"], settings["film_camera"]]:
            if CAMERAS.get(camera, camera) not in names:
                text = "LIBERO has no camera {!r}; its cameras: {}"
                raise ValueError(text.format(camera, ", ".join(sorted(names))))
        if settings["cameras"]:
            self._open_context()

    def _open_context(self) -> None:
        """Open OpenGL with robosuite's settings. This moves the shapes to where the last step has led, while a picture
        after a step shows them a step of the simulator earlier: call it before an episode, where pictures are seen."""
        context = MjRenderContextOffscreen(self.env.sim, device_id=-1)
        context.vopt.geomgroup[0], context.vopt.geomgroup[1] = 0, 1  # the visible shapes

    def begin(self, states: np.ndarray, seed: int) -> dict[str, Any]:
        """Reset to a state of the simulator."""
        self._reset(seed)
        model = self.env.sim.model
        size = 1 + model.nq + model.nv
        if states.shape != (size,):
            text = "a recorded state has shape {}, but the task {!r} has {} numbers: time, {} positions, {} velocities"
            raise ValueError(text.format(states.shape, self._task.name, size, model.nq, model.nv))
        return self._observe(self.env.set_init_state(states))

    def begin_recorded(self, states: np.ndarray) -> dict[str, Any]:
        """Reset to a state of a recording, as if the steps before had been executed: the controller knows where the
        hand is, and the gripper has been told to open."""
        observed = self.begin(states, FURNITURE_SEED)
        for robot in self.env.robots:
            robot.controller.update(force=True)
            for _ in range(OPENING_STEPS):
                robot.gripper.format_action(IDLE[-1:])
        return observed

    def draw_start(self, seed: int) -> dict[str, Any]:
        """Reset to a start that LIBERO draws from a seed, and the arm's place with it."""
        self._return_furniture()
        return self._observe(self._reset(seed, ARM_NOISE))

    def _return_furniture(self) -> None:
        """Put furniture where the model was built with it. LIBERO draws where it stands, and adds this to the places of
        objects on the furniture, which are right only where the furniture has not moved yet."""
        env, model = self.env.env, self.env.sim.model
        if not env.conditional_placement_initializer.samplers:
            return
        if self._built is None:
            self._built = MjSim.from_xml_string(env.model.get_xml()).model
        for name in env.fixtures_dict:
            body = env.obj_body_id[name]
            model.body_pos[body], model.body_quat[body] = self._built.body_pos[body], self._built.body_quat[body]

    def settle(self, steps: int) -> dict[str, Any]:
        """Let the objects come to rest with the gripper opened; returns what is observed then."""
        self._turn_to(is_absolute=False)
        for _ in range(steps):
            observed = self.env.step(IDLE)[0]
        self._turn_to(self._is_absolute)
        return self._observe(observed) if steps else self._observe(self.env.env._get_observations(force_update=True))

    def step(self, action: np.ndarray) -> dict[str, Any]:
        """Execute an action."""
        observed, _, is_solved, _ = self.env.step(np.asarray(action, np.float64))
        is_solved = bool(is_solved)
        info = {"success": is_solved}
        reward = float(is_solved)
        return {
            "obs": self._observe(observed),
            "reward": reward,
            "terminated": is_solved,
            "truncated": False,
            "info": info,
        }

    def scene(self) -> dict[str, Any]:
        """The object of the task's first goal and where it must go, in m in the frame of the world: its place and
        rotation, the box of its shapes, the place and the highest point of the goal; the gap between the fingers and
        its speed; and whether the gripper holds the object. `others` are the boxes (n, 2, 3) of all other objects and
        of the furniture, `states` is the state of the simulator."""
        env, data = self.env.env, self.env.sim.data
        relation, name, goal = env.parsed_problem["goal_state"][0]
        body = env.obj_body_id[name]
        owner = goal if goal in env.obj_body_id else goal.rsplit("_", 2)[0]
        low, high = self._box(body)
        others = [self._box(other) for key, other in env.obj_body_id.items() if key not in (name, owner)]
        return {
            "others": np.array(others).reshape(-1, 2, 3),
            "relation": relation,
            "object": data.body_xpos[body].copy(),
            "object_quat": data.body_xquat[body].copy(),
            "low": low,
            "high": high,
            "goal": data.body_xpos[env.obj_body_id[owner]].copy(),
            "goal_top": float(self._box(env.obj_body_id[owner])[1][2]),
            "hand": data.site_xpos[env.robots[0].eef_site_id].copy(),
            "hand_matrix": data.site_xmat[env.robots[0].eef_site_id].reshape(3, 3).copy(),
            "gap": float(np.ptp(data.qpos[env.robots[0]._ref_gripper_joint_pos_indexes])),
            "gap_speed": float(np.ptp(data.qvel[env.robots[0]._ref_gripper_joint_vel_indexes])),
            "is_held": bool(env._check_grasp(env.robots[0].gripper, env.get_object(name))),
            "states": self.env.get_sim_state(),
        }

    def _box(self, body: int) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest corner of the colliding shapes of a body and of its parts."""
        model, data = self.env.sim.model, self.env.sim.data
        bodies = {body}
        for part in range(body + 1, model.nbody):  # parts follow their body
            if model.body_parentid[part] in bodies:
                bodies.add(part)
        corners = []
        for shape in range(model.ngeom):
            if model.geom_bodyid[shape] in bodies and (model.geom_contype[shape] or model.geom_conaffinity[shape]):
                points = self._points(shape) @ data.geom_xmat[shape].reshape(3, 3).T + data.geom_xpos[shape]
                corners += [points.min(0), points.max(0)]
        return np.min(corners, axis=0), np.max(corners, axis=0)

    def _points(self, shape: int) -> np.ndarray:
        """Points (n, 3) around a shape in its own frame: the vertices of a mesh, otherwise the corners of a box."""
        model = self.env.sim.model
        if model.geom_type[shape] == MESH:
            mesh = model.geom_dataid[shape]
            first = model.mesh_vertadr[mesh]
            return model.mesh_vert[first : first + model.mesh_vertnum[mesh]]
        x, y, z = model.geom_size[shape]
        half = {SPHERE: (x, x, x), CAPSULE: (x, x, x + y), CYLINDER: (x, x, y)}.get(model.geom_type[shape], (x, y, z))
        return np.array(list(itertools.product((-1, 1), repeat=3))) * half

    def picture(self, camera: str, size: Any, turn: str) -> np.ndarray:
        """(height, width, 3) uint8."""
        height, width = size
        rows, columns = TURNS[turn]
        if self.env.sim._render_context_offscreen is None:
            self._open_context()
        # Otherwise robosuite draws with the shapes and textures of the row that was opened last.
        self.env.sim._render_context_offscreen.gl_ctx.make_current()
        frame = self.env.sim.render(camera_name=CAMERAS.get(camera, camera), width=width, height=height)
        return np.ascontiguousarray(frame[::rows, ::columns])

    def _reset(self, seed: int, arm_noise: float = 0.0) -> Any:
        """Reset so that the episode depends on the seed alone; `arm_noise` in rad changes no other draw."""
        self.env.seed(seed)  # numpy's global generator, from which LIBERO draws where furniture and objects stand
        for robot in self.env.robots:  # a reset that keeps the model forgets the gripper
            robot.gripper.current_action = np.zeros_like(robot.gripper.current_action)
            robot.initialization_noise = {"type": "gaussian", "magnitude": arm_noise}
        observed = self.env.reset()
        self._turn_to(self._is_absolute)
        return observed

    def _turn_to(self, is_absolute: bool) -> None:
        """Make the controllers take poses, or differences of poses."""
        for robot in self.env.robots:
            robot.controller.use_delta = not is_absolute

    def _observe(self, observed: Any) -> dict[str, Any]:
        position, quaternion = observed["robot0_eef_pos"], observed["robot0_eef_quat"]
        pose = np.concatenate([position, transforms.quat2axisangle(quaternion)]).astype(np.float32)
        gripper = np.asarray(observed["robot0_gripper_qpos"], np.float32)
        return {
            "instruction": np.array(self._task.language),
            "state": np.concatenate([pose, gripper]),
            "ee_states": pose,
            "gripper_states": gripper,
            "joint_states": np.asarray(observed["robot0_joint_pos"], np.float32),
        }


def create(settings: dict[str, Any]) -> Suite:
    """Open a suite; see `LiberoConfig.settings`."""
    return Suite(settings)
