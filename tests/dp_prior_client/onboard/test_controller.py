"""Commands lead from action to action in the geometry of the action, at any ratio of rates."""

import sys
from concurrent.futures import Future

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior_client.loop_limits import LoopLimits
from dp_prior_client.onboard.controller import Controller
from dp_prior_client.onboard.motion_limits import MotionLimits
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from dp_prior_client.realtime import RealtimeAgent
from tests.cases import every
from tests.dp_prior_client.onboard.commanded_arm import CommandedArm
from tests.dp_prior_client.onboard.programs import ERRORS, FAULTS, Faulty, check_program, programs
from tests.examples import examples
from tests.messages import naming, told_each


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
    with pytest.raises(ValueError, match=naming("motion", "'fast'", "mean", "ruckig")):
        Controller(agent, fps=10, rate=500, motion="fast")
    with pytest.raises(ValueError, match=naming("motion", "ruckig", "limits=MotionLimits")):
        Controller(agent, fps=10, rate=500, motion="ruckig")
    with pytest.raises(ValueError, match=naming("at_once", 7, 2)):
        Controller(agent, fps=10, rate=500, at_once=[7]).reset([0.0, 0.0])


def test_a_missing_ruckig_is_told_before_the_arm_moves(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruckig", None)
    with pytest.raises(ModuleNotFoundError, match=naming("motion", "ruckig", 'pip install "dp_prior[ruckig]"')):
        Controller(Planned([[0.0]]), fps=10, rate=500, limits=MotionLimits(velocity=1.0), motion="ruckig")


LIMITS = {"velocity": 2.0, "acceleration": 5.0, "jerk": 100.0}


def moving(acts=(), ticks=60, limits=LIMITS, start=(0.0,), rate=100, **settings):
    """A controller of 100 Hz whose arm moves, since its first actions of 10 Hz lead away at 1 unit per second."""
    names, rotations = settings.pop("names", ()), settings.pop("turns", ())
    away = [np.full(len(start), 0.1 * (i + 1)) for i in range(ticks * 10 // rate)]
    agent = Faulty([*away, *acts], names, rotations)
    controller = Controller(agent, fps=10, rate=rate, limits=MotionLimits(**limits), **settings)
    controller.reset(np.array(start))
    arm = CommandedArm(start, rate)
    for _ in range(ticks):
        assert arm.tick(lambda: controller.command(dict)) is None
    return controller, arm, agent


@every(act=ERRORS)
def test_an_error_of_the_agent_is_raised_when_the_arm_has_braked_within_its_limits(act, caplog):
    controller, arm, agent = moving([act, [0.0]])
    asked = agent.asked
    raised = [arm.tick(lambda: controller.command(dict)) for _ in range(200)]
    first = next(i for i, error in enumerate(raised) if error is not None)
    assert 10 < first < 60 and agent.asked > asked + 1  # braked meanwhile, and asked again
    assert [i for i, error in enumerate(raised) if error is not None] == [first]
    assert raised[first] is act or isinstance(raised[first], (ValueError, TypeError))
    assert arm.path[-201 + first] == pytest.approx(arm.path[-200 + first], abs=1e-9)  # at rest when it was raised
    assert controller.error is None and arm.position == pytest.approx(0.0, abs=1e-6)  # acts again, from rest
    arm.check([0], **LIMITS)
    assert len(caplog.messages) == 1 and type(raised[first]).__name__ in caplog.text
    caplog.clear()


def test_an_agent_that_keeps_failing_raises_at_every_command_at_rest_and_holds_the_arm_there():
    controller, arm, _ = moving([ConnectionError("away")])
    raised = [arm.tick(lambda: controller.command(dict)) for _ in range(100)]
    first = next(i for i, error in enumerate(raised) if error is not None)
    assert all(isinstance(error, ConnectionError) for error in raised[first:]) and controller.due
    assert isinstance(controller.error, ConnectionError) and controller.at_rest
    arm.check([0], **LIMITS)


def test_on_error_hold_commands_at_every_tick_and_asks_once_a_control_step(caplog):
    controller, arm, agent = moving([*[ConnectionError("away")] * 20, [0.0]], on_error="hold")
    asked = agent.asked
    for _ in range(100):
        assert arm.tick(lambda: controller.command(dict)) is None
    assert isinstance(controller.error, ConnectionError) and controller.at_rest
    assert asked + 5 <= agent.asked <= asked + 10
    assert told_each([line for line in caplog.messages if "away" in line], ("ConnectionError", "away"))
    for _ in range(300):
        assert arm.tick(lambda: controller.command(dict)) is None
    assert controller.error is None and arm.position == pytest.approx(0.0, abs=1e-6)
    arm.check([0], **LIMITS)


def test_observations_that_cannot_be_read_are_an_error_as_one_of_the_agent():
    controller, arm, _ = moving([[0.6]])

    def unplugged():
        raise OSError("camera")

    raised = [arm.tick(lambda: controller.command(unplugged)) for _ in range(100)]
    assert isinstance(raised[-1], OSError) and raised[0] is None
    arm.check([0], **LIMITS)


def test_an_interrupt_passes_at_once_and_the_arm_can_be_braked_after_it():
    controller, arm, _ = moving([KeyboardInterrupt()])
    with pytest.raises(KeyboardInterrupt):
        controller.command(dict)
    assert not controller.at_rest
    while not controller.at_rest:
        arm.tick(controller.brake)
    arm.hold()
    arm.check([0], **LIMITS)


def test_a_braked_arm_rests_and_the_next_command_begins_from_there():
    controller, arm, agent = moving([[0.0]])
    asked = agent.asked
    while not controller.at_rest:
        arm.tick(controller.brake)
        assert controller.due == controller.at_rest
    assert agent.asked == asked and controller.due
    rested = arm.position
    command = controller.brake()
    np.testing.assert_array_equal(command, rested)
    command += 9.0  # by its owner, whose it is
    np.testing.assert_allclose(controller.command(dict), rested, atol=1e-3)
    assert agent.asked == asked + 1
    path = [controller.command(dict) for _ in range(300)]
    assert max(path) <= rested and path[-1] == pytest.approx(0.0, abs=1e-6)  # straight from there to the action


def test_a_reset_in_mid_motion_is_refused_until_the_arm_is_braked_or_where_nothing_is_limited():
    controller, arm, _ = moving([[5.0]])
    with pytest.raises(RuntimeError, match=naming("reset", "brake()", "at_rest")):
        controller.reset([3.0])
    arm.tick(lambda: controller.command(dict))  # goes on
    while not controller.at_rest:
        arm.tick(controller.brake)
    controller.reset(arm.position)
    for _ in range(100):
        arm.tick(lambda: controller.command(dict))
    arm.check([0], **LIMITS)
    free, _, _ = moving([[5.0]], limits={})
    free.reset([3.0])
    assert free.command(dict) == pytest.approx(3.2)


@every(settings=({"names": ("x.pos", "x.vel", "wheel.vel")}, {"velocities": [1, -1]}))
def test_velocities_go_to_zero_where_positions_stay(settings):
    limits = {"velocity": 2.0, "acceleration": [5.0, 5.0, np.inf]}
    controller, arm, _ = moving([ConnectionError("away")], limits=limits, start=(0.0, 0.0, 0.0), **settings)
    before = arm.position
    assert before[1:] == pytest.approx(0.5, abs=0.2)
    while not controller.at_rest:
        arm.tick(lambda: controller.command(dict))
    assert arm.position[0] > before[0] and (arm.position[1:] == 0).all()
    with pytest.raises(ConnectionError):
        controller.command(dict)
    arm.check([0, 1], velocity=2.0, acceleration=5.0)


def test_a_velocity_without_limits_is_zero_in_the_next_command_and_the_error_follows():
    controller, arm, _ = moving([ConnectionError("away")], limits={}, velocities=[0])
    assert arm.position == pytest.approx(0.6)
    assert controller.command(dict) == 0
    with pytest.raises(ConnectionError):
        controller.command(dict)


def test_a_policy_whose_names_say_velocities_in_part_leaves_other_numbers_alone():
    controller, arm, _ = moving([ConnectionError("away")], names=("travel",))
    raised = [arm.tick(lambda: controller.command(dict)) for _ in range(100)]
    assert isinstance(raised[-1], ConnectionError) and arm.position > 0.4


@every(jerk=(np.inf, 100.0))
def test_a_wall_is_reached_and_never_passed(jerk):
    limits = {"velocity": 2.0, "acceleration": 5.0, "jerk": jerk, "lowest": [-0.2], "highest": [0.8]}
    controller, arm, _ = moving([[1e6]] * 10 + [[-1e6]], limits=limits)
    for _ in range(100):
        arm.tick(lambda: controller.command(dict))
    assert arm.position == pytest.approx(0.8, abs=1e-3)
    for _ in range(300):
        arm.tick(lambda: controller.command(dict))
    assert arm.position == pytest.approx(-0.2, abs=1e-9)
    arm.check([0], **limits)


def test_an_arm_that_rests_beyond_a_wall_is_told_and_led_back(caplog):
    limits = {"velocity": 2.0, "acceleration": 5.0, "highest": 1.0}
    controller, arm, _ = moving([], ticks=0, start=(0.5, 1.5), limits=limits)
    controller._agent.acts = [np.array([2.0, 2.0])]
    for _ in range(200):
        arm.tick(lambda: controller.command(dict))
    assert arm.position == pytest.approx(1.0, abs=1e-9)
    assert (np.diff(np.array(arm.path)[:, 1]) <= 1e-12).all()
    arm.check([0, 1], velocity=2.0, acceleration=5.0)
    assert told_each(caplog.messages, (1, 1.5, "-inf to 1"))


def test_a_rotation_has_no_walls():
    with pytest.raises(ValueError, match=naming("lowest", "highest", [0, 4], "rotation", "inf")):
        moving(turns=[(0, 4, "quaternion_xyzw")], start=(0.0, 0.0, 0.0, 1.0), limits={"lowest": -1.0})


def test_the_first_action_is_led_to_from_where_the_arm_rests():
    free = Controller(Faulty([[1.0]]), fps=10, rate=100)
    free.reset([0.0])
    np.testing.assert_allclose([free.command(dict)[0] for _ in range(10)], np.arange(1, 11) / 10)
    controller, arm, _ = moving([], ticks=0)
    controller._agent.acts = [np.array([9.0])]
    for _ in range(1000):
        arm.tick(lambda: controller.command(dict))
    arm.check([0], **LIMITS)
    assert arm.position == pytest.approx(9.0)


@given(programs())
@examples(100)
def test_no_limit_is_broken_whatever_raises_and_whatever_the_loop_does(program):
    check_program(program)


@given(st.data())
@examples(100)
def test_no_limit_of_a_turn_is_broken_whatever_raises(data):
    from scipy.spatial.transform import Rotation

    turn = st.integers(0, 10**6).map(lambda seed: Rotation.random(random_state=seed).as_quat())
    acts = data.draw(st.lists(st.one_of(turn, turn, st.sampled_from(FAULTS[:-1])), min_size=2, max_size=10))
    velocity, acceleration = data.draw(st.tuples(*[st.sampled_from([0.5, 4.0, 30.0])] * 2))
    on_error, interval = data.draw(st.sampled_from(["raise", "hold"])), data.draw(st.integers(3, 40))
    agent = Faulty(acts, rotations=[(0, 4, "quaternion_xyzw")])
    limits = MotionLimits(velocity=velocity, acceleration=acceleration)
    controller = Controller(agent, fps=10, rate=100, limits=limits, on_error=on_error)
    controller.reset([0, 0, 0, 1])
    arm = CommandedArm([0, 0, 0, 1], 100)
    for tick in range(150):
        error = arm.tick(controller.brake if tick % interval == 0 else lambda: controller.command(dict))
        assert error is None or controller.at_rest
    while not controller.at_rest:
        arm.tick(controller.brake)
    arm.hold()
    spin, change = arm.turning(0)
    assert spin <= velocity * (1 + 1e-5) + 1e-6 and change <= acceleration * (1 + 1e-5) + 1e-3


def test_a_turn_about_two_axes_is_as_fast_as_about_one():
    from scipy.spatial.transform import Rotation

    end = Rotation.from_rotvec([1.0, 1.0, 1.0]).as_quat()
    agent = Faulty([end], rotations=[(0, 4, "quaternion_xyzw")])
    controller = Controller(agent, fps=10, rate=100, limits=MotionLimits(velocity=1.0, acceleration=4.0))
    controller.reset([0, 0, 0, 1])
    arm = CommandedArm([0, 0, 0, 1], 100)
    for _ in range(300):
        arm.tick(lambda: controller.command(dict))
    assert arm.turning(0)[0] == pytest.approx(1.0, abs=1e-6)
    assert (Rotation.from_quat(arm.position).inv() * Rotation.from_quat(end)).magnitude() < 1e-6


class Scripted:
    """A predictor, its executor and their clock: the i-th prediction gives what the script says, after a delay."""

    def __init__(self, script):
        self.script, self.now, self.asked = script, 100.0, 0

    def infer(self, obs, prefix=None, delay=0):
        start = float(obs["x"][-1, 0])
        return {"chunk": start + np.arange(1, 9)[:, None] / 10}

    def submit(self, call, *arguments, **named):
        act, delay_s = self.script.get(self.asked, (None, 0.0))
        self.asked += 1
        return Promised(self, delay_s, call(*arguments, **named) if act is None else act)


class Promised(Future):
    """A result, or an error, that is there after a delay on the clock of the predictor."""

    def __init__(self, predictor, delay_s, value):
        super().__init__()
        self.predictor, self.ready = predictor, predictor.now + delay_s
        self.set_exception(value) if isinstance(value, Exception) else self.set_result({"chunk": value["chunk"]})

    def done(self):
        return self.predictor.now >= self.ready


CHUNKS = (None, {"chunk": np.full((8, 1), np.nan)}, {"chunk": np.zeros((0, 1))}, {"chunk": np.zeros((8, 2))},
          {"chunk": np.full((8, 1), 1e30)}, ConnectionError("away"), TimeoutError("slow"))  # fmt: skip


@given(st.data())
@examples(100)
def test_no_limit_is_broken_over_a_realtime_agent_that_is_late_or_whose_clock_is_set(data):
    kinds = st.tuples(st.sampled_from(CHUNKS), st.sampled_from([0.0, 0.1, 0.35, 2.0]))
    predictor = Scripted(dict(enumerate(data.draw(st.lists(kinds, min_size=2, max_size=12)), 1)))
    hold_s, then = data.draw(st.sampled_from([0.0, 0.3])), data.draw(st.sampled_from(["stop", "hold"]))
    jumps = data.draw(st.dictionaries(st.integers(1, 400), st.sampled_from([-50.0, 0.5, 7.0]), max_size=3))
    offset = 0.0
    agent = RealtimeAgent(predictor, fps=10, n_obs_steps=1, n_action_steps=4, executor=predictor,
                          clock=lambda: predictor.now + offset, monotonic=lambda: predictor.now,
                          limits=LoopLimits(hold_s=hold_s, then=then))  # fmt: skip
    controller = Controller(agent, fps=10, rate=100, limits=MotionLimits(**LIMITS))
    controller.reset([0.0])
    arm = CommandedArm([0.0], 100)
    for tick in range(400):
        arm.tick(lambda: controller.command(lambda: {"x": arm.position}))
        offset += jumps.get(tick, 0.0)
        predictor.now += 0.01 if tick % 120 else 1.0  # a process that is stopped for a second now and then
    while not controller.at_rest:
        arm.tick(controller.brake)
    arm.hold()
    arm.check([0], **LIMITS)


def test_a_turn_has_the_least_limits_of_its_numbers():
    from scipy.spatial.transform import Rotation

    turns = Rotation.from_rotvec([[0, 0, 0], [0, 0, 2.5]])
    agent = Planned([turns.as_rotvec()[1]] * 40, rotations=[(0, 3, "axis_angle")])
    limits = MotionLimits(velocity=[3.0, 1.0, 2.0], acceleration=[9.0, 9.0, 4.0])
    read = Rotation.from_rotvec(commands(agent, 2000, np.zeros(3), limits=limits))
    speed = (read[:-1].inv() * read[1:]).magnitude() * 500
    assert speed.max() == pytest.approx(1) and np.abs(np.diff(speed)).max() * 500 == pytest.approx(4, rel=1e-3)
