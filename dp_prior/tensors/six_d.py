"""Rotations of every form to 6D, which policies read and predict, and back.

6D is the first two columns of the rotation matrix (Zhou et al. 2019, arXiv:1812.07035). 6D is continuous, while angles
jump at pi, axes are undefined at 0, and a quaternion has two signs. Every function is batched over leading axes, exact
to rounding in float32 at every rotation (0, pi and gimbal lock included), and finite for any finite numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

TINY = 1e-12  # its square is still a normal float32


def to_6d(value: Tensor, form: str) -> Tensor:
    """(..., width) float32 rotations of a form -> (..., 6)."""
    if form == "6d_columns":
        return value
    if form == "6d_rows":
        matrix = matrix_of(value).mT
    elif form == "matrix":
        matrix = value.unflatten(-1, (3, 3))
    else:
        matrix = _matrix_of_quaternion(_quaternion(value, form))
    return matrix[..., :2].mT.flatten(-2)


def from_6d(value: Tensor, form: str) -> Tensor:
    """(..., 6) -> (..., width) rotations of a form.

    Quaternions have w >= 0, axis-angles a length of at most pi, Euler angles lie within a half turn of 0, the middle
    one within a quarter turn (or from 0 to a half turn if the outer axes are equal).
    """
    matrix = matrix_of(value)
    if form == "6d_columns":
        return matrix[..., :2].mT.flatten(-2)
    if form == "6d_rows":
        return matrix[..., :2, :].flatten(-2)
    if form == "matrix":
        return matrix.flatten(-2)
    quaternion = _quaternion_of_matrix(matrix)  # w, x, y, z
    if form == "quaternion_wxyz":
        return quaternion
    if form == "quaternion_xyzw":
        return quaternion.roll(-1, -1)
    if form == "axis_angle":
        sine = _length(quaternion[..., 1:])
        return quaternion[..., 1:] * (2 * torch.atan2(sine, quaternion[..., :1]) / sine)
    angles = _euler_of_quaternion(quaternion, *_order(form))
    return angles.rad2deg() if form.endswith("degrees") else angles


def matrix_of(value: Tensor) -> Tensor:
    """(..., 6), the first two columns -> (..., 3, 3) rotation matrices, by Gram-Schmidt."""
    first, second = value.unflatten(-1, (2, 3)).unbind(-2)
    first = first / _length(first)
    second = second - (first * second).sum(-1, keepdim=True) * first
    second = second / _length(second)
    return torch.stack([first, second, torch.linalg.cross(first, second)], dim=-1)


def median_angle(first: Tensor, second: Tensor) -> float:
    """Median angle between rotations, (B, 6) each, in radians."""
    cosine = ((matrix_of(first) * matrix_of(second)).sum((-1, -2)) - 1) / 2
    return cosine.clamp(-1, 1).acos().median().item()


def _length(value: Tensor) -> Tensor:
    """(..., n) -> (..., 1), at least `TINY`."""
    total = value.square().sum(-1, keepdim=True)
    return total.masked_fill(total == 0, TINY**2).sqrt().clamp_min(TINY)  # the root of 0 has an infinite gradient


def _quaternion(value: Tensor, form: str) -> Tensor:
    """(..., 3 or 4) -> (..., 4) quaternions w, x, y, z of length 1."""
    if form.startswith("quaternion"):
        value = value / _length(value)
        return value.roll(1, -1) if form == "quaternion_xyzw" else value
    if form == "axis_angle":
        angle = _length(value)
        return torch.cat([(angle / 2).cos(), value * ((angle / 2).sin() / angle)], dim=-1)
    half = (value.deg2rad() if form.endswith("degrees") else value) / 2
    axes, is_fixed = _order(form)
    quaternion = None
    for axis, angle in zip(axes, half.unbind(-1), strict=True):
        parts = [torch.zeros_like(angle)] * 3
        parts[axis] = angle.sin()
        turn = torch.stack([angle.cos(), *parts], dim=-1)
        if quaternion is None:
            quaternion = turn
        else:
            quaternion = _product(turn, quaternion) if is_fixed else _product(quaternion, turn)
    return quaternion


def _order(form: str) -> tuple[list[int], bool]:
    """The axes of Euler angles as numbers, and whether they stay fixed."""
    letters = form.split("_")[1]
    return ["xyz".index(letter) for letter in letters.lower()], letters.islower()


def _product(second: Tensor, first: Tensor) -> Tensor:
    """(..., 4): the rotation of `first`, followed by the rotation of `second`."""
    a, b, c, d = second.unbind(-1)
    w, x, y, z = first.unbind(-1)
    return torch.stack(
        [
            a * w - b * x - c * y - d * z,
            a * x + b * w + c * z - d * y,
            a * y - b * z + c * w + d * x,
            a * z + b * y - c * x + d * w,
        ],
        dim=-1,
    )


def _matrix_of_quaternion(quaternion: Tensor) -> Tensor:
    """(..., 4) of length 1 -> (..., 3, 3)."""
    w, x, y, z = quaternion.unbind(-1)
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return torch.stack([torch.stack(row, dim=-1) for row in rows], dim=-2)


def _quaternion_of_matrix(matrix: Tensor) -> Tensor:
    """(..., 3, 3) -> (..., 4) with w >= 0, from the row of 4 q q^T with the largest q, which is never near 0."""
    (a, b, c), (d, e, f), (g, h, i) = (row.unbind(-1) for row in matrix.unbind(-2))
    outer = [
        [1 + a + e + i, h - f, c - g, d - b],
        [h - f, 1 + a - e - i, b + d, c + g],
        [c - g, b + d, 1 - a + e - i, f + h],
        [d - b, c + g, f + h, 1 - a - e + i],
    ]
    rows = torch.stack([torch.stack(row, dim=-1) for row in outer], dim=-2)
    largest = torch.stack([outer[k][k] for k in range(4)], dim=-1).argmax(-1)
    row = rows.gather(-2, largest[..., None, None].expand(*largest.shape, 1, 4))[..., 0, :]
    return torch.where(row[..., :1] < 0, -row, row) / _length(row)


def _euler_of_quaternion(quaternion: Tensor, axes: list[int], is_fixed: bool) -> Tensor:
    """(..., 4) -> (..., 3), for any order (Bernardes and Viollet 2022, doi:10.1371/journal.pone.0276302). In gimbal
    lock only the sum or difference of the outer angles is defined; returns the solution of least length."""
    i, j, k = axes if is_fixed else axes[::-1]
    is_symmetric = i == k
    k = 3 - i - j if is_symmetric else k
    sign = (i - j) * (j - k) * (k - i) / 2
    w, vector = quaternion[..., 0], quaternion[..., 1:].unbind(-1)
    if is_symmetric:
        a, b, c, d = w, vector[i], vector[j], vector[k] * sign
    else:
        a, b = w - vector[j], vector[i] + vector[k] * sign
        c, d = vector[j] + w, vector[k] * sign - vector[i]
    half_sum, half_difference = torch.atan2(b, a), torch.atan2(d, c)
    first, third = half_sum - half_difference, half_sum + half_difference
    second = 2 * torch.atan2((c * c + d * d).sqrt(), (a * a + b * b).sqrt())
    if not is_symmetric:
        third, second = third * sign, second - math.pi / 2
    angles = torch.stack([first, second, third] if is_fixed else [third, second, first], dim=-1)
    return angles - (2 * math.pi) * (angles / (2 * math.pi)).round()
