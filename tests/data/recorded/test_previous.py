"""The previous action at every step, against a loop; and the action that stands before the first."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.data.recorded.previous import central_action, previous_actions
from dp_prior.tensors.rotations import RotationSlice
from dp_prior.tensors.six_d import from_6d
from tests.examples import examples

TURN = (RotationSlice(slice=(1, 5), form="quaternion_xyzw"),)


@examples(50)
@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6), stride=st.integers(1, 7))
def test_every_step_has_the_action_of_the_step_before_in_its_episode(lengths, stride):
    ends = np.cumsum(lengths)
    actions, start = np.arange(2.0 * ends[-1], dtype=np.float32).reshape(-1, 2), np.array([-1, -2], np.float32)
    given_actions = actions.copy()
    found = previous_actions(actions, ends, start, stride)
    for end, length in zip(ends, lengths, strict=True):
        expected = [start] * stride + [*actions[end - length : end]]
        np.testing.assert_array_equal(found[end - length : end], expected[:length])
    np.testing.assert_array_equal(actions, given_actions)


@pytest.mark.parametrize("n", [2, 50])
def test_the_start_is_the_recorded_action_nearest_to_the_mean_in_any_unit(n):
    random = np.random.default_rng(n)
    actions = random.normal(size=(n, 3)).astype(np.float32)
    actions[:, 2] = 7.0  # constant
    distances = [sum(((row - actions.mean(0)) / (actions.std(0) + [0, 0, 1])) ** 2) for row in actions]
    found = central_action(actions, ())
    np.testing.assert_allclose(sorted(distances)[0], distances[actions.tolist().index(found.tolist())], rtol=1e-5)
    units = np.array([1e-3, 1e3, 1], np.float32)
    assert central_action(actions * units, ()).tolist() == (found * units).tolist()


def test_the_start_is_a_rotation_where_actions_are_and_the_sign_of_a_quaternion_does_not_count():
    random = torch.Generator().manual_seed(0)
    turns = from_6d(torch.randn(40, 6, generator=random), "quaternion_xyzw").numpy()
    signs = np.where(np.arange(40) % 2, -1, 1)[:, None].astype(np.float32)
    actions = np.concatenate([np.linspace(0, 1, 40, dtype=np.float32)[:, None], turns], 1)
    flipped = np.concatenate([actions[:, :1], signs * turns], 1)
    found, other = central_action(actions, TURN), central_action(flipped, TURN)
    assert found.tolist() in actions.tolist() and np.array_equal(np.abs(found), np.abs(other))


def test_the_start_is_nearest_by_the_length_of_its_distance():
    random = np.random.default_rng(0)
    for _ in range(20):
        rows = random.normal(size=(7, 3)).astype(np.float32)
        distances = [np.linalg.norm((row - rows.mean(0)) / rows.std(0)) for row in rows]
        assert central_action(rows, ()).tolist() == rows[int(np.argmin(distances))].tolist()
