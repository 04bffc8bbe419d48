"""Spatial softmax against numpy."""

import numpy as np
import pytest
import torch

from dp_prior.networks.encoders.spatial_softmax import MeanPool, SpatialSoftmax
from tests.messages import naming


def reimplemented(features, weight, bias):
    """robomimic's and LeRobot's, in numpy: keypoints (N, K, 2), x before y."""
    maps = np.einsum("nchw,kc->nkhw", features, weight[:, :, 0, 0]) + bias[:, None, None]
    n, k, height, width = maps.shape
    x, y = np.meshgrid(np.linspace(-1.0, 1.0, width), np.linspace(-1.0, 1.0, height))
    attention = np.exp(maps - maps.max(axis=(2, 3), keepdims=True))
    attention /= attention.sum(axis=(2, 3), keepdims=True)
    return np.stack([(attention * x).sum(axis=(2, 3)), (attention * y).sum(axis=(2, 3))], axis=2)


@pytest.mark.parametrize("size", [(3, 3), (4, 7), (1, 5)])
def test_it_equals_numpy(size):
    torch.manual_seed(0)
    pool = SpatialSoftmax(channels=6, size=size, keypoints=4)
    features = 3 * torch.randn(5, 6, *size)
    expected = reimplemented(features.numpy(), pool.conv.weight.detach().numpy(), pool.conv.bias.detach().numpy())
    found = pool(features)
    assert found.shape == (5, pool.output_dim) == (5, 8)
    np.testing.assert_allclose(found.detach().numpy(), expected.reshape(5, 8), atol=1e-6)


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
