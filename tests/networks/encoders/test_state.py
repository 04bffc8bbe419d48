import pytest
import torch
from pydantic import TypeAdapter

from dp_prior.networks.encoders import EncoderConfig
from dp_prior.networks.encoders.angle import AngleEncoderConfig
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.networks.encoders.state import StateEncoderConfig


def build(shape=(4,), **fields):
    torch.manual_seed(0)
    return StateEncoderConfig(**fields).create(shape)


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_a_state_passes_through_by_default(shape):
    value = torch.randn(5, 2, *shape)
    encoder = build(shape)
    assert torch.equal(encoder(value), value.reshape(5, 2, -1))
    assert encoder.output_dim == value.reshape(5, 2, -1).shape[-1]
    assert list(encoder.parameters()) == []


@pytest.mark.parametrize(
    ("fields", "dim"),
    [
        ({"output_dim": 7}, 7),
        ({"hidden_dims": (8,)}, 8),
        ({"hidden_dims": (8, 6)}, 6),
        ({"hidden_dims": (8,), "output_dim": 3}, 3),
    ],
)
def test_layers_shape_the_state(fields, dim):
    encoder = build(**fields)
    assert encoder.output_dim == dim
    features = encoder(torch.randn(5, 2, 4))
    assert features.shape == (5, 2, dim)
    features.square().mean().backward()
    assert all(p.grad.abs().sum() > 0 for p in encoder.parameters())


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


def encoder_of(keys):
    shapes = {"b.pos": (2, 3), "a": (2,), "values": (2, 2, 2)}
    encoders = {key: StateEncoderConfig().create(shapes[key][1:]) for key in keys}
    return ObservationEncoder(encoders, {key: shapes[key] for key in keys})


def test_keys_are_joined_in_alphabetical_order_whatever_the_order_given():
    observations = {"b.pos": torch.randn(5, 2, 3), "a": torch.randn(5, 2), "values": torch.randn(5, 2, 2, 2)}
    one, other = encoder_of(["b.pos", "a", "values"]), encoder_of(["values", "b.pos", "a"])
    expected = torch.cat(
        [observations["a"][..., None], observations["b.pos"], observations["values"].flatten(2)], dim=-1
    )
    assert one.cond_shape == other.cond_shape == (2, 8)
    assert torch.equal(one(observations), expected)
    assert torch.equal(other(observations), expected)


def test_missing_and_spare_encoders_are_named():
    with pytest.raises(ValueError, match=r"encoders are given for \['a'\], but the observations are \['b'\]"):
        ObservationEncoder({"a": StateEncoderConfig().create((1,))}, {"b": (2, 1)})


def test_observations_of_different_length_are_refused():
    encoders = {key: StateEncoderConfig().create((1,)) for key in "ab"}
    with pytest.raises(ValueError, match="same number of steps; found {'a': 2, 'b': 3}"):
        ObservationEncoder(encoders, {"a": (2, 1), "b": (3, 1)})


def test_no_observation_gives_no_token():
    assert ObservationEncoder({}, {}).cond_shape == (0, 0)


@pytest.mark.parametrize("change", [{"hidden_dims": (8,)}, {"output_dim": 9}])
def test_every_field_of_state_changes_the_encoder(change):
    assert build(**change).output_dim != build().output_dim


@pytest.mark.parametrize("kind", ["state", "angle"])
def test_exported_config_rebuilds_the_same_module(kind):
    config = TypeAdapter(EncoderConfig).validate_python({"type": kind})
    again = type(config).from_json(config.to_json())
    assert again == config
    assert again.create((3,)).state_dict().keys() == config.create((3,)).state_dict().keys()


def test_bfloat16_weights_take_float_states():
    encoder = build(hidden_dims=(8,)).to(torch.bfloat16)
    assert encoder(torch.randn(5, 2, 4)).dtype is torch.bfloat16
