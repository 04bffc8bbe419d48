"""The diffusion transformer: closed forms of its parts, its zero start, and equality with a plain version."""

import math

import pytest
import torch
import torch.nn.functional as F

from dp_prior.networks.attention import RotaryPositions
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming

SMALL = {"embed_dim": 16, "n_layers": 2, "n_heads": 4, "step_embed_dim": 8}
HORIZON, ACTION, TOKENS, FEATURES = 7, 3, 2, 5


def inputs(batch=5, horizon=HORIZON, tokens=TOKENS):
    torch.manual_seed(1)
    return torch.randn(batch, horizon, ACTION), torch.randint(100, (batch,)), torch.randn(batch, tokens, FEATURES)


def build(**change):
    """A network as if trained: its zero-initialised parts are given values."""
    torch.manual_seed(0)
    net = DiTConfig(**{**SMALL, **change}).create((HORIZON, ACTION), (TOKENS, FEATURES))
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return net


def plain(net, x_t, t, cond, n_heads=4):
    """The same function, written out head by head and position by position."""

    def rms(x):
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(x.dtype).eps).sqrt()

    def rotate(vector, position):
        half = len(vector) // 2
        pairs = torch.complex(vector[:half], vector[half:])
        turned = pairs * torch.polar(torch.ones(half), position * 100.0 ** (-torch.arange(half) * 2 / len(vector)))
        return torch.cat([turned.real, turned.imag])

    outputs = []
    for b in range(len(x_t)):
        features = F.silu(net.features(torch.cat([net.step_embedding(t[b : b + 1])[0], cond[b].flatten()])))
        tokens = [net.cond_in(cond[b, i]) + net.cond_positions.weight[i] for i in range(cond.shape[1])]
        x = [net.token_in(a) for a in x_t[b]]
        for layer in net.layers:
            s1, c1, g1, s2, c2, g2 = layer.modulation(features).chunk(6)
            qkv = [layer.queries_keys_values(rms(token) * (1 + c1) + s1).chunk(3) for token in x]
            cond_kv = [layer.cond_keys_values(token).chunk(2) for token in tokens]
            keys = [(i, kv[0]) for i, kv in enumerate(cond_kv)] + [(i, part[1]) for i, part in enumerate(qkv)]
            values = [kv[1] for kv in cond_kv] + [part[2] for part in qkv]
            size = len(x[0]) // n_heads
            after = []
            for i, (query, _, _) in enumerate(qkv):
                heads = []
                for head in range(n_heads):
                    part = slice(head * size, (head + 1) * size)
                    q = rotate(rms(query[part]) * layer.norm_queries.weight, i)
                    scores = torch.stack(
                        [q @ rotate(rms(key[part]) * layer.norm_keys.weight, j) / math.sqrt(size) for j, key in keys]
                    )
                    heads.append(sum(w * v[part] for w, v in zip(scores.softmax(0), values, strict=True)))
                after.append(x[i] + g1 * layer.attention_out(torch.cat(heads)))
            x = []
            for token in after:
                gate, value = layer.expand(rms(token) * (1 + c2) + s2).chunk(2)
                x.append(token + g2 * layer.contract(F.silu(gate) * value))
        shift, scale = net.modulation(features).chunk(2)
        outputs.append(torch.stack([net.head(rms(token) * (1 + scale) + shift) for token in x]))
    return torch.stack(outputs)


def test_equals_a_version_written_out_position_by_position():
    net = build()
    torch.testing.assert_close(net(*inputs(batch=2)), plain(net, *inputs(batch=2)), rtol=1e-4, atol=1e-4)


def test_a_new_network_gives_zero_and_its_layers_change_nothing():
    net = DiTConfig(**SMALL).create((HORIZON, ACTION), (TOKENS, FEATURES))
    x_t, t, cond = inputs()
    assert torch.equal(net(x_t, t, cond), torch.zeros_like(x_t))
    x, tokens = torch.randn(5, HORIZON, 16), torch.randn(5, TOKENS, 16)
    layer = net.layers[0]
    assert torch.equal(layer(x, tokens, torch.randn(5, 16), net.query_positions, net.key_positions), x)


def test_rotated_products_depend_on_the_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(8), torch.randn(8)
    rotary = RotaryPositions(positions=torch.arange(12.0), head_dim=8)
    queries, keys = (rotary(vector.expand(1, 1, 12, 8))[0, 0] for vector in (query, key))
    products = queries @ keys.T
    for distance in range(12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    torch.testing.assert_close(products[0, 0], query @ key)
    assert products[0].std() > 0.1


def test_parameter_count_is_the_sum_of_its_layers():
    e, n, d, a, s = 256, 2, 20, 2, 128
    with torch.device("meta"):
        net = DiTConfig().create((16, a), (n, d))
    step = (s + 1) * 4 * s + (4 * s + 1) * s
    layer = (
        (e + 1) * 6 * e + (e + 1) * 3 * e + (e + 1) * 2 * e + 2 * 64 + (e + 1) * e + (e + 1) * 4 * e + (2 * e + 1) * e
    )
    ends = (a + 1) * e + (d + 1) * e + n * e + (s + n * d + 1) * e + (e + 1) * 2 * e + (e + 1) * a
    assert sum(p.numel() for p in net.parameters()) == step + 6 * layer + ends == 7_418_498


def test_every_action_sees_all_actions_and_observations():
    net = build().eval()
    x_t, t, cond = inputs()
    before = net(x_t, t, cond)
    moved = x_t.clone()
    moved[:, -1] += 1.0
    assert ((net(moved, t, cond) - before).abs().amax((0, 2)) > 0).all()
    assert ((net(x_t, t, cond.flip(1)) - before).abs().amax((0, 2)) > 0).all()
    assert ((net(x_t, t + 1, cond) - before).abs().amax((0, 2)) > 0).all()


@pytest.mark.parametrize("horizon", [1, 3, 16])
def test_any_horizon_and_number_of_tokens_keeps_its_shape(horizon):
    config = DiTConfig(**SMALL)
    assert config.length_factor == 1
    for tokens in (0, 1, 4):
        net = config.create((horizon, ACTION), (tokens, FEATURES), output_channels_factor=2)
        assert net(*inputs(horizon=horizon, tokens=tokens)).shape == (5, horizon, 2 * ACTION)


def test_self_conditioning_widens_the_input():
    net = DiTConfig(**SMALL).create((HORIZON, ACTION), (TOKENS, FEATURES), input_channels_factor=2)
    x_t, t, cond = inputs()
    assert net(torch.cat([x_t, x_t], dim=-1), t, cond).shape == x_t.shape


def test_gradient_reaches_every_parameter():
    net = build()
    net(*inputs()).square().mean().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


CHANGES = {"embed_dim": 32, "n_layers": 3, "n_heads": 2, "expansion": 3, "step_embed_dim": 16, "dropout": 0.5}


@every(field=sorted(set(DiTConfig.model_fields) - {"type"}))
def test_every_field_changes_the_network(field):
    net, changed = build(), build(**{field: CHANGES[field]})
    with dropout_rows(changed, Randomness(torch.arange(len(inputs()[0])))):
        assert not torch.equal(net(*inputs()), changed(*inputs()))


def test_dropout_is_off_when_evaluating():
    assert torch.equal(build().eval()(*inputs()), build(dropout=0.5).eval()(*inputs()))


def test_exported_config_rebuilds_the_same_module():
    config = DiTConfig(**SMALL)
    again = DiTConfig.from_json(config.to_json()).create((HORIZON, ACTION), (TOKENS, FEATURES))
    again.load_state_dict(build().state_dict())
    assert torch.equal(build()(*inputs()), again(*inputs()))


def test_bfloat16_stays_near():
    net = build().eval()
    exact = net(*inputs())
    with torch.autocast("cpu", torch.bfloat16):
        cast = net(*inputs())
    stored = net.to(torch.bfloat16)(*inputs())
    assert cast.dtype is stored.dtype is torch.bfloat16
    for rounded in (cast, stored):
        assert (rounded - exact).square().mean() < 1e-3 * exact.square().mean()


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=naming("embed_dim", 20, 4, 8, 16)):
        DiTConfig(embed_dim=20)
