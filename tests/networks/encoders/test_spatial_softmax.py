"""Spatial softmax against numpy."""

import numpy as np
import pytest
import torch

from dp_prior.networks.encoders.spatial_softmax import MeanPool, SpatialSoftmax
from tests.messages import naming


def reimplemented(features, weight, bias, sharpness=None):
    """robomimic's and LeRobot's, in numpy: keypoints (N, K, 2), x before y. `sharpness` is ours."""
    maps = np.einsum("nchw,kc->nkhw", features, weight[:, :, 0, 0]) + bias[:, None, None]
    if sharpness is not None:
        maps = sharpness * (maps - maps.mean((2, 3), keepdims=True)) / maps.std((2, 3), keepdims=True)
    n, k, height, width = maps.shape
    x, y = np.meshgrid(np.linspace(-1.0, 1.0, width), np.linspace(-1.0, 1.0, height))
    attention = np.exp(maps - maps.max(axis=(2, 3), keepdims=True))
    attention /= attention.sum(axis=(2, 3), keepdims=True)
    return np.stack([(attention * x).sum(axis=(2, 3)), (attention * y).sum(axis=(2, 3))], axis=2)


@pytest.mark.parametrize("sharpness", [None, 0.5, 4.0])
@pytest.mark.parametrize("size", [(3, 3), (4, 7), (1, 5)])
def test_it_equals_numpy(size, sharpness):
    torch.manual_seed(0)
    pool = SpatialSoftmax(channels=6, size=size, keypoints=4, sharpness=sharpness)
    features = 3 * torch.randn(5, 6, *size)
    weights = pool.conv.weight.detach().numpy(), pool.conv.bias.detach().numpy()
    expected = reimplemented(features.numpy(), *weights, sharpness)
    found = pool(features)
    assert found.shape == (5, pool.output_dim) == (5, 8)
    np.testing.assert_allclose(found.detach().numpy(), expected.reshape(5, 8), atol=1e-5)


def test_of_a_sharpness_the_scale_of_the_maps_does_not_matter_and_a_map_without_contrast_is_seen_in_the_middle():
    torch.manual_seed(0)
    pool = SpatialSoftmax(channels=6, size=(9, 12), keypoints=4, sharpness=4.0)
    features = torch.randn(5, 6, 9, 12)
    torch.testing.assert_close(pool(0.3 * features), pool(1e3 * features), atol=1e-2, rtol=0)
    assert pool(torch.ones(1, 6, 9, 12)).abs().max() < 1e-3
    torch.nn.init.zeros_(pool.conv.weight)
    pool(features).sum().backward()
    assert all(torch.isfinite(value.grad).all() for value in pool.parameters())


@pytest.mark.parametrize("size", [(6, 8), (24, 32), (60, 80)])
def test_a_sharp_keypoint_sees_a_dot_from_the_first_step_on_maps_of_any_size(size):
    """Without, it begins at the mean of all places, the nearer the larger the map."""
    for sharpness, least, most in ((None, 0.0, 0.2), (4.0, 0.5, 1.0)):
        torch.manual_seed(0)
        pool = SpatialSoftmax(channels=6, size=size, keypoints=64, sharpness=sharpness)
        features = 0.1 * torch.randn(2, 6, *size)
        features[0, :, 1, 1] += 1.0
        features[1, :, -2, -2] += 1.0
        moved = (pool(features[1:]) - pool(features[:1])).detach()
        whole = (pool.grid[-size[1] - 2] - pool.grid[size[1] + 1]).repeat(64)  # from dot to dot
        share = (moved / whole).max()
        assert least <= share <= most


def test_the_grid_is_numpys_to_the_last_bit():
    x, y = np.meshgrid(np.linspace(-1.0, 1.0, 11), np.linspace(-1.0, 1.0, 7))
    grid = SpatialSoftmax(channels=1, size=(7, 11), keypoints=1).grid
    assert torch.equal(grid, torch.from_numpy(np.stack([x.ravel(), y.ravel()], 1)).float())


def test_a_sharp_peak_is_found_where_it_is():
    pool = SpatialSoftmax(channels=1, size=(5, 9), keypoints=1)
    torch.nn.init.ones_(pool.conv.weight)
    features = torch.zeros(1, 1, 5, 9)
    features[0, 0, 1, 8] = 100.0
    torch.testing.assert_close(pool(features), torch.tensor([[1.0, -0.5]]))


def test_positions_keep_their_precision_under_autocast():
    pool = SpatialSoftmax(channels=1, size=(21, 21), keypoints=1)
    torch.nn.init.ones_(pool.conv.weight)
    features = torch.zeros(1, 1, 21, 21)
    features[0, 0, 3, 17] = 64.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pool(features)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, torch.tensor([[0.7, -0.7]]))


def test_a_map_of_one_position_is_refused():
    with pytest.raises(ValueError, match=naming("1x1", "'mean'")):
        SpatialSoftmax(channels=8, size=(1, 1), keypoints=2)


def test_mean_pool_is_the_mean_of_each_map():
    features = torch.randn(2, 3, 4, 5)
    torch.testing.assert_close(MeanPool(channels=3)(features), features.flatten(2).mean(-1))
