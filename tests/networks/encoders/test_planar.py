"""The planar encoder against plain trigonometry, and its invariance: the agent's view does not depend on the place."""

import math

import pytest
import torch

from dp_prior.networks.encoders.planar import PlanarEncoderConfig
from tests.messages import naming

POINTS = ((-60.0, 0.0), (60.0, 0.0), (0.0, 120.0))


def record(**changes):
    return PlanarEncoderConfig(**{"points": POINTS, "origin": (256.0, 256.0), "scale": 256.0, "near": 100.0, **changes})


def test_every_number_equals_plain_trigonometry():
    state = [100.0, 200.0, 300.0, 250.0, 0.7]
    agent, position, angle = complex(100, 200), complex(300, 250), 0.7
    turn = complex(math.cos(angle), math.sin(angle))
    points = [position + turn * complex(*point) for point in POINTS]
    places = [(place - complex(256, 256)) / 256 for place in (agent, position, *points)]
    near = [(point - agent) / 100 for point in points]
    expected = [part for z in [*places, turn, *near] for part in (z.real, z.imag)]
    features = record().create((5,))(torch.tensor([[state]]))
    torch.testing.assert_close(features, torch.tensor([[expected]]), rtol=0, atol=1e-5)


def test_a_full_turn_changes_nothing():
    encoder = record().create((5,))
    state = torch.tensor([[[10.0, 20.0, 30.0, 40.0, 0.1]]])
    turned = state + torch.tensor([0.0, 0.0, 0.0, 0.0, 2 * math.pi])
    torch.testing.assert_close(encoder(state), encoder(turned), rtol=0, atol=1e-4)


def test_the_view_from_the_agent_is_the_same_everywhere():
    encoder = record().create((5,))
    state = torch.rand(4, 2, 5) * 100
    moved = state + torch.tensor([50.0, -30.0, 50.0, -30.0, 0.0])
    view = slice(encoder.output_dim - 2 * len(POINTS), None)
    torch.testing.assert_close(encoder(state)[..., view], encoder(moved)[..., view], rtol=0, atol=1e-5)


def test_it_gives_as_many_features_as_it_says_for_every_batch_and_history():
    encoder = record().create((5,))
    for batch, steps in ((1, 1), (3, 2), (2, 4)):
        assert encoder(torch.rand(batch, steps, 5)).shape == (batch, steps, encoder.output_dim)


@pytest.mark.parametrize(
    "change",
    [{"points": ((1.0, 2.0),)}, {"origin": (0.0, 0.0)}, {"scale": 100.0}, {"near": 50.0}],
    ids=lambda change: next(iter(change)),
)
def test_every_field_changes_the_features(change):
    state = torch.rand(2, 2, 5) * 100
    before, after = record().create((5,))(state), record(**change).create((5,))(state)
    assert before.shape != after.shape or not torch.equal(before, after)


def test_another_shape_is_refused_with_the_shape_that_is_read():
    with pytest.raises(ValueError, match=naming("(agent x, agent y, object x, object y, angle)", "(4,)")):
        record().create((4,))
