"""What LeRobot's rollouts do not pass is told by name; what they pass is told with nothing."""

import pytest

from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.store_record import RolloutNeeds
from dp_prior_foreign.annotated_lerobot import AnnotatedLeRobotConfig
from dp_prior_robot.lerobot_rollouts import STATE, passes
from tests.messages import told_each

ARM = ["shoulder_pan.pos", "gripper.pos", "base_theta.vel"]
FORCES = ["fx.N", "tx.Nm", "effort"]


def gaps(obs, action=ARM, n_obs_steps=1, **more):
    return LeRobotStoreConfig(path="set").rollout_gaps(RolloutNeeds(obs, action, n_obs_steps, **more))


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ({"obs": {STATE: ARM}}, []),
        ({"obs": {STATE: []}, "action": []}, []),
        ({"obs": {STATE: [*ARM, *FORCES]}}, [(STATE, "fx.N, tx.Nm, effort", ".pos or .vel", '"names"')]),
        ({"obs": {STATE: ["a.pos", "grip"]}}, [(STATE, "grip", ".pos or .vel", '"names"')]),
        ({"obs": {STATE: ["main_pan"]}}, [(STATE, "main_pan", ".pos or .vel", "--policy.state_names")]),
        ({"obs": {"observation.force": ["f.pos"]}}, [("observation.force", STATE, "--keys")]),
        ({"obs": {STATE: ARM}, "action": [*ARM, "grip"]}, [("action", "grip", ".pos or .vel")]),
        ({"obs": {STATE: ARM}, "n_obs_steps": 2}, [("task.n_obs_steps", 2, "--inference.type=rtc", 1)]),
        (
            {
                "obs": {STATE: [], "observation.environment_state": []},
                "action": ["x", "y"],
                "n_obs_steps": 2,
                "previous_action": "last",
            },
            [("action", "x, y", ".pos or .vel")],
        ),
        ({"obs": {}, "previous_action": "last"}, [("data.previous_action", "'last'", "--inference.type=rtc")]),
        ({"obs": {STATE: ["a.pos", "pos", ".pose", "x.vel ", "y.VEL"]}}, [(STATE, "pos, .pose, x.vel , y.VEL")]),
    ],
)
def test_each_gap_is_told_by_name(needs, expected):
    assert told_each(gaps(**needs), *expected)


def test_numbers_pass_by_the_end_of_their_names_in_the_state_alone():
    assert [passes(STATE, name) for name in [*ARM, *FORCES]] == [True] * 3 + [False] * 3
    assert not passes("observation.velocity", "a.vel")


def test_sets_with_annotations_have_the_same_program():
    record = AnnotatedLeRobotConfig(path="set")
    assert record.passes(STATE, "a.pos") and not record.passes(STATE, "grip")


def test_other_formats_have_no_such_program():
    record = NpzStoreConfig(path="set.npz")
    assert record.passes("state", "force") and not record.rollout_gaps(RolloutNeeds({"state": ["force"]}, ["x"], 2))
