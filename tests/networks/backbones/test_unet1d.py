"""UNet1D against a plain channels-first version written from the paper's description."""

import json

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from dp_prior.config import ConfigError
from dp_prior.networks.backbones import BackboneConfig
from dp_prior.networks.backbones.unet1d import UNet1DConfig, rename_published
from dp_prior.networks.backbones.unet1d_local import LocalUNet1DConfig
from tests.cases import every
from tests.messages import naming

SMALL = {"down_dims": (16, 32, 48), "n_groups": 4, "head_groups": 8, "step_embed_dim": 12}


class PlainConvBlock(nn.Module):
    def __init__(self, c, o, k, g):
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(c, o, k, padding=k // 2), nn.GroupNorm(g, o), nn.Mish())

    def forward(self, x):
        return self.block(x)


class PlainBlock(nn.Module):
    def __init__(self, c, o, d, k, g, scale):
        super().__init__()
        self.blocks = nn.ModuleList([PlainConvBlock(c, o, k, g), PlainConvBlock(o, o, k, g)])
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(d, 2 * o if scale else o))
        self.residual_conv = nn.Conv1d(c, o, 1) if c != o else nn.Identity()
        self.scale = scale

    def forward(self, x, cond):
        h = self.blocks[0](x)
        m = self.cond_encoder(cond)[:, :, None]
        h = m[:, : h.shape[1]] * h + m[:, h.shape[1] :] if self.scale else h + m
        return self.blocks[1](h) + self.residual_conv(x)


class Wrapped(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x):
        return self.conv(x)


class PlainEmbedding(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, t):
        half = self.dim // 2
        angles = t[:, None] * 10_000.0 ** (-torch.arange(half) / (half - 1))
        return torch.cat([angles.sin(), angles.cos()], dim=1)


class PlainUNet(nn.Module):
    """Named like the published network, so that `rename_published` is tested by loading it."""

    def __init__(self, a, d, dims=(16, 32, 48), k=5, g=4, e=12, scale=True, out=None, local=None, head=8):
        super().__init__()
        pairs = list(zip((a, *dims[:-1]), dims, strict=True))

        def block(c, o):
            return PlainBlock(c, o, e + d, k, g, scale)

        self.diffusion_step_encoder = nn.Sequential(
            PlainEmbedding(e), nn.Linear(e, 4 * e), nn.Mish(), nn.Linear(4 * e, e)
        )
        self.down_modules = nn.ModuleList()
        for i, (c, o) in enumerate(pairs):
            down = Wrapped(nn.Conv1d(o, o, 3, 2, 1)) if i + 1 < len(pairs) else nn.Identity()
            self.down_modules.append(nn.ModuleList([block(c, o), block(o, o), down]))
        if local is not None:
            self.local_cond_encoder = nn.ModuleList([block(local, dims[0]), block(local, dims[0])])
        self.mid_modules = nn.ModuleList([block(dims[-1], dims[-1]), block(dims[-1], dims[-1])])
        self.up_modules = nn.ModuleList()
        for c, o in reversed(pairs[1:]):
            up = Wrapped(nn.ConvTranspose1d(c, c, 4, 2, 1))
            self.up_modules.append(nn.ModuleList([block(2 * o, c), block(c, c), up]))
        self.final_conv = nn.Sequential(PlainConvBlock(dims[0], dims[0], k, head), nn.Conv1d(dims[0], out or a, 1))

    def forward(self, x, t, cond, local=None):
        features = torch.cat([self.diffusion_step_encoder(t), cond.flatten(1)], dim=1)
        x = x.transpose(1, 2)
        skips = []
        for i, (first, second, down) in enumerate(self.down_modules):
            x = first(x, features)
            if i == 0 and local is not None:
                x = x + self.local_cond_encoder[0](local.transpose(1, 2), features)
            x = second(x, features)
            skips.append(x)
            x = down(x)
        for block in self.mid_modules:
            x = block(x, features)
        for first, second, up in self.up_modules:
            x = torch.cat([x, skips.pop()], dim=1)
            x = up(second(first(x, features), features))
        return self.final_conv(x).transpose(1, 2)


def inputs(batch=6, horizon=8, action_dim=3, tokens=2, token_dim=5):
    torch.manual_seed(1)
    return torch.randn(batch, horizon, action_dim), torch.randint(100, (batch,)), torch.randn(batch, tokens, token_dim)


@every(film_scale=[True, False], horizon=[4, 8, 12, 16, 32])
def test_equals_the_plain_version_with_its_published_weights(horizon, film_scale):
    torch.manual_seed(0)
    plain = PlainUNet(3, 10, scale=film_scale)
    ours = UNet1DConfig(**SMALL, film_scale=film_scale).create((horizon, 3), (2, 5))
    ours.load_published(plain.state_dict())
    x_t, t, cond = inputs(horizon=horizon)
    # Rounding grows through 18 convolutions and group norms; 1e-4 is 30 times what is seen.
    torch.testing.assert_close(ours(x_t, t, cond), plain(x_t, t, cond), rtol=1e-4, atol=1e-4)


def test_published_weights_are_refused_where_the_head_has_other_groups():
    """The groups are in no tensor: the weights would load, and compute something else."""
    torch.manual_seed(0)
    plain, x = PlainUNet(3, 10), inputs()
    ours = UNet1DConfig(**SMALL | {"head_groups": None}).create((8, 3), (2, 5))
    with pytest.raises(ValueError, match=naming(4, 8, "head_groups")):
        ours.load_published(plain.state_dict())
    ours.load_state_dict(rename_published(plain.state_dict()))
    assert not torch.allclose(ours(*x), plain(*x), atol=1e-3)
    weights = {name: value for name, value in plain.state_dict().items() if "final_conv" not in name}
    with pytest.raises(RuntimeError, match=naming('"head.conv.weight"')):
        UNet1DConfig(**SMALL).create((8, 3), (2, 5)).load_published(weights)


def test_head_follows_n_groups_where_a_stored_run_says_nothing_of_it():
    torch.manual_seed(0)
    plain, x = PlainUNet(3, 10, head=4), inputs()
    stored = {name: value for name, value in SMALL.items() if name != "head_groups"}
    ours = UNet1DConfig.from_json(json.dumps(stored)).create((8, 3), (2, 5))
    ours.load_state_dict(rename_published(plain.state_dict()))
    torch.testing.assert_close(ours(*x), plain(*x), rtol=1e-4, atol=1e-4)


def test_gradients_equal_those_of_the_plain_version():
    torch.manual_seed(0)
    plain = PlainUNet(3, 10)
    ours = UNet1DConfig(**SMALL).create((8, 3), (2, 5))
    ours.load_published(plain.state_dict())
    x_t, t, cond = inputs()
    for net in (plain, ours):
        net(x_t, t, cond).square().mean().backward()
    # The parameters of ours are kept in another layout; put both gradients in place of the weights and compare those.
    for net in (plain, ours):
        for parameter in net.parameters():
            parameter.data = parameter.grad
    expected = rename_published(plain.state_dict())
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-3, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def test_names_of_lerobots_weights_are_known_too():
    names = {
        "diffusion_step_encoder.1.weight": "step_embedding.1.weight",
        "down_modules.0.0.conv1.block.0.weight": "down.0.first.conv_1.weight",
        "down_modules.0.1.conv2.block.1.bias": "down.0.second.norm_2.bias",
        "down_modules.0.2.weight": "down.0.resample.weight",
        "mid_modules.1.cond_encoder.1.bias": "mid.1.film.linear.bias",
        "up_modules.1.0.residual_conv.weight": "up.1.first.shortcut.weight",
        "up_modules.1.2.bias": "up.1.resample.bias",
        "final_conv.0.block.1.weight": "head.norm.weight",
        "final_conv.1.weight": "head.out.weight",
    }
    assert list(rename_published(dict.fromkeys(names, torch.zeros(1)))) == list(names.values())


def test_parameter_count_of_the_papers_low_dimensional_config():
    with torch.device("meta"):
        unet = UNet1DConfig().create((16, 2), (2, 20))
    assert sum(parameter.numel() for parameter in unet.parameters()) == 65_783_298


@pytest.mark.parametrize("film_scale", [True, False])
@pytest.mark.parametrize("record", [UNet1DConfig, LocalUNet1DConfig])
def test_gradient_reaches_every_parameter(record, film_scale):
    torch.manual_seed(0)
    unet = record(**SMALL, film_scale=film_scale).create((8, 3), (2, 5))
    x_t, t, cond = inputs()
    unet(x_t, t, cond).square().mean().backward()
    assert [name for name, p in unet.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("horizon", [1, 2, 6, 15])
def test_a_horizon_that_does_not_halve_is_refused_with_the_factor(horizon):
    with pytest.raises(ValueError, match=naming("horizon", horizon, 4)) as caught:
        UNet1DConfig(**SMALL).create((horizon, 3), (2, 5))
    assert str(caught.value).endswith({1: "use 4", 2: "use 4", 6: "use 8 or 4", 15: "use 16 or 12"}[horizon])


@pytest.mark.parametrize("horizon", [1, 3, 5, 9])
def test_one_level_takes_any_horizon(horizon):
    config = UNet1DConfig(down_dims=(16,), n_groups=4)
    assert config.length_factor == 1
    assert config.create((horizon, 3), (2, 5))(*inputs(horizon=horizon)).shape == (6, horizon, 3)


def test_learned_sigma_doubles_the_last_dimension():
    unet = UNet1DConfig(**SMALL).create((8, 3), (2, 5), output_channels_factor=2)
    assert unet(*inputs()).shape == (6, 8, 6)


def test_no_condition_at_all_is_allowed():
    unet = UNet1DConfig(**SMALL).create((8, 3), (0, 5))
    x_t, t, _ = inputs()
    assert unet(x_t, t, torch.empty(6, 0, 5)).shape == (6, 8, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"down_dims": (16, 32)},
        {"kernel_size": 3},
        {"n_groups": 8},
        {"head_groups": 4},
        {"step_embed_dim": 16},
        {"film_scale": False},
    ],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("record", [UNet1DConfig, LocalUNet1DConfig])
def test_every_field_changes_the_network(record, change):
    def output(config):
        torch.manual_seed(0)
        return config.create((8, 3), (2, 5))(*inputs())

    assert not torch.equal(output(record(**SMALL)), output(record(**{**SMALL, **change})))


def test_every_field_is_covered_by_the_test_above():
    assert set(UNet1DConfig.model_fields) == set(LocalUNet1DConfig.model_fields) == {
        "type", "down_dims", "kernel_size", "n_groups", "head_groups", "step_embed_dim", "film_scale",
    }  # fmt: skip


@pytest.mark.parametrize("record", [UNet1DConfig, LocalUNet1DConfig])
def test_exported_config_rebuilds_the_same_module(record):
    config = record(**SMALL, film_scale=False)
    again = record.from_json(config.to_json())
    first, second = (c.create((8, 3), (2, 5)) for c in (config, again))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(*inputs()), second(*inputs()))


def test_same_seed_builds_the_same_network():
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(UNet1DConfig(**SMALL).create((8, 3), (2, 5)).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_bfloat16_weights_take_float_inputs():
    torch.manual_seed(0)
    unet = UNet1DConfig(**SMALL).create((8, 3), (2, 5)).eval()
    x_t, t, cond = inputs()
    with torch.no_grad():
        exact = unet(x_t, t, cond)
        with torch.autocast("cpu", torch.bfloat16):
            cast = unet(x_t, t, cond)
        stored = unet.to(torch.bfloat16)(x_t, t, cond)
    assert cast.dtype is stored.dtype is torch.bfloat16
    assert (cast - exact).square().mean() < 1e-3 * exact.square().mean()
    assert (stored - exact).square().mean() < 1e-3 * exact.square().mean()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernel_size": 4}, ("kernel_size", 4, 3, 5)),
        ({"head_groups": 6}, ("head_groups", 6, "down_dims[0]", 256)),
        ({"down_dims": [16, 30]}, ("down_dims", "[16, 30]", 30, "n_groups", 8)),
        ({"down_dim": [16]}, ("down_dim", "'down_dims'")),
    ],
)
def test_config_errors_say_what_to_do(wrong, message):
    with pytest.raises(ConfigError, match=naming(*message)):
        UNet1DConfig.from_json(json.dumps({"type": "unet1d", **wrong}))


def test_the_union_knows_both():
    backbone = TypeAdapter(BackboneConfig)
    assert type(backbone.validate_python({"type": "unet1d"})) is UNet1DConfig
    assert type(backbone.validate_python({"type": "unet1d_local"})) is LocalUNet1DConfig
