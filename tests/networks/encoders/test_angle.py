"""An angle is a point on the circle."""

import torch

from dp_prior.networks.encoders.angle import AngleEncoderConfig


def test_an_angle_becomes_a_point_on_the_circle_and_a_turn_changes_nothing():
    encoder = AngleEncoderConfig().create((3,))
    angles = torch.randn(5, 2, 3)
    features = encoder(angles)
    assert features.shape == (5, 2, encoder.output_dim) == (5, 2, 6)
    torch.testing.assert_close(features[..., :3] ** 2 + features[..., 3:] ** 2, torch.ones(5, 2, 3))
    torch.testing.assert_close(encoder(angles + 2 * torch.pi), features, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.atan2(features[..., 3:], features[..., :3]), angles.sin().atan2(angles.cos()))


def test_an_angle_without_dimensions_is_one_angle():
    assert AngleEncoderConfig().create(())(torch.zeros(5, 2)).tolist() == [[[1.0, 0.0]] * 2] * 5
