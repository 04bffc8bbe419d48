"""What every environment refuses: too many seeds, and actions that are not a finite row per episode."""

import numpy as np
import pytest

from dp_prior.envs.vector import check_actions, check_seeds
from tests.cases import every
from tests.messages import naming


@pytest.mark.parametrize("n_envs", [1, 3])
def test_from_one_to_as_many_seeds_as_there_are_environments_are_taken(n_envs):
    for count in range(1, n_envs + 1):
        check_seeds(range(count), n_envs)
    for count in (0, n_envs + 1):
        with pytest.raises(ValueError, match=naming(f"{count} seeds", f"1 to {n_envs}")):
            check_seeds(range(count), n_envs)


def test_good_actions_are_taken_as_they_are():
    actions = [[1.0, -2.0], [0.0, 1e30]]
    assert check_actions(actions, 2, 2).tolist() == actions


@every(shape=[(2,), (2, 3), (3, 2), (2, 2, 1), ()])
def test_actions_of_another_shape_are_refused_with_both_shapes(shape):
    with pytest.raises(ValueError) as caught:
        check_actions(np.zeros(shape), 2, 2)
    assert str(shape) in str(caught.value) and "(2, 2)" in str(caught.value)


@every(row=[0, 2], bad=[np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_is_named_with_its_row(bad, row):
    actions = np.zeros((3, 2))
    actions[row, 1] = bad
    with pytest.raises(ValueError, match=naming(f"row {row}", bad)):
        check_actions(actions, 3, 2)
