"""Where the rotations of a vector lie, and what is refused as one."""

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.tensors.rotations import Layout, RotationSlice
from dp_prior.tensors.six_d import from_6d, to_6d
from dp_prior_client.onboard.rotation_check import is_rotation, not_a_rotation
from tests.messages import naming, told


@pytest.mark.parametrize(
    "form, value, words",
    [
        ("quaternion_xyzw", [0.0, 0, 0, 0.5], ("length", 0.5, 1)),
        ("quaternion_wxyz", [0.0, 0, 0, 0], ("length", 0, 1)),
        ("axis_angle", [0.0, 0, 90], ("'axis_angle'", "degrees?")),
        ("euler_xyz", [180.0, 0, 0], ("'euler_xyz'", "degrees?")),
        ("euler_xyz_degrees", [800.0, 0, 0], ("two turns",)),
        ("matrix", [1.0, 0, 0, 0, 1, 0, 0, 0, 2], ("right angles", "mirror")),
        ("matrix", [1.0, 0, 0, 0, 1, 0, 0, 0, -1], ("right angles", "mirror")),
        ("6d_columns", [1.0, 0, 0, 1, 0, 0], ("axes", "length 1")),
        ("6d_rows", [0.5, 0, 0, 0, 1, 0], ("axes", "length 1")),
    ],
)
def test_numbers_that_are_no_rotation_are_found_and_described(form, value, words):
    assert not is_rotation(np.array([value]), form).any()
    assert told(not_a_rotation(value, form), *words)


def test_a_layout_keeps_other_numbers_in_their_order_and_is_its_own_inverse():
    slices = (RotationSlice(slice=(9, 13), form="quaternion_xyzw"), RotationSlice(slice=(3, 6), form="axis_angle"))
    layout = Layout(14, slices)
    assert layout.width_inside == 19
    places = [layout.inside(one) for one in ((0, 3), (3, 6), (6, 9), (9, 13), (13, 14), (0, 14))]
    assert places == [(0, 3), (3, 9), (9, 12), (12, 18), (18, 19), (0, 19)]
    random = torch.Generator().manual_seed(0)
    value = torch.randn(4, 5, 14, generator=random)
    value[..., 9:13] = from_6d(torch.randn(4, 5, 6, generator=random), "quaternion_xyzw")
    inside = layout.encode(value)
    assert torch.equal(inside[..., 9:12], value[..., 6:9]) and torch.equal(inside[..., 18], value[..., 13])
    torch.testing.assert_close(inside[..., 3:9], to_6d(value[..., 3:6], "axis_angle"))
    torch.testing.assert_close(layout.decode(inside)[..., 6:], value[..., 6:])
    torch.testing.assert_close(layout.encode(layout.decode(inside)), inside)
    known = torch.tensor([1, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1, 1, 1, 0], dtype=torch.bool)
    assert layout.weights(known).int().tolist() == [1] * 3 + [0] * 6 + [0, 1, 1] + [1] * 6 + [0]
    plain = Layout(4)
    assert plain.encode(value[..., :4]) is not None and plain.width_inside == 4


@pytest.mark.parametrize(
    "change, words",
    [
        ({"form": "rpy"}, ("form", "'rpy'", "euler_xyz")),
        ({"form": "euler_xxz"}, ("form", "'euler_xxz'")),
        ({"form": "euler_xYz"}, ("form", "'euler_xYz'")),
        ({"slice": (3, 7)}, ("[3, 7]", 4, "'axis_angle'", 3)),
        ({"slice": (3, 3)}, ("[3, 3]", "0 <= start < stop")),
    ],
)
def test_records_of_no_rotation_are_refused(change, words):
    with pytest.raises(ConfigError, match=naming(*words)):
        RotationSlice(**{"slice": (3, 6), "form": "axis_angle", **change})


def test_elements_inside_a_policy_are_named_as_they_are_ordered():
    layout = Layout(6, (RotationSlice(slice=(2, 5), form="axis_angle"),))
    names = layout.names(["x", "y", "rx", "ry", "rz", "grip"])
    assert names == ["x", "y", *(f"rx 6D {number}" for number in range(6)), "grip"]
    assert len(names) == layout.width_inside
