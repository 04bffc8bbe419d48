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


def squares(size=12, count=60):
    """Starts with a white square, whose place in the picture is that of the goal; and the true places."""
    frames = np.zeros((3 * count, size, size, 3), np.uint8)
    corners = np.random.default_rng(0).integers(0, size - 4, (len(frames), 2))
    for frame, (row, column) in zip(frames, corners, strict=True):
        frame[row : row + 4, column : column + 4] = 255
    places = torch.zeros(len(frames), 6)
    places[:, :2] = torch.from_numpy(corners) / 100
    data = readout.Starts(torch.from_numpy(frames), places.clone(), torch.arange(3).repeat_interleave(count))
    is_other = torch.arange(len(frames)) % count >= 40
    data.places[is_other] = data.places[is_other][:, [1, 0, 2, 3, 4, 5]]  # teaches something else, if it teaches
    return data, places, is_other


def test_an_encoder_learns_from_the_first_starts_to_read_the_others():
    data, places, is_other = squares()
    read = readout.readings(data, SimpleNamespace(create=lambda shape: Mean()), 40, 20_000)
    off = (read - places).abs()[:, :2]
    assert off[~is_other].median() < 0.005 and off[is_other].median() < 0.01 < 0.02 < places[is_other, :2].std()


def test_a_linear_reader_sees_what_the_features_of_the_first_starts_tell(monkeypatch):
    monkeypatch.setattr(readout, "MOST", 40)
    monkeypatch.setattr(readout, "TESTED", 20)
    data, places, is_other = squares()
    read = readout.linear_readings(data, Mean(), 40)
    assert (read - places).abs()[is_other, :2].median() < 0.01 < 0.02 < places[is_other, :2].std()
    blind = readout.linear_readings(data._replace(frames=torch.zeros_like(data.frames)), Mean(), 40)
    assert (blind - places).abs()[is_other, :2].median() > 0.015
    *lines, last = readout.rows(data, 40, read, "policy")
    assert len(lines) == 2 and "`pick-place-v3` | policy, 40" in last


def test_the_part_of_the_picture_that_a_policy_sees_is_drawn(monkeypatch):
    """All of it, or a region at the size that the configuration gives."""
    monkeypatch.setattr(readout, "SeededTask", lambda task: Standing())
    asked = []

    def create(size):
        asked.append(size)
        rows, columns = np.mgrid[: size[0], : size[1]]
        return lambda scenes: np.stack([rows, columns, columns], axis=-1)[None].astype(np.uint8)

    render = SimpleNamespace(create=create)
    for region, size, corner in ((None, (24, 24), [0, 0]), ((0.2, 0.25, 0.95, 1.0), (96, 96), [26, 32])):
        data = readout.starts(2, SimpleNamespace(region=region, size=size, render=render))
        assert data.frames.shape == (6, *size, 3) and data.frames[0, 0, 0, :2].tolist() == corner
        np.testing.assert_allclose(data.places[3], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
        assert data.tasks.tolist() == [0, 0, 1, 1, 2, 2]
    assert asked == [(24, 24), (128, 128)]


class Standing:
    """A task whose every start is the same."""

    def reset(self, seed):
        state = np.zeros(39)
        state[36:39], state[4:7] = [0.1, 0.2, 0.3], [0.4, 0.5, 0.6]
        return {"state": state, "scene": np.zeros(184)}, {}

    def close(self):
        pass
