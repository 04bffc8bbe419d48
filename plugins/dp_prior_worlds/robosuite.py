"""robosuite: tasks for simulated arms (Zhu et al. 2020, arXiv:2009.12293), in which robomimic's data sets were recorded
(Mandlekar et al. 2021, arXiv:2108.03298)."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from dp_prior.config import Outside
from dp_prior.envs.env_record import EnvRecord, Expert
from dp_prior.envs.lockstep import Lockstep
from dp_prior.envs.vector import SEED
from dp_prior_worlds.renderers.robosuite import need_robosuite
from dp_prior_worlds.robosuite_expert import EXPERTS
from dp_prior_worlds.robosuite_world import IMAGE, RobosuiteWorld

Side = Annotated[int, Field(ge=16, le=4096)]

STATES = "states"
"""Key of robomimic's files for the simulator's states, from which an episode can begin."""

FIXED_ARGUMENTS: dict[str, JsonValue] = {
    "has_renderer": False,
    "has_offscreen_renderer": False,
    "use_camera_obs": False,
    "use_object_obs": True,
    "ignore_done": True,
    "reward_shaping": False,
    "reward_scale": 1.0,
    "hard_reset": True,
}
"""Arguments of `robosuite.make` that are not the user's: pictures are drawn here, episodes end here, a reward is the
solved share of the task, and a start depends on its seed alone."""

IGNORED_ARGUMENTS = (
    "camera_names",
    "camera_heights",
    "camera_widths",
    "camera_depths",
    "camera_segmentations",
    "horizon",
)
"""Arguments of `robosuite.make` that have no effect here."""

COMPOSITE = (1, 5)
"""The version from which robosuite has controllers of body parts."""

POSE_CONTROLLER = {"input_type": "absolute", "input_ref_frame": "world"}
"""Settings of a controller whose actions are poses, from robosuite 1.5 on."""


class RobosuiteConfig(EnvRecord):
    """A task of robosuite. Score: the largest reward, from 0 to 1; 1 is solved and ends the episode."""

    type: Literal["robosuite"] = "robosuite"

    steps_in_turn: ClassVar = True

    score_range: ClassVar = (0.0, 1.0)

    modules: ClassVar = ("robosuite", "mujoco")
    """The modules that simulate, for the environment's fingerprint."""

    task: str
    """robosuite's name of the task, the `env_name` of robomimic's files: `Lift`, `PickPlaceCan`, `NutAssemblySquare`,
    `TwoArmTransport`, `ToolHang`, ..."""

    make_arguments: Annotated[dict[str, JsonValue], Outside()] = {}
    """Further arguments of `robosuite.make`, the `env_kwargs` of robomimic's files. `robots` is a Panda where nothing
    else is said, of tasks of two arms two, the controller robosuite's for differences of poses, `OSC_POSE`. Entries
    about renderers, cameras, rewards and the end of episodes are left out, since this record says them."""

    absolute_actions: bool = False
    """Actions are poses instead of differences: x, y, z in m, a rotation vector in rad, and the gripper, as Diffusion
    Policy's files `*_abs.hdf5` have them."""

    n_envs: int = Field(default=10, ge=1)
    """Episodes that run side by side: the largest batch of a prediction."""

    max_steps: int = Field(default=400, ge=1)
    """Control steps after which an unsolved episode is over, 20 per second if the arguments do not say otherwise.
    Diffusion Policy takes 400, for the transport and the tool 700."""

    cameras: dict[str, tuple[Side, Side]] = {}
    """Cameras of the task to observe, such as `agentview` and `robot0_eye_in_hand`, and their height and width; drawn
    only when a chunk is predicted. The observation is called like robomimic's, `agentview_image`."""

    film_camera: str = "agentview"
    """Camera of films."""

    render_size: Side = 256
    """Side of a film's picture, in pixels."""

    @field_validator("make_arguments")
    @classmethod
    def _without_ours(cls, make_arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        left_out = {*FIXED_ARGUMENTS, *IGNORED_ARGUMENTS}
        return {name: value for name, value in make_arguments.items() if name not in left_out}

    def create(self) -> Lockstep:
        """Create the environment. Observations are robosuite's numbers by name, as in robomimic's files below `obs/`:
        object (K,), positions in m and quaternions of the objects and of their offsets to the grippers; of each arm
        robot0_eef_pos (3,) in m, robot0_eef_quat (4,) as x, y, z, w, robot0_gripper_qpos (2,), joints in rad,
        velocities, ...; state (D,), object and these three of each arm; and each camera (height, width, 3) uint8.

        Actions are the controller's, for OSC_POSE (7,) of each arm: differences of position and rotation in [-1, 1], or
        see `absolute_actions`; and 1 to close the gripper, -1 to open.

        Raises:
            ImportError: robosuite is missing.
            ValueError: task or camera are unknown, robosuite refuses the arguments, or the machine has no EGL.
        """
        worlds = [self._world() for _ in range(self.n_envs)]
        shapes = {name: value.shape for name, value in worlds[0].observe().items()}
        return Lockstep(
            worlds,
            max_steps=self.max_steps,
            fps=worlds[0].control_freq,
            obs_shapes=shapes | {f"{camera}{IMAGE}": (*size, 3) for camera, size in self.cameras.items()},
            read_obs=RobosuiteWorld.observe,
            draw=RobosuiteWorld.draw,
            score="max",
            success_score=None,
            start_keys=(),
            begin=_begin,
        )

    @property
    def expert(self) -> Callable[[], Expert] | None:
        """Creates the expert of the demonstrations; None for tasks, arguments and actions without an expert.

        Raises:
            ImportError: robosuite is missing, whose controller `make_arguments` are compared with.
        """
        expert = EXPERTS.get(self.task)
        if expert is None or self.absolute_actions or not self._has_default_arguments():
            return None
        return lambda: expert

    def _has_default_arguments(self) -> bool:
        """Whether the arguments equal the defaults, which robomimic's files write out."""
        defaults: dict[str, Any] = {"robots": ["Panda"], "control_freq": 20}
        arguments = dict(self.make_arguments)
        if arguments.get("robots") == "Panda":
            arguments["robots"] = ["Panda"]
        controller = arguments.pop("controller_configs", None)
        if controller is not None:
            robosuite = need_robosuite()
            default_controller = _controller(robosuite, _version(robosuite), defaults["robots"])
            arguments["controller_configs"] = list(map(_named_alike, _controllers(controller)))
            defaults["controller_configs"] = list(map(_named_alike, _controllers(default_controller)))
        return arguments.items() <= defaults.items()

    def _world(self) -> RobosuiteWorld:
        robosuite = need_robosuite()
        if self.task not in robosuite.ALL_ENVIRONMENTS:
            close = difflib.get_close_matches(self.task, robosuite.ALL_ENVIRONMENTS, n=3, cutoff=0.4)
            names = sorted(robosuite.ALL_ENVIRONMENTS)
            hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else f"Its tasks: {', '.join(names)}"
            raise ValueError(f"robosuite has no task {self.task!r}. {hint}")
        n_arms = 2 if self.task.startswith("TwoArm") else 1
        arguments = {"robots": ["Panda"] * n_arms, **copy.deepcopy(self.make_arguments), **FIXED_ARGUMENTS}
        version = _version(robosuite)
        try:
            if arguments.get("controller_configs") is None:
                arguments["controller_configs"] = _controller(robosuite, version, arguments["robots"])
            if self.absolute_actions:
                for controller_config in _controllers(arguments["controller_configs"]):
                    controller_config |= {"control_delta": False} if version < COMPOSITE else POSE_CONTROLLER
            env = robosuite.make(self.task, **arguments)
        except Exception as error:  # of any of its parts
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ValueError(
                f"robosuite {robosuite.__version__} cannot make the task {self.task!r} of make_arguments ({reason}); "
                f"expected the env_kwargs of a file that was recorded with this version; or leave this evaluator out"
            ) from error
        for name in env.observation_names - env.active_observables:  # robomimic's files have all numbers of the arms
            if name.startswith("robot"):
                env.modify_observable(name, "active", True)
        cameras = set(env.sim.model.camera_names)
        unknown = {*self.cameras, self.film_camera} - cameras
        if unknown:
            has = ", ".join(sorted(cameras))
            raise ValueError(f"the task {self.task!r} has no camera {min(unknown)!r}; its cameras: {has}")
        is_limited = not any(map(_is_absolute, _controllers(arguments["controller_configs"])))
        return RobosuiteWorld(env, is_limited, self.cameras, (self.film_camera, self.render_size))


def needs_composite(make_arguments: dict[str, JsonValue]) -> bool:
    """Whether arguments name controllers of body parts, which robosuite has from 1.5 on."""
    configs = make_arguments.get("controller_configs")
    configs = configs if isinstance(configs, list) else [configs]
    return any("body_parts" in config for config in configs if isinstance(config, dict))


def has_composite(robosuite: Any) -> bool:
    """Whether a version of robosuite has controllers of body parts."""
    return _version(robosuite) >= COMPOSITE


def _begin(world: RobosuiteWorld, start: dict[str, Any]) -> RobosuiteWorld:
    """Reset a world to a recorded start: the simulator's state, or a seed."""
    if STATES in start:
        return world.begin(start[STATES])[0]
    return world.reset(int(start[SEED]))[0]


def _controllers(configs: Any) -> Iterator[dict[str, Any]]:
    """The controllers of parts of the body: before robosuite 1.5 a single controller, or a list for several arms."""
    if isinstance(configs, list):
        for config in configs:
            yield from _controllers(config)
    elif "body_parts" in configs:
        yield from configs["body_parts"].values()
    else:
        yield configs


def _is_absolute(controller: dict[str, Any]) -> bool:
    return controller.get("control_delta") is False or controller.get("input_type") == "absolute"


def _version(robosuite: Any) -> tuple[int, ...]:
    return tuple(map(int, robosuite.__version__.split(".")[:2]))


def _named_alike(controller: dict[str, Any]) -> dict[str, Any]:
    """Rename the damping ratio of a controller as in robomimic's published files."""
    return {name.replace("damping_ratio", "damping"): value for name, value in controller.items()}


def _controller(robosuite: Any, version: tuple[int, ...], robots: Any) -> dict[str, Any]:
    """robosuite's own controller for differences of poses."""
    if version < COMPOSITE:
        return robosuite.load_controller_config(default_controller="OSC_POSE")
    robot = robots if isinstance(robots, str) else robots[0]
    return robosuite.load_composite_controller_config(robot=robot)
