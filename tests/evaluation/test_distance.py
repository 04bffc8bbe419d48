"""Distances of distributions against closed forms, an independent implementation, brute force and laws of bias."""

import numpy as np
import pytest
import torch

from dp_prior.evaluation.distance import frechet_distance, kernel_distance


def normal(n, dim=4, seed=0, scale=1.0, shift=0.0):
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(dim, dim, generator=torch.Generator().manual_seed(7), dtype=torch.float64) / dim**0.5
    return shift + scale * torch.randn(n, dim, generator=generator, dtype=torch.float64) @ mix


@pytest.mark.parametrize(("n", "m", "dim"), [(40, 60, 5), (60, 8, 12), (6, 9, 20), (5, 50, 20)])
def test_frechet_is_that_of_a_root_by_scipy(n, m, dim):
    linalg = pytest.importorskip("scipy.linalg", reason="scipy is not installed: the Fréchet distance is NOT tested")
    one, other = normal(n, dim).numpy(), normal(m, dim, seed=1, scale=1.5, shift=0.3).numpy()
    covariances = [np.cov(x, rowvar=False) for x in (one, other)]
    root = linalg.sqrtm(covariances[0] @ covariances[1]).real
    expected = ((one.mean(0) - other.mean(0)) ** 2).sum() + np.trace(sum(covariances) - 2 * root)
    found = frechet_distance(torch.tensor(one), torch.tensor(other))
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)  # roots of singular matrices cost scipy digits


def test_frechet_of_scaled_and_shifted_vectors_has_a_closed_form():
    one = normal(200)
    variance = one.var(0).sum().item()
    assert frechet_distance(one, one) == pytest.approx(0, abs=1e-10)
    assert frechet_distance(one, one + 2.0) == pytest.approx(4 * 2.0**2, rel=1e-9)
    assert frechet_distance(one - one.mean(0), 3 * (one - one.mean(0))) == pytest.approx(
        (3 - 1) ** 2 * variance, rel=1e-9
    )
    assert frechet_distance(one, normal(50, seed=1)) == pytest.approx(frechet_distance(normal(50, seed=1), one))


def test_kernel_distance_is_the_sum_over_all_pairs():
    one, other = normal(7), normal(9, seed=1, shift=0.2)

    def kernel(x, y):
        return (float(x @ y) / len(x) + 1) ** 3

    within = [
        sum(kernel(x, y) for i, x in enumerate(part) for j, y in enumerate(part) if i != j)
        / (len(part) * (len(part) - 1))
        for part in (one, other)
    ]
    across = sum(kernel(x, y) for x in one for y in other) / (len(one) * len(other))
    assert kernel_distance(one, other) == pytest.approx(sum(within) - 2 * across, rel=1e-12)
    many, more = normal(2050), normal(30, seed=2)  # more than fit into one block
    parts = torch.cat([many, more])
    assert kernel_distance(many, more) == pytest.approx(kernel_distance(parts[:2050].flip(0), parts[2050:]), rel=1e-9)


@pytest.mark.slow
def test_the_kernel_distance_has_no_bias_and_the_frechet_distance_a_positive_one_that_shrinks():
    """Over 300 pairs of sets from one distribution; the mean of the one is 0 within 4 standard errors."""
    found = {
        n: np.array(
            [
                [
                    distance(normal(n, seed=2 * k), normal(n, seed=2 * k + 1))
                    for distance in (kernel_distance, frechet_distance)
                ]
                for k in range(300)
            ]
        )
        for n in (8, 32)
    }
    for values in found.values():
        mean, error = values.mean(0), values.std(0) / len(values) ** 0.5
        assert abs(mean[0]) < 4 * error[0] and mean[1] > 10 * error[1]
    assert found[8][:, 1].mean() > 2.5 * found[32][:, 1].mean()


def test_both_distances_grow_with_what_they_should_notice():
    reference = normal(400)
    for distance in (kernel_distance, frechet_distance):
        shifts = [distance(normal(400, seed=1, shift=shift), reference) for shift in (0, 0.5, 1)]
        scales = [distance(normal(400, seed=1, scale=scale), reference) for scale in (1, 1.5, 2)]
        assert sorted(shifts) == shifts and sorted(scales) == scales
