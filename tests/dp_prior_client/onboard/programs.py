"""Programs of a robot's loop: an agent that fails now and then, and all that a loop does besides its commands."""

import contextlib
from typing import Any

import numpy as np
from hypothesis import strategies as st

from dp_prior_client.loop_limits import LateError
from dp_prior_client.onboard.controller import Controller
from dp_prior_client.onboard.motion_limits import MotionLimits
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from tests.dp_prior_client.onboard.commanded_arm import CommandedArm

ERRORS = (
    ConnectionError("away"), LateError("late"), TimeoutError("slow"), ZeroDivisionError(), [np.nan], [np.inf], [-1e300],
    [0.0, 1.0], [[0.0]], 0.0, [], None, "left", {"action": [0.0]},
)  # fmt: skip

FAULTS = (*ERRORS, KeyError("x"), "observe")


class Faulty:
    """An agent whose acts are actions, errors to raise, or functions of the observation."""

    def __init__(self, acts, names=(), rotations=()):
        self.acts, self.asked = list(acts), 0
        self.reads = ObsSpec({}, Reads((1,), "float32", rotations=rotations, names=names))

    def act(self, obs):
        act = self.acts[min(self.asked, len(self.acts) - 1)]
        self.asked += 1
        if isinstance(act, BaseException):
            raise act
        return act


@st.composite
def programs(draw):
    """Settings of a controller of three numbers, the acts of its agent, and what the loop does besides."""
    limit, part = st.sampled_from([np.inf, 0.3, 3.0, 40.0]), st.sampled_from(["brake", "reset", "stall", "interrupt"])
    velocity, acceleration = draw(limit), draw(limit)
    jerk = np.inf if acceleration == np.inf else draw(st.sampled_from([np.inf, 5 * acceleration, 50 * acceleration]))
    limits = {"velocity": velocity, "acceleration": acceleration, "jerk": jerk}
    limits |= draw(st.sampled_from([{}, {"lowest": -0.5, "highest": [0.7, 0.7, 2.0]}]))
    action = st.lists(st.floats(-3, 3), min_size=3, max_size=3).map(np.array)
    act = st.one_of(action, action, action, st.sampled_from(FAULTS))
    return {
        "rates": draw(st.sampled_from([(10, 100), (10, 155), (30, 30), (7, 50)])),
        "limits": limits,
        "velocities": draw(st.sampled_from([[], [1], [0, 2]])),
        "at_once": draw(st.sampled_from([[], [2]])),
        "on_error": draw(st.sampled_from(["raise", "hold"])),
        "acts": draw(st.lists(act, min_size=2, max_size=12)),
        "besides": draw(st.dictionaries(st.integers(0, 150), part)),
    }


def interrupted():
    raise KeyboardInterrupt


def check_program(program: dict[str, Any], **options: Any) -> None:
    """Run a program; no limit may break, and an owner that gives up at an error may hold the last command for ever."""
    fps, rate = program["rates"]
    agent = Faulty(program["acts"])
    settings = {name: program[name] for name in ("velocities", "at_once", "on_error")}
    controller = Controller(agent, fps=fps, rate=rate, limits=MotionLimits(**program["limits"]), **settings, **options)
    controller.reset(np.zeros(3))
    arm = CommandedArm(np.zeros(3), rate)

    def observe():
        if agent.acts[min(agent.asked, len(agent.acts) - 1)] == "observe":
            agent.asked += 1
            raise OSError("camera")

    for tick in range(150):
        besides = program["besides"].get(tick)
        if besides == "brake":
            for _ in range(7):
                arm.tick(controller.brake)
        elif besides == "stall":
            arm.tick(controller.brake) if tick % 2 else None  # no command, or one of another part of the loop
        elif besides == "interrupt":
            with contextlib.suppress(KeyboardInterrupt):
                controller.command(interrupted)
        elif besides == "reset":
            with contextlib.suppress(RuntimeError):
                controller.reset(arm.position)
        error = arm.tick(lambda: controller.command(observe))
        assert error is None or settings["on_error"] == "raise"
        if error is not None:  # an owner that gives up here holds the last command for ever
            assert controller.at_rest and (arm.position[program["velocities"]] == 0).all()
    while not controller.at_rest:
        arm.tick(controller.brake)
    arm.hold()
    arm.check([0, 1, 2], **program["limits"])
