"""Spatial softmax: feature maps -> keypoints, the expected position of each map's activation (Finn et al. 2016)."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SpatialSoftmax(nn.Module):
    """A 1x1 convolution to one map per keypoint, then the mean position under each map's softmax.

    Positions run from -1 to 1 on numpy's float32 grid, as in the training of published policies (torch's linspace
    differs in the last bit). Keypoints are computed in float32 even under autocast: bfloat16 would round a keypoint to
    1/256 of the frame.

    Args:
        channels: of the feature maps.
        size: (height, width) of the feature maps.
        sharpness: standard deviation that every map is scaled to before its softmax; None leaves it to the network.
    """

    def __init__(self, *, channels: int, size: tuple[int, int], keypoints: int, sharpness: float | None = None):
        super().__init__()
        height, width = size
        if height * width == 1:
            raise ValueError(
                "the feature map is 1x1, where spatial softmax finds every keypoint in the middle. Use larger frames "
                "or a larger crop, fewer levels in blocks, or pool 'mean'"
            )
        self.conv = nn.Conv2d(channels, keypoints, 1)
        x, y = np.meshgrid(np.linspace(-1.0, 1.0, width), np.linspace(-1.0, 1.0, height))
        grid = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)  # (height * width, 2)
        self.register_buffer("grid", torch.tensor(grid), persistent=False)
        self.sharpness = sharpness
        self.output_dim = 2 * keypoints

    def forward(self, features: Tensor) -> Tensor:
        """(N, channels, height, width) -> (N, 2 * keypoints) float32: x and y of each keypoint in turn."""
        maps = self.conv(features).flatten(2)  # (N, keypoints, height * width)
        with torch.autocast(maps.device.type, enabled=False):
            maps = maps.float()
            if self.sharpness is not None:
                maps = self.sharpness * F.layer_norm(maps, maps.shape[-1:])
            return (maps.softmax(dim=-1) @ self.grid.float()).flatten(1)


class MeanPool(nn.Module):
    """The mean of every feature map."""

    def __init__(self, *, channels: int):
        super().__init__()
        self.output_dim = channels

    def forward(self, features: Tensor) -> Tensor:
        """(N, channels, height, width) -> (N, channels)."""
        return features.mean(dim=(2, 3))
