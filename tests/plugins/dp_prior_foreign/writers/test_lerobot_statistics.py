"""Statistics of episodes: closed forms, and pooling as if all frames had been one episode."""

import functools

import numpy as np

from dp_prior_foreign.writers.lerobot_statistics import QUANTILES, number_statistics, pixel_statistics, pooled


def test_quantiles_are_values_that_occur_and_shapes_are_those_of_the_last_axis():
    found = number_statistics(np.arange(100.0)[::-1, None] * [[1, -1]])
    assert [found[name].tolist() for name in QUANTILES] == [[0, -99], [9, -90], [49, -50], [89, -10], [98, -1]]
    assert found["count"].tolist() == [100] and found["min"].tolist() == [0, -99]
    assert all(value.shape == (1,) for value in number_statistics(np.array([True])).values())
    points = np.random.default_rng(0).normal(size=(6, 3, 2))
    flat = number_statistics(points.reshape(18, 2)) | {"count": np.array([6])}
    for name, value in number_statistics(points).items():
        assert np.array_equal(value, flat[name]), name


def test_pooled_episodes_are_one():
    values = np.random.default_rng(1).normal(size=(50, 3)).astype(np.float32)
    parts = [number_statistics(part) for part in np.split(values, [1, 20, 21])]
    found, whole = functools.reduce(pooled, parts), number_statistics(values)
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(found[name], whole[name], atol=1e-12)
    for name in QUANTILES:  # the average of the episodes', as LeRobot pools them
        expected = np.average([part[name] for part in parts], axis=0, weights=[1, 19, 1, 29])
        np.testing.assert_allclose(found[name], expected, atol=1e-12)


def test_pixels_are_numbers_from_0_to_1_by_channel():
    frames = np.random.default_rng(2).integers(3, 200, (4, 5, 7, 3), np.uint8)
    expected = number_statistics(frames.reshape(-1, 3) / 255)
    for name, value in pixel_statistics(frames).items():
        if name == "count":
            assert value.tolist() == [4]
        else:
            assert value.shape == (3, 1, 1)
            np.testing.assert_allclose(value.ravel(), expected[name], atol=1e-12)
