"""Rotations between rotations are those of scipy, in every form, and the same rotations as in torch."""

import numpy as np
import pytest
import torch

from dp_prior.tensors.rotations import FORMS
from dp_prior.tensors.six_d import to_6d
from dp_prior_client.onboard import slerp as one_at_a_time
from dp_prior_client.onboard.rotation_check import WIDTHS
from dp_prior_client.onboard.slerp import to_quaternion
from tests.messages import naming


def each(name):
    """A function of `slerp` over the first axis of all its arrays."""
    function = getattr(one_at_a_time, name)

    def mapped(*arguments):
        n = len(arguments[0])
        columns = [one if isinstance(one, np.ndarray) else [one] * n for one in arguments]
        return np.array([function(*row) for row in zip(*columns, strict=True)])

    return mapped


def drawn(n, seed=0):
    """Quaternions w, x, y, z: random ones, the identity, half turns about each axis, and turns of a rounding error."""
    random = np.random.default_rng(seed).normal(size=(n, 4))
    special = np.concatenate([np.eye(4), [[1, 1e-9, 0, 0], [1e-9, 1, 0, 0]]])
    found = np.concatenate([random, special])
    return found / np.linalg.norm(found, axis=-1, keepdims=True)


def scipy_of(quaternion):
    from scipy.spatial.transform import Rotation

    return Rotation.from_quat(np.roll(quaternion, -1, -1))


def test_every_form_and_back_is_the_same_rotation_as_in_torch():
    ours = drawn(200)
    for form in WIDTHS:
        written = each("from_quaternion")(ours, form)
        assert written.shape[-1] == FORMS[form]
        six = torch.from_numpy(scipy_of(ours).as_matrix()[..., :2].swapaxes(-1, -2).reshape(-1, 6).copy())
        by_torch = to_6d(torch.from_numpy(written), form)
        torch.testing.assert_close(by_torch, six, atol=1e-7, rtol=0)
        again = each("to_quaternion")(written, form)
        np.testing.assert_allclose(np.abs((again * ours).sum(-1)), 1, atol=1e-9)


def test_the_way_between_two_rotations_is_that_of_scipy():
    from scipy.spatial.transform import Rotation, Slerp

    one, other = drawn(100, 1), drawn(100, 2)
    angles = (scipy_of(one).inv() * scipy_of(other)).magnitude()
    is_clear = angles < np.pi - 1e-3  # at half a turn both ways are as short
    for share in (0.0, 0.25, 0.7, 1.0):
        found = each("slerp")(one, each("between")(one, other), share)
        for i in np.flatnonzero(is_clear):
            pair = Rotation.concatenate([scipy_of(one[i]), scipy_of(other[i])])
            expected = Slerp([0, 1], pair)([share])[0]
            assert (scipy_of(found[i]).inv() * expected).magnitude() < 1e-7
    np.testing.assert_allclose(np.linalg.norm(each("between")(one, other), axis=-1), angles, atol=1e-7)


def test_exp_and_log_are_inverses_and_products_turn_one_after_the_other():
    vectors = np.random.default_rng(0).normal(size=(100, 3))
    vectors *= np.pi * 0.999 / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), np.pi)
    np.testing.assert_allclose(each("log")(each("exp")(vectors)), vectors, atol=1e-9)
    assert one_at_a_time.log(one_at_a_time.exp([0.0, 0.0, 0.0])) == [0, 0, 0]
    a, b = drawn(50, 3), drawn(50, 4)
    assert ((scipy_of(each("product")(a, b)).inv() * scipy_of(a) * scipy_of(b)).magnitude() < 1e-7).all()


def test_euler_angles_are_refused_with_the_forms_that_are_known():
    with pytest.raises(ValueError, match=naming("'euler_xyz'", ", ".join(WIDTHS))):
        to_quaternion(np.zeros(3), "euler_xyz")
