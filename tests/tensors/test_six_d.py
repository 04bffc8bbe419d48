"""Every form of a rotation is the matrix that scipy makes of it, and comes back, at the singular places too."""

import math

import numpy as np
import pytest
import torch

from dp_prior.tensors.rotations import FORMS, ORDERS
from dp_prior.tensors.six_d import from_6d, matrix_of, to_6d
from dp_prior_client.onboard.rotation_check import is_rotation
from tests.cases import every

AXES = torch.cat([torch.eye(3), -torch.eye(3), torch.tensor([[1.0, 1, 0], [1, -2, 3], [-1e-4, 1, 1e-4]])])
ANGLES = [0.0, 1e-20, 1e-8, 1e-4, 0.5, math.pi / 2, 3.0, math.pi - 1e-4, math.pi - 1e-7, math.pi, 4.0, 2 * math.pi]

ROUNDING = 4e-6
"""Of float32 in a conversion and back, about 30 operations: 2.0e-6 at most with each of torch's kernels on x86."""


def rotations() -> torch.Tensor:
    """(n, 6): random ones, and turns by every angle of `ANGLES` about every axis, alone and after a random one."""
    axes = AXES / AXES.norm(dim=1, keepdim=True)
    singular = matrix_of(to_6d((axes[:, None] * torch.tensor(ANGLES)[:, None]).flatten(0, 1), "axis_angle"))
    columns = torch.randn(200, 6, generator=torch.Generator().manual_seed(0))
    matrices = torch.cat([matrix_of(columns), singular, matrix_of(columns)[:1] @ singular])
    return matrices[..., :2].mT.flatten(-2)


def scipy_matrices(values: np.ndarray, form: str) -> np.ndarray:
    rotation = pytest.importorskip("scipy.spatial.transform", reason="NOT CHECKED against scipy").Rotation
    values = values.astype(np.float64)
    if form == "axis_angle":
        return rotation.from_rotvec(values).as_matrix()
    if form.startswith("quaternion"):
        return rotation.from_quat(values, scalar_first=form == "quaternion_wxyz").as_matrix()
    if form.startswith("euler"):
        _, order, *unit = form.split("_")
        return rotation.from_euler(order, values, degrees=bool(unit)).as_matrix()
    if form == "matrix":
        return rotation.from_matrix(values.reshape(-1, 3, 3)).as_matrix()
    first, second = values.reshape(-1, 2, 3).swapaxes(0, 1)
    columns = np.stack([first, second, np.cross(first, second)], -1)
    return columns if form == "6d_columns" else columns.swapaxes(-1, -2)


@every(form=FORMS)
def test_every_form_is_the_matrix_of_scipy_both_ways_and_at_singular_places(form):
    found = rotations()
    written = from_6d(found, form)
    assert written.dtype == torch.float32 and written.shape == (len(found), FORMS[form])
    assert is_rotation(written.numpy(), form).all()
    back = to_6d(written, form)
    torch.testing.assert_close(back, found, rtol=0, atol=ROUNDING)
    expected = scipy_matrices(written.numpy(), form)
    np.testing.assert_allclose(matrix_of(found).numpy(), expected, rtol=0, atol=ROUNDING)
    np.testing.assert_allclose(matrix_of(to_6d(written, form)).numpy(), expected, rtol=0, atol=ROUNDING)


@every(order=ORDERS)
def test_gimbal_lock_of_every_order_of_angles(order):
    middle = [0.0, math.pi] if order[0] == order[2] else [-math.pi / 2, math.pi / 2]
    outer = torch.tensor([-3.0, -1.0, 0.0, 0.5, 2.0])
    offsets = torch.tensor([0.0, 1e-7, 1e-4, -1e-4])
    angles = torch.cartesian_prod(outer, torch.tensor(middle)[:, None].add(offsets).flatten(), outer)
    six = to_6d(angles, f"euler_{order}")
    np.testing.assert_allclose(matrix_of(six).numpy(), scipy_matrices(angles.numpy(), f"euler_{order}"), atol=1e-6)
    torch.testing.assert_close(to_6d(from_6d(six, f"euler_{order}"), f"euler_{order}"), six, rtol=0, atol=ROUNDING)


def test_results_are_canonical():
    six = rotations()
    for form, w in (("quaternion_xyzw", 3), ("quaternion_wxyz", 0)):
        quaternion = from_6d(six, form)
        assert (quaternion[:, w] >= 0).all()
        torch.testing.assert_close(to_6d(-quaternion, form), to_6d(quaternion, form))  # both signs are one rotation
    assert from_6d(six, "axis_angle").norm(dim=1).max() <= math.pi + 1e-6
    assert from_6d(six, "euler_xyz").abs().max(0).values.le(torch.tensor([math.pi, math.pi / 2, math.pi]) + 1e-6).all()


def test_any_finite_numbers_give_finite_rotations():
    for form, width in FORMS.items():
        for value in (torch.zeros(1, width), torch.full((1, width), 1e-30), torch.full((1, width), 1e4)):
            assert from_6d(to_6d(value, form), form).isfinite().all(), form
    assert from_6d(torch.zeros(6), "axis_angle").isfinite().all()


def test_the_gradient_at_the_identity_is_that_of_half_a_turn_vector():
    """A small turn v has the matrix I + [v]x, so its columns move by v itself, and back again by half of each."""
    still = torch.zeros(3)
    columns = torch.autograd.functional.jacobian(lambda value: to_6d(value, "axis_angle"), still)
    skew = torch.tensor([[[0.0, 0, 0], [0, 0, 1], [0, -1, 0]], [[0, 0, -1], [0, 0, 0], [1, 0, 0]],
                         [[0, 1, 0], [-1, 0, 0], [0, 0, 0]]])  # of each axis, column by column  # fmt: skip
    torch.testing.assert_close(columns, skew[:, :2].flatten(1).T)
    there_and_back = lambda value: from_6d(to_6d(value, "axis_angle"), "axis_angle")  # noqa: E731
    for value in (still, torch.tensor([1e-6, 0.0, -1e-6]), torch.tensor([0.3, -0.2, 0.1])):
        slope = torch.autograd.functional.jacobian(there_and_back, value)
        torch.testing.assert_close(slope, torch.eye(3), rtol=0, atol=1e-4)


def test_gram_schmidt_gives_the_nearest_first_axis_and_turns_with_the_numbers():
    columns = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    found = matrix_of(columns)
    torch.testing.assert_close(found.mT @ found, torch.eye(3).expand(50, 3, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.linalg.det(found), torch.ones(50))
    turn = matrix_of(torch.tensor([1.0, 2, 3, -3, 1, 1]))
    turned = (columns.unflatten(-1, (2, 3)) @ turn.mT).flatten(-2)
    torch.testing.assert_close(matrix_of(turned), turn @ found, rtol=0, atol=1e-4)
