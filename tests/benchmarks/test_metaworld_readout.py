"""What the readouts of Meta-World's camera count."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks import metaworld_readout as readout


def test_a_miss_is_split_into_what_one_camera_sees_and_what_it_does_not():
    places = np.tile([0.75, 0.775, 0.7, 0.1, 0.6, 0.02], (3, 1))  # the goal lies in front of the camera, along y
    read = places + [[0.03, 0.04, 0, 0, 0, 0.01], [0, -0.06, 0, 0, 0, 0.02], [0, 0.01, 0.02, 0.03, 0, 0]]
    found = readout.misses(read, places)
    np.testing.assert_allclose(found, [20, 40, 1 / 3, 20])  # the first goal is 50 mm off, which is no less than 50


def test_the_middle_of_the_ray_is_near_every_goal_of_a_shallow_room_and_few_of_a_deep_one(monkeypatch):
    monkeypatch.setattr(readout, "PLACE", np.zeros(3))
    depth = np.linspace(0.5, 0.7, 201)
    far = np.stack([np.full(201, 1e-9), depth, np.full(201, 1e-9)], axis=1)
    far[::2, ::2] *= -1  # a room as wide as it is high, through whose middle all rays go
    assert readout.middle_of_ray(far) == pytest.approx(0.5, abs=0.02)
    shallow = far * [1, 0.3, 1]
    assert readout.middle_of_ray(shallow) == 1


class Mean(nn.Module):
    """Brightness of each pixel: a linear head reads from these where a square is."""

    def forward(self, frames, random=None):
        return frames.float().mean(-1).flatten(2) / 255


def test_an_encoder_learns_from_the_first_starts_to_read_the_others():
    """A white square, whose place in the picture is that of the goal; the places of the other starts teach nothing."""
    frames = np.zeros((3 * 60, 12, 12, 3), np.uint8)
    corners = np.random.default_rng(0).integers(0, 8, (len(frames), 2))
    for frame, (row, column) in zip(frames, corners, strict=True):
        frame[row : row + 4, column : column + 4] = 255
    places = torch.zeros(len(frames), 6)
    places[:, :2] = torch.from_numpy(corners) / 100
    is_other = torch.arange(len(frames)) % 60 >= 40
    data = readout.Starts(torch.from_numpy(frames), places.clone(), torch.arange(3).repeat_interleave(60))
    data.places[is_other] = data.places[is_other].flip(1)[:, [4, 5, 2, 3, 0, 1]]
    read = readout.readings(data, SimpleNamespace(create=lambda shape: Mean()), 40, 20_000)
    off = (read - places).abs()[:, :2]
    assert off[~is_other].median() < 0.005 and off[is_other].median() < 0.01 < 0.02 < places[is_other, :2].std()
