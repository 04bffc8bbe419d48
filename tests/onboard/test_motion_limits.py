"""Commands keep their limits whatever the target does, and a step is the trapezoid or the S-curve of the textbooks."""

import numpy as np
import pytest

from dp_prior.onboard.motion_limits import LimitedMotion, MotionLimits
from tests.cases import every
from tests.messages import naming

RATE = 500


def followed(target, rate=RATE, start=0.0, **limits):
    """(n,) commands of one number toward (n,) targets."""
    motion = LimitedMotion(MotionLimits(**limits).of(1), rate, np.array([start]))
    return np.array([motion.step(np.array([one]))[0] for one in target])


def derivatives(commands, rate=RATE, start=0.0):
    """Largest velocity, acceleration and jerk, from rest."""
    path, found = np.concatenate([np.full(4, start), commands]), []
    for _ in range(3):
        path = np.diff(path) * rate
        found.append(np.abs(path).max())
    return found


@every(seed=range(6))
def test_no_limit_is_ever_exceeded_whatever_the_target_does(seed):
    random = np.random.default_rng(seed)
    limits = dict(zip(("velocity", "acceleration", "jerk"), 10 ** random.uniform(-1, 3, 3), strict=True))
    kind = seed % 3
    target = random.normal(size=200).cumsum() if kind else np.repeat(random.normal(scale=9, size=4), 50)
    target = target * (1e3 if kind == 2 else 1)
    found = derivatives(followed(target, **limits))
    for got, limit in zip(found, limits.values(), strict=True):
        assert got <= limit * (1 + 1e-6) + 1e-6


def test_a_step_is_a_trapezoid_that_arrives_when_the_closed_form_says_and_passes_nothing():
    """Distance 2 at most 1 a second and 4 a second squared: 0.25 s up, 1.75 s of speed, 0.25 s down."""
    found = followed(np.full(1500, 2.0), velocity=1.0, acceleration=4.0)
    times = (np.arange(1500) + 1) / RATE
    up, flat = 0.25, 1.75
    expected = np.select(
        [times < up, times < up + flat, times < 2 * up + flat],
        [2 * times**2, 0.125 + (times - up), 2 - 2 * (2 * up + flat - times) ** 2],
        2.0,
    )
    np.testing.assert_allclose(found, expected, atol=2 / RATE)  # a tick at speed 1, and its rounding
    assert found.max() <= 2 + 1e-12 and found[-1] == pytest.approx(2, abs=1e-12)
    assert derivatives(found)[0] == pytest.approx(1.0)


def test_a_jerk_limit_makes_the_trapezoid_an_s_curve_and_delays_it_by_half_its_window():
    """A window of 2 a / j = 0.4 s; the mean of a trapezoid over it is the S-curve with this jerk."""
    plain = followed(np.full(2000, 2.0), velocity=1.0, acceleration=4.0)
    found = followed(np.full(2000, 2.0), velocity=1.0, acceleration=4.0, jerk=20.0)
    window = np.ones(200) / 200
    np.testing.assert_allclose(found, np.convolve(np.concatenate([np.zeros(199), plain]), window, "valid"), atol=1e-12)
    assert derivatives(found)[2] <= 20 + 1e-6
    half = [np.argmax(one >= 1.0) for one in (plain, found)]
    assert half[1] - half[0] == pytest.approx(0.2 * RATE, abs=2)


def test_a_target_of_constant_velocity_is_followed_at_the_distance_of_the_closed_form():
    speed, acceleration = 0.5, 4.0
    target = speed * np.arange(1, 1500) / RATE
    found = followed(target, velocity=1.0, acceleration=acceleration)
    assert target[-1] - found[-1] == pytest.approx(speed**2 / (2 * acceleration), abs=2 * speed / RATE)
    assert np.diff(found)[-200:] * RATE == pytest.approx(speed, rel=1e-6)


def test_without_limits_the_command_is_the_target():
    target = np.random.default_rng(0).normal(size=50)
    np.testing.assert_allclose(followed(target), target, atol=1e-12)


def test_limits_without_meaning_are_refused():
    for wrong in (0, -1, np.nan, [1.0, -1.0]):
        with pytest.raises(ValueError, match=naming("velocity", f"{wrong!r};", "above 0")):
            MotionLimits(velocity=wrong)
    with pytest.raises(ValueError, match=naming("jerk", "acceleration too")):
        MotionLimits(jerk=1.0)
    with pytest.raises(ValueError, match=naming("velocity", "2 limits", "3 numbers")):
        MotionLimits(velocity=[1.0, 2.0]).of(3)
