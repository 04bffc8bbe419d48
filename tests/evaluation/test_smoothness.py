"""Smoothness against closed forms and against a loop over single paths, written from the papers."""

import math

import numpy as np
import pytest

from dp_prior.evaluation.smoothness import MEASURES, measures

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
