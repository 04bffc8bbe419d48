"""Commands planned by ruckig keep the limits of all others, and arrive as early as the S-curve of the textbooks."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior_client.onboard.controller import Controller
from dp_prior_client.onboard.motion_limits import LimitedMotion, MotionLimits
from dp_prior_client.onboard.ruckig_motion import RuckigMotion
from tests.dp_prior_client.onboard.commanded_arm import CommandedArm
from tests.dp_prior_client.onboard.programs import Faulty, check_program, programs
from tests.examples import examples
from tests.extras import needs

needs("ruckig", "ruckig")

RATE = 500
LIMITS = {"velocity": 1.0, "acceleration": 4.0, "jerk": 20.0}


def followed(target, kind=RuckigMotion, **limits):
    """(n,) commands of one number toward (n,) targets."""
    motion = kind(MotionLimits(**limits).of(1), RATE, np.zeros(1))
    return np.array([motion.step(np.array([place]))[0] for place in target])


def test_a_step_arrives_when_the_closed_form_of_the_s_curve_says_and_earlier_than_by_the_mean():
    """Distance 2: 2 / velocity + velocity / acceleration + acceleration / jerk = 2.45 s."""
    arrivals = [
        np.argmax(followed(np.full(1500, 2.0), kind, **LIMITS) >= 2 - 1e-6) for kind in (RuckigMotion, LimitedMotion)
    ]
    assert arrivals[0] == pytest.approx(2.45 * RATE, abs=4)
    assert arrivals[1] - arrivals[0] == pytest.approx(0.2 * RATE, abs=4)  # acceleration / jerk


def test_a_target_of_constant_velocity_is_followed_at_the_distance_of_a_stop():
    target = np.arange(1, 2000) / RATE
    path = followed(target, velocity=2.0, acceleration=4.0, jerk=20.0)
    distance = 0.5 * (1.0 / 4.0 + 4.0 / 20.0)
    assert target[-1] - path[-1] == pytest.approx(distance, abs=2 / RATE)
    path = followed(np.concatenate([target, np.full(1000, target[-1])]), velocity=2.0, acceleration=4.0, jerk=20.0)
    assert path.max() <= target[-1] + 1e-9 and path[-1] == pytest.approx(target[-1], abs=1e-9)  # never passed


def test_a_target_beyond_all_reach_commands_as_a_far_one_does():
    """Ruckig refuses distances of 1e9."""
    near = followed(np.full(300, 50.0), **LIMITS)
    for distance in (1e4, 1e9, 3e38):
        np.testing.assert_allclose(followed(np.full(300, distance), **LIMITS), near, atol=1e-12)


def test_without_limits_of_its_own_a_number_follows_as_without_ruckig():
    limits = MotionLimits(velocity=[1.0, np.inf, np.inf], acceleration=[4.0, 4.0, np.inf]).of(3)
    target = np.repeat([2.0, -1.0], 150)
    paths = []
    for kind in (RuckigMotion, LimitedMotion):
        motion = kind(limits, RATE, np.zeros(3))
        paths.append(np.array([motion.step(np.full(3, place)) for place in target]))
    np.testing.assert_array_equal(paths[0][:, 1:], paths[1][:, 1:])
    assert np.abs(paths[0][:, 0] - paths[1][:, 0]).max() < 0.01
    free = RuckigMotion(MotionLimits().of(2), RATE, np.zeros(2))
    np.testing.assert_array_equal(free.step(np.array([3.0, -4.0])), [3.0, -4.0])
    assert free.may_jump.all() and free.at_rest.all()


@given(
    st.lists(st.none() | st.sampled_from([-9e30, -1.0, 0.2, 1.5, 9e30]), min_size=1, max_size=8),
    st.sampled_from([0.5, 5.0]),
    st.sampled_from([2.0, 80.0]),
    st.sampled_from([20.0, 2000.0, np.inf]),
)
@example([9e30, -9e30, None], 0.5, 80.0, 20.0)
@examples(100)
def test_a_command_stays_between_its_walls_and_brakes_for_them_within_its_limits(targets, velocity, acceleration, jerk):
    """None brakes; the second number is a velocity, which a stop leads to 0."""
    limits = {"velocity": velocity, "acceleration": acceleration, "jerk": jerk, "lowest": -1.0, "highest": 1.0}
    motion = RuckigMotion(MotionLimits(**limits).of(2), 100, np.zeros(2), np.array([False, True]))
    arm = CommandedArm(np.zeros(2), 100)
    for target in targets:
        for _ in range(25):
            arm.tick(lambda: motion.brake() if target is None else motion.step(np.full(2, target)))  # noqa: B023
    while not motion.at_rest.all():
        arm.tick(motion.brake)
    arm.hold()
    arm.check([0, 1], **limits)
    assert arm.position[1] == 0


@given(programs())
@examples(100)
def test_no_limit_is_broken_whatever_raises_and_whatever_the_loop_does(program):
    check_program(program, motion="ruckig")


def test_a_target_without_a_plan_is_braked_for_and_planned_for_again(monkeypatch):
    import ruckig

    agent = Faulty([np.array([1.0]), np.array([1.0])])
    controller = Controller(agent, fps=10, rate=100, limits=MotionLimits(**LIMITS), motion="ruckig")
    controller.reset([0.0])
    arm = CommandedArm([0.0], 100)
    for _ in range(30):
        assert arm.tick(lambda: controller.command(dict)) is None
    planner, interfaces = controller._motion._planner, []

    class Planless:
        def update(self, state, output):
            interfaces.append(state.control_interface)
            if state.control_interface == ruckig.ControlInterface.Position:
                raise ruckig.RuckigError("no plan")
            return planner.update(state, output)

    monkeypatch.setattr(controller._motion, "_planner", Planless())
    for _ in range(60):
        assert arm.tick(lambda: controller.command(dict)) is None
    assert controller.at_rest and arm.position < 0.9
    assert interfaces[:2] == [ruckig.ControlInterface.Position, ruckig.ControlInterface.Velocity]
    monkeypatch.undo()
    for _ in range(200):
        assert arm.tick(lambda: controller.command(dict)) is None
    assert arm.position == pytest.approx(1.0)
    arm.check([0], **LIMITS)
