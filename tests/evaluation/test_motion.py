"""The motion of a block: paths of actions and of vectors that the policy observes, by episode."""

import math

import numpy as np
import pytest

from dp_prior.evaluation.motion import MEASURES, MOST_FOLLOWED, Motion, measures, motion_table, signals
from dp_prior.tensors.batch import Spec

STEPS = np.array([6.0, 9.0])


def test_signals_are_the_action_and_vectors_that_the_policy_observes():
    shapes = {"state": (5,), "unseen": (2,), "camera": (8, 8, 3), "wide": (MOST_FOLLOWED + 1,), "text": ()}
    seen = {key: (2, *shape) for key, shape in shapes.items() if key != "unseen"}
    spec = Spec(x_shape=(4, 2), cond_shapes={**seen, "text": (2, 8)}, kinds={"camera": "image", "text": "text"})
    assert signals(shapes, 2, spec, {}) == {"action": [0, 1], "state": [0, 1, 2, 3, 4]}
    assert signals(shapes, 2, spec, {"state": (4, 1), "other": (0,)})["state"] == [0, 2, 3]
    assert "state" not in signals(shapes, 2, spec, {"state": range(5)}), "of angles alone"


def test_an_observation_that_is_named_as_the_action_is_not_followed_in_its_place():
    """The numbers of the observation were looked for in the action: an IndexError at the end of a rollout."""
    spec = Spec(x_shape=(4, 2), cond_shapes={"action": (2, 3), "state": (2, 1)})
    assert signals({"action": (3,), "state": (1,)}, 2, spec, {}) == {"action": [0, 1], "state": [0]}


def test_an_angle_that_jumps_by_a_full_turn_moves_nothing():
    states = np.random.default_rng(0).normal(size=(1, 10, 3))
    turned = states + [0, 0, 2 * np.pi] * (np.arange(10) % 2)[:, None]
    found = []
    for path in (states, turned):
        motion = Motion({"state": [0, 1]}, {"state": path[:, 0]}, max_steps=12, rate=10.0)
        for step in range(9):
            motion.add(path[:, step, :2], {"state": path[:, step + 1]})
        found.append(motion.measured(np.array([9.0])))
    np.testing.assert_array_equal(*found)
    np.testing.assert_array_equal(found[0][0], measures(padded(states[0, :, :2]), np.array([10.0]), 10.0)[0])


def played():
    random = np.random.default_rng(0)
    actions, states = random.normal(size=(2, 9, 2)), random.normal(size=(2, 10, 3))
    followed = {"action": [0, 1], "state": [0, 1, 2]}
    motion = Motion(followed, {"state": states[:, 0], "other": states[:, 0]}, max_steps=12, rate=10.0)
    for step in range(9):
        motion.add(actions[:, step], {"state": states[:, step + 1]})
    return motion, actions, states


def padded(path):
    return np.concatenate([path, np.zeros((13 - len(path), path.shape[1]))])[None]


def test_an_episode_has_an_observation_more_than_actions():
    motion, actions, states = played()
    found = motion.measured(STEPS)
    for row, steps in enumerate(STEPS.astype(int)):
        own = [padded(actions[row, :steps]), padded(states[row, : steps + 1])]
        expected = [
            measures(path, np.array([count]), 10.0)[0] for path, count in zip(own, (steps, steps + 1), strict=True)
        ]
        np.testing.assert_array_equal(found[row], np.concatenate(expected))


def test_the_table_has_means_over_the_episodes_that_have_a_value():
    rows = played()[0].measured(STEPS)
    rows[0, 1] = np.nan
    table = motion_table(["action", "state"], rows)
    assert [line["signal"] for line in table] == ["action", "state"]
    assert table[0]["sparc"] == rows[1, 1] and table[1]["distance"] == pytest.approx(rows[:, len(MEASURES)].mean())
    assert motion_table(["action"], np.full((2, len(MEASURES)), np.nan))[0]["sparc"] is None


RATE = 100.0


def minimum_jerk(steps, distance):
    """(steps, 1) positions of the movement from 0 to `distance` with the least jerk: Flash and Hogan 1985."""
    t = np.linspace(0, 1, steps)[:, None]
    return distance * (10 * t**3 - 15 * t**4 + 6 * t**5)


def measured(*paths, length=None, rate=RATE):
    """A dictionary of the measures of several paths (T, D) of any length."""
    length = length or max(map(len, paths))
    padded = np.zeros((len(paths), length, paths[0].shape[1]))
    for row, path in zip(padded, paths, strict=True):
        row[: len(path)] = path
    found = measures(padded, np.array([float(len(path)) for path in paths]), rate)
    return dict(zip(MEASURES, found.T, strict=True))


@pytest.mark.parametrize(("distance", "seconds"), [(1.0, 2.0), (0.3, 5.0)])
def test_the_movement_with_the_least_jerk_has_its_known_jerk(distance, seconds):
    """Its mean squared jerk is 720 d² / T⁶; in units of duration and peak speed 720 / 1.875² for any d and T."""
    rate = 1000.0
    found = measured(minimum_jerk(round(seconds * rate) + 1, distance), rate=rate)
    assert found["distance"] == pytest.approx(distance, rel=1e-9)
    assert found["mean_squared_jerk"] == pytest.approx(720 * distance**2 / seconds**6, rel=0.01)
    assert found["log_dimensionless_jerk"] == pytest.approx(-math.log(720 / 1.875**2), abs=0.02)


def test_paths_whose_third_difference_is_constant_have_exactly_that_jerk():
    t = np.arange(40)[:, None] / RATE
    assert measured(2 * t**3)["mean_squared_jerk"] == pytest.approx(12.0**2, rel=1e-6)
    assert measured(5 * t**2 + t)["mean_squared_jerk"] == pytest.approx(0, abs=1e-9)


def spectral_arc_length(speed, rate, padding=16, highest=10.0, least=0.05):
    """By the paper's definition, with a discrete Fourier transform summed term by term."""
    points = 1 << (padding * len(speed) - 1).bit_length()
    frequencies = [k * rate / points for k in range(points // 2 + 1) if k * rate / points <= highest]
    turns = np.exp(-2j * np.pi * np.outer(np.array(frequencies) / rate, np.arange(len(speed))))
    magnitude = np.abs(turns @ speed)
    magnitude /= magnitude.max()
    last = np.flatnonzero(magnitude >= least)[-1]
    width = frequencies[last] - frequencies[0]
    arc = 0.0
    for k in range(last):
        step = (frequencies[k + 1] - frequencies[k]) / width
        arc -= math.hypot(step, magnitude[k + 1] - magnitude[k])
    return arc


@pytest.mark.parametrize("hertz", [0.5, 1.0, 3.0])
def test_the_spectral_arc_length_of_a_sine_is_that_of_its_transform(hertz):
    t = np.arange(257) / RATE
    path = np.sin(2 * np.pi * hertz * t)[:, None]
    speed = np.abs(np.diff(path[:, 0])) * RATE
    assert measured(path)["sparc"] == pytest.approx(spectral_arc_length(speed, RATE), abs=1e-9)


def test_measures_of_random_paths_are_those_of_a_loop():
    random = np.random.default_rng(0)
    paths = [random.normal(size=(129, 3)).cumsum(axis=0) for _ in range(4)]
    found = measured(*paths, rate=30.0)
    for row, path in enumerate(paths):
        speed = np.linalg.norm(np.diff(path, axis=0), axis=1) * 30
        assert found["distance"][row] == pytest.approx(sum(speed) / 30)
        assert found["sparc"][row] == pytest.approx(spectral_arc_length(speed, 30.0), abs=1e-9)
        jerk = [np.sum(((path[i + 3] - 3 * path[i + 2] + 3 * path[i + 1] - path[i]) * 30**3) ** 2) for i in range(126)]
        assert found["mean_squared_jerk"][row] == pytest.approx(np.mean(jerk))
        bend = sum(((speed[i + 2] - 2 * speed[i + 1] + speed[i]) * 30**2) ** 2 for i in range(126)) / 30
        assert found["log_dimensionless_jerk"][row] == pytest.approx(
            -math.log((128 / 30) ** 3 / max(speed) ** 2 * bend)
        )


def test_what_stands_after_a_paths_end_and_beside_it_changes_no_bit():
    random = np.random.default_rng(1)
    paths = [random.normal(size=(length, 2)).cumsum(axis=0) for length in (7, 30, 51)]
    together = measured(*paths, length=64)
    for row, path in enumerate(paths):
        alone = measured(path, length=64)
        assert all(alone[key][0] == together[key][row] for key in MEASURES)
    dirty = np.full((1, 64, 2), 1e9)
    dirty[0, :7] = paths[0]
    assert np.array_equal(measures(dirty, np.array([7.0]), RATE)[0], [together[key][0] for key in MEASURES])


def test_smoother_movements_have_better_values_and_pauses_worse_ones():
    smooth = minimum_jerk(201, 1.0)
    halves = np.concatenate([smooth[::2] / 2, np.full((40, 1), 0.5), 0.5 + smooth[::2] / 2])
    shaky = smooth + 0.01 * np.random.default_rng(2).normal(size=smooth.shape)
    found = measured(smooth, halves, shaky)
    for key, sign in (("sparc", 1), ("log_dimensionless_jerk", 1), ("mean_squared_jerk", -1)):
        best, *others = sign * found[key]
        assert all(best > other for other in others), key


@pytest.mark.parametrize("scale", [0.1, 7.0])
def test_dimensionless_measures_do_not_know_the_size_of_a_movement(scale):
    path = np.random.default_rng(3).normal(size=(60, 2)).cumsum(axis=0)
    one, other = measured(path), measured(scale * path)
    for key in ("sparc", "log_dimensionless_jerk"):
        assert one[key] == pytest.approx(other[key], abs=1e-9)


def test_paths_that_are_too_short_stand_still_or_hold_nan_have_no_smoothness():
    still, short, broken = np.ones((20, 1)), np.arange(3.0)[:, None], np.where(np.arange(20) == 5, np.nan, 1.0)[:, None]
    found = measured(still, short, broken)
    assert found["distance"][0] == 0 and found["mean_squared_jerk"][0] == 0
    assert np.isnan(found["sparc"]).all() and np.isnan(found["log_dimensionless_jerk"]).all()
    assert np.isnan([found[key][1:] for key in MEASURES]).all()
