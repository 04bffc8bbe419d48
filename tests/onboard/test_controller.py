"""Commands lead from action to action in the geometry of the action, at any ratio of rates."""

import numpy as np
import pytest

from dp_prior.onboard.controller import Controller
from dp_prior.onboard.motion_limits import MotionLimits
from dp_prior.onboard.obs_spec import ObsSpec, Reads
from tests.cases import every
from tests.messages import naming


class Planned:
    """An agent that gives planned actions, and counts the observations that it was given."""

    def __init__(self, actions, rotations=()):
        self.actions, self.asked = list(actions), []
        self.reads = ObsSpec({}, Reads((len(actions[0]),), "float32", rotations=rotations))

    def act(self, obs):
        self.asked.append(obs)
        return np.float32(self.actions[len(self.asked) - 1])


def commands(agent, n, start, **settings):
    controller = Controller(agent, **{"fps": 10, "rate": 500, **settings})
    controller.reset(start)
    ticks = iter(range(n))
    return np.array([controller.command(lambda tick=tick: tick) for tick in ticks])


@every(fps=(10, 30, 15.5), rate=(30, 125, 1000))
def test_every_action_is_reached_at_the_end_of_its_control_step_and_the_agent_is_asked_at_its_rate(fps, rate):
    if rate < fps:
        return
    actions = np.random.default_rng(0).normal(size=(2000, 2))
    agent, n = Planned(actions), 2 * int(rate)
    found = commands(agent, n, [0.0, 0.0], fps=fps, rate=rate)
    begins = [
        int(np.ceil(period * rate / fps - 1e-9)) for period in range(n) if np.ceil(period * rate / fps - 1e-9) < n
    ]
    assert agent.asked == begins
    for period, begin in enumerate(begins[1:]):
        np.testing.assert_allclose(found[begin - 1], actions[period], atol=1e-6)


def test_between_two_actions_a_number_moves_at_constant_velocity_and_a_gripper_at_once():
    agent = Planned([[1.0, 1.0], [3.0, 0.0], [2.0, 1.0]])
    found = commands(agent, 150, [0.0, 0.0], at_once=[1])
    np.testing.assert_allclose(np.diff(found[:, 0]), np.repeat([1, 2, -1], 50)[1:] / 50, atol=1e-7)
    np.testing.assert_array_equal(found[:, 1], np.repeat([1.0, 0.0, 1.0], 50))


@every(form=("quaternion_xyzw", "quaternion_wxyz", "axis_angle", "6d_columns", "6d_rows", "matrix"))
def test_rotations_turn_as_scipys_slerp_does_in_the_form_of_the_data(form):
    from scipy.spatial.transform import Rotation, Slerp

    turns = Rotation.random(4, random_state=0)
    forms = {
        "quaternion_xyzw": turns.as_quat(), "quaternion_wxyz": np.roll(turns.as_quat(), 1, -1),
        "axis_angle": turns.as_rotvec(), "matrix": turns.as_matrix().reshape(4, 9),
        "6d_columns": turns.as_matrix()[..., :2].swapaxes(-1, -2).reshape(4, 6),
        "6d_rows": turns.as_matrix()[..., :2, :].reshape(4, 6),
    }  # fmt: skip
    width = forms[form].shape[1]
    rows = np.concatenate([forms[form], np.arange(4.0)[:, None]], 1)
    rows[2:, :width] *= -1 if form.startswith("quaternion") else 1  # the same rotation, written with the other sign
    agent = Planned(rows[1:], rotations=[(0, width, form)])
    found = commands(agent, 150, rows[0])
    expected = Slerp(np.arange(4) * 50, turns)(np.arange(1, 151))
    if form.startswith("quaternion"):
        order = -1 if form == "quaternion_wxyz" else 0
        read = Rotation.from_quat(np.roll(found[:, :4], order, -1))
    elif form == "axis_angle":
        read = Rotation.from_rotvec(found[:, :3])
    else:
        shape = {"matrix": (3, 3), "6d_columns": (2, 3), "6d_rows": (2, 3)}[form]
        axes = found[:, :width].reshape(-1, *shape)
        whole = axes if form == "matrix" else np.concatenate([axes, np.cross(axes[:, :1], axes[:, 1:])], 1)
        read = Rotation.from_matrix(whole.swapaxes(-1, -2) if form == "6d_columns" else whole)
    assert (read.inv() * expected).magnitude().max() < 1e-5  # actions are float32
    np.testing.assert_allclose(found[:, width], np.arange(1, 151) / 50, atol=1e-6)


def test_a_turn_keeps_its_limits_of_angular_velocity_and_acceleration_and_arrives():
    from scipy.spatial.transform import Rotation

    turns = Rotation.from_rotvec([[0, 0, 0], [0, 0, 2.5]])
    quaternions = turns.as_quat()
    agent = Planned([quaternions[1]] * 40, rotations=[(0, 4, "quaternion_xyzw")])
    found = commands(agent, 2000, quaternions[0], limits=MotionLimits(velocity=1.0, acceleration=4.0))
    read = Rotation.from_quat(found)
    speed = (read[:-1].inv() * read[1:]).magnitude() * 500
    assert speed.max() <= 1 + 1e-6 and np.abs(np.diff(speed)).max() * 500 <= 4 + 1e-3
    assert (read[-1].inv() * turns[1]).magnitude() < 1e-6


def test_an_agent_that_raises_is_asked_again_by_the_next_command():
    class Failing(Planned):
        def act(self, obs):
            if obs == 50:
                raise ConnectionError("away")
            return super().act(obs)

    controller = Controller(Failing([[1.0], [2.0]]), fps=10, rate=500)
    controller.reset([0.0])
    found = [controller.command(lambda: 0) for _ in range(50)]
    with pytest.raises(ConnectionError):
        controller.command(lambda: 50)
    assert controller.due and found[-1] == pytest.approx(1.0)
    assert controller.command(lambda: 51) == pytest.approx(1.02)


def test_an_action_that_is_no_command_is_refused_instead_of_sent():
    for wrong, told in (
        ([0, 0, 0, 0, 1], ([0, 4], [0.0] * 4, "no rotation", "'quaternion_xyzw'", "expected 1")),
        ([0, 0, 0, 1, np.nan], ("nan", "5 finite numbers")),
    ):
        with pytest.raises(ValueError, match=naming(*told)):
            commands(Planned([wrong], rotations=[(0, 4, "quaternion_xyzw")]), 1, [0, 0, 0, 1, 0])


def test_a_position_that_is_no_command_is_refused_as_an_action_is():
    agent = Planned([[0, 0, 0, 1, 0]], rotations=[(0, 4, "quaternion_xyzw")])
    for wrong, told in (
        ([0, 0, 0, 0, 1], ("position", [0, 4], [0.0] * 4, "no rotation", "expected 1")),
        ([0, 0, 0, 1, np.nan], ("position", "nan", "5 finite numbers")),
    ):
        with pytest.raises(ValueError, match=naming(*told)):
            Controller(agent, fps=10, rate=500).reset(wrong)


@pytest.mark.parametrize("number", [2, -2])
def test_a_part_of_a_rotation_takes_no_value_at_once(number):
    agent = Planned([[0, 0, 0, 1]], rotations=[(1, 4, "axis_angle")])
    with pytest.raises(ValueError, match=naming("at_once", [2], "rotation", "leave")):
        Controller(agent, fps=10, rate=500, at_once=[0, number]).reset([0, 0, 0, 1])


def test_settings_without_meaning_are_refused():
    agent = Planned([[0.0, 0.0]])
    with pytest.raises(ValueError, match=naming("fps is 50", "rate 30", "at least", "above 0")):
        Controller(agent, fps=50, rate=30)
    with pytest.raises(ValueError, match=naming([0, 3], "'euler_xyz'", "axis_angle (3)")):
        Controller(agent, fps=10, rate=500, rotations=[(0, 3, "euler_xyz")])
    with pytest.raises(RuntimeError, match=naming("command", "before reset", "Controller")):
        Controller(agent, fps=10, rate=500).command(dict)
    assert Controller(agent, fps=10, rate=500).due  # a loop that asks before its first command is told by that
    with pytest.raises(ValueError, match=naming("at_once", 7, 2)):
        Controller(agent, fps=10, rate=500, at_once=[7]).reset([0.0, 0.0])
