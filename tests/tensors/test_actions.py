"""Transforms are inverse, equal to scipy's rigid motions, and do not depend on where the robot stands."""

import numpy as np
import pytest
import torch

from dp_prior.tensors.actions import OffsetArm, PoseArm, Transforms, arm_faults
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.rotations import FORMS
from dp_prior.tensors.six_d import from_6d, matrix_of, to_6d
from tests.cases import every
from tests.messages import naming, told

B, H = 5, 8


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rotations(*shape, form, seed=0):
    return from_6d(random(*shape, 6, seed=seed), form)


def plain():
    """Positions in the plane, as `relative_to` reads them."""
    spec = Spec(x_shape=(H, 2), cond_shapes={"agent_pos": (2, 2), "other": (2, 5)})
    obs = {"agent_pos": random(B, 2, 2, seed=1) * 100, "other": torch.zeros(B, 2, 5)}
    return Transforms(spec, (OffsetArm(action=(0, 2), key="agent_pos"),), 1), random(B, H, 2) * 100, obs


def two_arms(form="axis_angle", observed="quaternion_xyzw", seen="absolute"):
    """[left position, rotation, gripper, right position, rotation, gripper]; the right arm's pose is one observation.

    Returns: spec, arms, actions (B, H, A), obs.
    """
    n, m = FORMS[form], FORMS[observed]
    starts = (0, 3 + n + 1)
    slices = [(start + 3, start + 3 + n) for start in starts]
    spec = Spec(
        x_shape=(H, 2 * (3 + n + 1)),
        cond_shapes={"left_pos": (2, 3), "left_rot": (2, m), "right": (2, 4 + m), "object": (2, 7)},
        rotations={
            "x": [{"slice": one, "form": form} for one in slices],
            "left_rot": [{"slice": (0, m), "form": observed}],
            "right": [{"slice": (4, 4 + m), "form": observed}],
            "object": [{"slice": (3, 7), "form": "quaternion_wxyz"}],
        },
    )
    left, right = (
        {
            "type": "pose",
            "position": {"action": (start, start + 3), **position},
            "rotation": {"action": one, **rotation},
            "observed": seen,
        }
        for start, one, position, rotation in (
            (starts[0], slices[0], {"key": "left_pos"}, {"key": "left_rot"}),
            (starts[1], slices[1], {"key": "right", "slice": (1, 4)}, {"key": "right", "slice": (4, 4 + m)}),
        )
    )
    arms = (PoseArm.model_validate(left), PoseArm.model_validate(right))
    parts = []
    for seed in (1, 2):
        parts += [random(B, H, 3, seed=seed), rotations(B, H, form=form, seed=seed), random(B, H, 1, seed=seed + 9)]
    obs = {
        "left_pos": random(B, 2, 3, seed=3),
        "left_rot": rotations(B, 2, form=observed, seed=4),
        "right": torch.cat([random(B, 2, 4, seed=5), rotations(B, 2, form=observed, seed=6)], -1),
        "object": torch.cat([random(B, 2, 3, seed=7), rotations(B, 2, form="quaternion_wxyz", seed=8)], -1),
    }
    return spec, arms, torch.cat(parts, -1), obs


def moved(actions, obs, spec, arms, shift, turn):
    """Everything after a rigid motion of the world."""
    actions, obs = actions.clone(), {key: value.clone() for key, value in obs.items()}

    def move(value, place, form=None):
        part = value[..., slice(*place)]
        if form is None:
            value[..., slice(*place)] = part @ turn.mT + shift
        else:
            columns = (turn @ matrix_of(to_6d(part, form)))[..., :2].mT.flatten(-2)
            value[..., slice(*place)] = from_6d(columns, form)

    for arm in arms:
        for value, position, rotation in (
            (actions, arm.position.action, spec.rotations["x"]),
            (None, None, None),
        ):
            if value is None:
                move(obs[arm.position.key], arm.position.slice or (0, 3))
                one = spec.rotations[arm.rotation.key][0]
                move(obs[arm.rotation.key], one.slice, one.form)
            else:
                move(value, position)
                one = next(one for one in rotation if one.slice == arm.rotation.action)
                move(value, one.slice, one.form)
    return actions, obs


def test_offsets_are_from_the_newest_observation_to_the_last_bit():
    transforms, actions, obs = plain()
    offsets = transforms.encode(actions, obs)
    assert torch.equal(offsets, actions - obs["agent_pos"][:, 1, None])
    assert torch.equal(transforms.decode(offsets, obs), offsets + obs["agent_pos"][:, 1, None])
    torch.testing.assert_close(transforms.decode(offsets, obs), actions)
    assert transforms.encode_obs(obs) == obs
    shift = torch.tensor([32.0, -64.0])
    torch.testing.assert_close(
        transforms.encode(actions + shift, {**obs, "agent_pos": obs["agent_pos"] + shift}), offsets
    )


def test_an_arm_leaves_the_other_elements_alone():
    spec = Spec(x_shape=(H, 8), cond_shapes={"state": (2, 9)})
    actions, obs = random(B, H, 8), {"state": random(B, 2, 9, seed=1)}
    transforms = Transforms(spec, (OffsetArm(action=(1, 7), key="state", slice=(2, 8)),), 1)
    inside = transforms.encode(actions, obs)
    assert torch.equal(inside[..., [0, 7]], actions[..., [0, 7]])
    assert torch.equal(inside[..., 1:7], actions[..., 1:7] - obs["state"][:, 1, None, 2:8])
    torch.testing.assert_close(transforms.decode(inside, obs), actions)


@every(
    seen=["absolute", "relative"], form=["axis_angle", "quaternion_wxyz", "matrix", "6d_rows", "euler_xyz", "euler_ZYZ"]
)
def test_poses_of_two_arms_are_inverse(form, seen):
    spec, arms, actions, obs = two_arms(form, seen=seen)
    assert list(arm_faults(arms, spec)) == []
    transforms = Transforms(spec, arms, 1)
    inside = transforms.encode(actions, obs)
    assert inside.shape == (B, H, *transforms.shape("x")) == (B, H, 20)
    assert torch.equal(inside[..., [9, 19]], actions[..., [3 + FORMS[form], -1]])  # grippers
    torch.testing.assert_close(transforms.decode(inside, obs), actions, rtol=0, atol=1e-5)
    again = transforms.encode(transforms.decode(inside, obs), obs)
    torch.testing.assert_close(again, inside, rtol=0, atol=1e-5)


def test_poses_equal_scipy_one_by_one():
    rotation = pytest.importorskip("scipy.spatial.transform", reason="NOT CHECKED against scipy").Rotation
    spec, arms, actions, obs = two_arms(seen="relative")
    transforms = Transforms(spec, arms, 1)
    inside, seen = transforms.encode(actions, obs).numpy(), transforms.encode_obs(obs)
    actions, obs = actions.double().numpy(), {key: value.double().numpy() for key, value in obs.items()}
    for b in range(B):
        origin, turned = obs["right"][b, 1, 1:4], rotation.from_quat(obs["right"][b, 1, 4:])
        for h in range(H):
            position, turn = actions[b, h, 7:10], rotation.from_rotvec(actions[b, h, 10:13])
            np.testing.assert_allclose(inside[b, h, 10:13], turned.inv().apply(position - origin), atol=2e-6)
            np.testing.assert_allclose(
                inside[b, h, 13:19], (turned.inv() * turn).as_matrix()[:, :2].T.ravel(), atol=2e-6
            )
        before = rotation.from_quat(obs["right"][b, 0, 4:])
        np.testing.assert_allclose(seen["right"][b, 0, 1:4], turned.inv().apply(obs["right"][b, 0, 1:4] - origin),
                                   atol=2e-6)  # fmt: skip
        np.testing.assert_allclose(seen["right"][b, 0, 4:], (turned.inv() * before).as_matrix()[:, :2].T.ravel(),
                                   atol=2e-6)  # fmt: skip
        np.testing.assert_allclose(seen["object"][b, 0, 3:],
                                   rotation.from_quat(obs["object"][b, 0, 3:], scalar_first=True).as_matrix()[:, :2].T
                                   .ravel(), atol=2e-6)  # fmt: skip
    assert torch.equal(seen["right"][..., 0], torch.from_numpy(obs["right"][..., 0]).float())
    newest = seen["right"][:, 1, 1:]
    torch.testing.assert_close(newest, torch.tensor([0.0, 0, 0, 1, 0, 0, 0, 1, 0]).expand(B, 9), rtol=0, atol=1e-6)


@pytest.mark.parametrize("seen", ["absolute", "relative"])
def test_moving_the_world_by_a_rigid_motion_changes_no_relative_pose(seen):
    spec, arms, actions, obs = two_arms(seen=seen)
    transforms = Transforms(spec, arms, 1)
    shift, turn = torch.tensor([3.0, -2.0, 5.0]), matrix_of(torch.tensor([1.0, 2, 3, -3, 1, 1]))
    other_actions, other_obs = moved(actions, obs, spec, arms, shift, turn)
    inside = transforms.encode(actions, obs)
    torch.testing.assert_close(transforms.encode(other_actions, other_obs), inside, rtol=0, atol=1e-5)
    found = torch.cat([to_6d(transforms.decode(inside, other_obs)[..., 3:6], "axis_angle")], -1)
    torch.testing.assert_close(found, to_6d(other_actions[..., 3:6], "axis_angle"), rtol=0, atol=1e-5)
    same = {key: torch.equal(value, transforms.encode_obs(obs)[key]) for key, value in
            transforms.encode_obs(other_obs).items()}  # fmt: skip
    close = {key: torch.allclose(value, transforms.encode_obs(obs)[key], atol=1e-5) for key, value in
             transforms.encode_obs(other_obs).items()}  # fmt: skip
    assert same["object"] and close["right"] is close["left_rot"] is close["left_pos"] is (seen == "relative")


def test_autocast_rounds_nothing_and_zeros_stay_finite():
    spec, arms, actions, obs = two_arms()
    transforms = Transforms(spec, arms, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = transforms.encode(actions, obs)
        assert torch.equal(transforms.decode(found, obs), transforms.decode(transforms.encode(actions, obs), obs))
    assert torch.equal(found, transforms.encode(actions, obs))
    assert transforms.encode(torch.zeros_like(actions), obs).isfinite().all()  # unknown elements of a known chunk


def test_weights_of_a_pose_are_the_least_of_its_parts():
    spec, arms, actions, _ = two_arms("quaternion_xyzw")
    known = torch.ones(B, H, 16, dtype=torch.bool)
    known[..., [1, 11, 15]] = False  # a position, a rotation, a gripper
    inside = Transforms(spec, arms, 1).weights(known)
    assert inside[0, 0].int().tolist() == [0] * 3 + [1] * 6 + [1] + [1] * 3 + [0] * 6 + [0]
    plain_one, _, _ = plain()
    assert plain_one.weights(known) is not None


@pytest.mark.parametrize(
    "change, words",
    [
        ({"position": {"key": "hand"}}, ("task.arms.0.position.key", "'hand'")),
        ({"position": {"key": "x"}}, ("task.arms.0.position.key", "'x'")),
        ({"position": {"action": (0, 2)}}, ("task.arms.0.position", "[2, 3]", 3)),
        ({"position": {"action": (13, 17)}}, ("[13, 17]", 14, "data.action")),
        ({"position": {"slice": (2, 5)}}, ("[2, 5]", 3, "data.obs.left_pos")),
        ({"position": {"action": (2, 5)}}, ("[2, 5]", "data.action", "[3, 6]")),
        ({"rotation": {"action": (0, 3)}}, ("data.action.rotations", "[0, 3]", "[3, 6]")),
        ({"rotation": {"key": "left_pos"}}, ("data.obs.left_pos.rotations", "[0, 3]")),
        ({"position": {"action": (7, 10)}}, ("[7, 10]", "data.action")),
    ],
)
def test_arms_that_the_data_do_not_have_are_refused(change, words):
    spec, (left, right), _, _ = two_arms()
    record = left.model_dump()
    for name, fields in change.items():
        record[name] |= fields
    with pytest.raises(AssertionError, match=naming(*words)):
        assert list(arm_faults((PoseArm.model_validate(record), right), spec)) == []


def test_offsets_of_another_width_or_of_a_rotation_are_refused():
    spec, _, _, _ = two_arms()
    for arm, words in (
        (OffsetArm(action=(0, 3), key="right", slice=(0, 2)), ("task.arms.0", "[[0, 3], [0, 2]]", "[3, 2]")),
        (OffsetArm(action=(3, 6), key="left_pos"), ("rotation [3, 6]", "leave it")),
    ):
        assert told("\n".join(arm_faults((arm,), spec)), *words)


@pytest.mark.parametrize(
    "declared, actual", [("quaternion_wxyz", "quaternion_xyzw"), ("6d_rows", "6d_columns"), ("euler_xyz", "euler_XYZ")]
)
def test_a_form_that_cannot_be_right_is_found_where_action_and_observation_differ(declared, actual):
    spec, arms, actions, obs = two_arms(observed=declared)
    for key, place, rotation in (("left_rot", slice(None), slice(3, 6)), ("right", slice(4, None), slice(10, 13))):
        obs[key][:, 1, place] = from_6d(to_6d(actions[:, 0, rotation], "axis_angle"), actual)
    found = list(Transforms(spec, arms, 1).form_faults(actions[:, 0], obs))
    assert len(found) == 2 and found[0].startswith("task.arms.0.rotation: actions turn ")
    assert told(found[0], "0.00", "data.obs.left_rot", repr(actual), repr(declared))
    spec, arms, _, _ = two_arms(observed=actual)
    assert list(Transforms(spec, arms, 1).form_faults(actions[:, 0], obs)) == []


@pytest.mark.parametrize("newest", [0, 1])
def test_offsets_begin_at_the_newest_observation_which_need_not_be_the_last(newest):
    """A task that diffuses later observations too gives these behind the newest one."""
    spec = Spec(x_shape=(H, 2), cond_shapes={"agent_pos": (4, 2)})
    transforms = Transforms(spec, (OffsetArm(action=(0, 2), key="agent_pos"),), newest)
    actions, obs = random(B, H, 2), {"agent_pos": random(B, 4, 2, seed=1)}
    inside = transforms.encode(actions, obs)
    assert torch.equal(inside, actions - obs["agent_pos"][:, newest, None])
    torch.testing.assert_close(transforms.decode(inside, obs), actions)


@pytest.mark.parametrize("radians, is_told", [(0.2, True), (0.8, False)])
def test_a_form_is_doubted_only_if_another_reading_is_five_times_closer(radians, is_told):
    """Observed rotations in the other order, turned on by an angle: 0.8 is more than a fifth of any."""
    spec, arms, actions, obs = two_arms(observed="quaternion_wxyz")
    turn = matrix_of(to_6d(torch.tensor([radians, 0.0, 0.0]), "axis_angle"))
    for key, place, rotation in (("left_rot", slice(None), slice(3, 6)), ("right", slice(4, None), slice(10, 13))):
        matrices = turn @ matrix_of(to_6d(actions[:, 0, rotation], "axis_angle"))
        obs[key][:, 1, place] = from_6d(matrices[..., :2].mT.flatten(-2), "quaternion_xyzw")
    found = list(Transforms(spec, arms, 1).form_faults(actions[:, 0], obs))
    assert len(found) == 2 * is_told and all(told(line, f"{radians:.2f}", "'quaternion_xyzw'") for line in found)
