"""The transformer against one made of torch's own transformer layers, as the published network is."""

import pytest
import torch
from torch import nn

from dp_prior.networks.backbones.transformer import TransformerConfig, rename_published
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming

SMALL = {"embed_dim": 16, "n_layers": 2, "n_heads": 4, "dropout": 0.0}
HORIZON, ACTION, TOKENS, FEATURES = 7, 3, 2, 5


class PlainTransformer(nn.Module):
    """Named like the published network, so that `rename_published` is tested by loading it."""

    def __init__(self, e=16, layers=2, heads=4, cond_layers=0, causal=True, dropout=0.0, sizes=None, out=None):
        super().__init__()
        h, a, n, d = sizes or (HORIZON, ACTION, TOKENS, FEATURES)
        common = {"dim_feedforward": 4 * e, "dropout": dropout, "activation": "gelu", "batch_first": True}
        self.input_emb = nn.Linear(a, e)
        self.pos_emb = nn.Parameter(torch.randn(1, h, e))
        self.cond_obs_emb = nn.Linear(d, e)
        self.cond_pos_emb = nn.Parameter(torch.randn(1, 1 + n, e))
        if cond_layers:
            layer = nn.TransformerEncoderLayer(e, heads, norm_first=True, **common)
            self.encoder = nn.TransformerEncoder(layer, cond_layers, enable_nested_tensor=False)
        else:
            self.encoder = nn.Sequential(nn.Linear(e, 4 * e), nn.Mish(), nn.Linear(4 * e, e))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(e, heads, norm_first=True, **common), layers)
        self.ln_f = nn.LayerNorm(e)
        self.head = nn.Linear(e, out or a)
        self._dummy_variable = nn.Parameter(torch.empty(0))
        if causal:
            self.register_buffer("mask", self.additive(torch.arange(h)[:, None] >= torch.arange(h)))
            self.register_buffer("memory_mask", self.additive(torch.arange(h)[:, None] >= torch.arange(1 + n) - 1))
        else:
            self.mask = self.memory_mask = None
        for parameter in self.parameters():  # torch builds the layers of a stack as copies of one
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.3)

    @staticmethod
    def additive(seen):
        return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))

    def forward(self, x, t, cond):
        e = self.head.in_features
        angles = t[:, None] * 10_000.0 ** (-torch.arange(e // 2) / (e // 2 - 1))
        step = torch.cat([angles.sin(), angles.cos()], dim=1)[:, None]
        memory = self.encoder(torch.cat([step, self.cond_obs_emb(cond)], dim=1) + self.cond_pos_emb)
        x = self.input_emb(x) + self.pos_emb
        x = self.decoder(tgt=x, memory=memory, tgt_mask=self.mask, memory_mask=self.memory_mask)
        return self.head(self.ln_f(x))


def inputs(batch=5, horizon=HORIZON, tokens=TOKENS):
    torch.manual_seed(1)
    return torch.randn(batch, horizon, ACTION), torch.randint(100, (batch,)), torch.randn(batch, tokens, FEATURES)


def build(**change):
    torch.manual_seed(0)
    return TransformerConfig(**{**SMALL, **change}).create((HORIZON, ACTION), (TOKENS, FEATURES))


@pytest.mark.parametrize("n_cond_layers", [0, 2])
@pytest.mark.parametrize("is_causal", [True, False])
def test_equals_torchs_layers_with_published_weights_and_so_do_its_gradients(n_cond_layers, is_causal):
    torch.manual_seed(0)
    plain = PlainTransformer(cond_layers=n_cond_layers, causal=is_causal)
    ours = build(n_cond_layers=n_cond_layers, is_causal=is_causal)
    ours.load_state_dict(rename_published(plain.state_dict()))
    outputs = [net(*inputs()) for net in (ours, plain)]
    # Sums of a few hundred float32 products through four layers; 1e-4 is 50 times what is seen.
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    for y in outputs:
        y.square().mean().backward()
    expected = rename_published({name: p.grad for name, p in plain.named_parameters() if p.grad is not None})
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_parameter_count_of_the_papers_low_dimensional_push_t_config():
    sizes = (16, 2, 2, 20)
    with torch.device("meta"):
        ours = TransformerConfig().create(sizes[:2], sizes[2:])
        plain = PlainTransformer(e=256, layers=8, heads=4, sizes=sizes)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in plain.parameters()) == 8_965_122


def trained(**change):
    """A network whose parts all matter, as after training; fresh weights are small."""
    net = build(**change).eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return net


def test_an_action_sees_no_later_action_and_no_later_observation():
    net = trained()
    x_t, t, cond = inputs()
    before = net(x_t, t, cond)
    x_t[:, 4] += 1.0
    assert torch.equal(net(x_t, t, cond)[:, :4], before[:, :4])
    assert not torch.allclose(net(x_t, t, cond)[:, 4:], before[:, 4:])
    x_t[:, 4] -= 1.0
    cond[:, 1] += 1.0
    after = net(x_t, t, cond)
    torch.testing.assert_close(after[:, :1], before[:, :1], rtol=0, atol=1e-6)
    assert ((after - before)[:, 1:].abs().amax((0, 2)) > 1e-5).all()


def test_without_causality_every_action_sees_all():
    net = trained(is_causal=False)
    x_t, t, cond = inputs()
    before = net(x_t, t, cond)
    x_t[:, -1] += 1.0
    assert ((net(x_t, t, cond) - before).abs().amax((0, 2)) > 1e-5).all()


@pytest.mark.parametrize("horizon", [1, 3, 16])
def test_any_horizon_and_number_of_tokens_keeps_its_shape(horizon):
    config = TransformerConfig(**SMALL)
    assert config.length_factor == 1
    for tokens in (0, 1, 4):
        net = config.create((horizon, ACTION), (tokens, FEATURES), output_channels_factor=2)
        assert net(*inputs(horizon=horizon, tokens=tokens)).shape == (5, horizon, 2 * ACTION)


def test_self_conditioning_widens_the_input():
    net = TransformerConfig(**SMALL).create((HORIZON, ACTION), (TOKENS, FEATURES), input_channels_factor=2)
    x_t, t, cond = inputs()
    assert net(torch.cat([x_t, x_t], dim=-1), t, cond).shape == x_t.shape


@pytest.mark.parametrize("n_cond_layers", [0, 1])
def test_gradient_reaches_every_parameter(n_cond_layers):
    net = build(n_cond_layers=n_cond_layers)
    net(*inputs()).square().mean().backward()
    assert [name for name, p in net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


CHANGES = {
    "embed_dim": 32,
    "n_layers": 3,
    "n_heads": 2,
    "n_cond_layers": 1,
    "is_causal": False,
    "embed_dropout": 0.5,
    "dropout": 0.5,
}


@every(field=sorted(set(TransformerConfig.model_fields) - {"type"}))
def test_every_field_changes_the_network(field):
    net, changed = build(), build(**{field: CHANGES[field]})
    with dropout_rows(changed, Randomness(torch.arange(len(inputs()[0])))):
        assert not torch.equal(net(*inputs()), changed(*inputs()))


def test_dropouts_are_off_when_evaluating_and_follow_the_rows_in_training():
    plain = build().eval()(*inputs())
    net = build(dropout=0.5, embed_dropout=0.5)
    assert torch.equal(net.eval()(*inputs()), plain)
    net.train()
    outputs = []
    for start in (3, 3, 40):
        with dropout_rows(net, Randomness(start + torch.arange(len(inputs()[0])))):
            outputs.append(net(*inputs()))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_exported_config_rebuilds_the_same_module():
    config = TransformerConfig(**SMALL)
    again = TransformerConfig.from_json(config.to_json()).create((HORIZON, ACTION), (TOKENS, FEATURES))
    again.load_state_dict(build().state_dict())
    assert torch.equal(build()(*inputs()), again(*inputs()))


def test_same_seed_builds_the_same_network():
    first, second = build().state_dict(), build().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


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
    with pytest.raises(ValueError, match=naming("embed_dim", 30, 4, 32)):
        TransformerConfig(embed_dim=30)
