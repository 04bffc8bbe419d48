"""The UNet of images: equality with a version written out, its zero start, dropout by the sample, refused sizes."""

import math

import pytest
import torch
import torch.nn.functional as F

from dp_prior.networks.backbones.unet2d import UNet2DConfig
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.randomness import Randomness
from tests.extras import needs
from tests.messages import naming

needs("diffusers", "image")

SMALL = {
    "channels": 8,
    "channel_mult": (1, 2),
    "n_res_blocks": 1,
    "attention_resolutions": (4,),
    "head_dim": 8,
    "n_groups": 4,
}
SHAPE = (8, 4, 3)
LABEL = 32


def build(shape=SHAPE, labels=1, output=1, inputs=1, **change):
    """A network as if trained: its zero-initialised parts are given values."""
    torch.manual_seed(0)
    net = UNet2DConfig(**{**SMALL, **change}).create(shape, (labels, LABEL), output, inputs)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return net


def inputs(batch=2, channels=3, labels=1):
    torch.manual_seed(1)
    return torch.randn(batch, *SHAPE[:2], channels), torch.randint(1000, (batch,)), torch.randn(batch, labels, LABEL)


def plain(net, x_t, t, cond, *, scale_shift=True, heads=2, heads_up=2, timestep_scale=1.0):
    """The UNet of Nichol and Dhariwal 2021 with two levels of one block, written out on the weights of `net`."""
    w = dict(net.unet.named_parameters())

    def conv(name, x, stride=1):
        weight = w[f"{name}.weight"]
        return F.conv2d(x, weight, w[f"{name}.bias"], stride=stride, padding=weight.shape[-1] // 2)

    def linear(name, x):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    def norm(name, x):
        return F.group_norm(x, 4, w[f"{name}.weight"], w[f"{name}.bias"])

    def block(name, x):
        hidden = conv(f"{name}.conv1", F.silu(norm(f"{name}.norm1", x)))
        modulation = linear(f"{name}.time_emb_proj", F.silu(embedded))[:, :, None, None]
        if scale_shift:
            scale, shift = modulation.chunk(2, dim=1)
            hidden = norm(f"{name}.norm2", hidden) * (1 + scale) + shift
        else:
            hidden = norm(f"{name}.norm2", hidden + modulation)
        hidden = conv(f"{name}.conv2", F.silu(hidden))
        return hidden + (conv(f"{name}.conv_shortcut", x) if f"{name}.conv_shortcut.weight" in w else x)

    def attention(name, x):
        flat = norm(f"{name}.group_norm", x).flatten(2).transpose(1, 2)  # (B, H * W, C)
        count = heads_up if name.startswith("up") else heads
        q, k, v = (linear(f"{name}.{part}", flat).unflatten(2, (count, -1)) for part in ("to_q", "to_k", "to_v"))
        weights = (torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(16 / count)).softmax(-1)
        found = torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)
        return x + linear(f"{name}.to_out.0", found).transpose(1, 2).view_as(x)

    rates = torch.exp(-math.log(10_000) * torch.arange(4) / 4)
    angles = t[:, None] * timestep_scale * rates
    embedded = linear("time_embedding.linear_1", torch.cat([angles.cos(), angles.sin()], 1))
    embedded = linear("time_embedding.linear_2", F.silu(embedded)) + cond[:, 0]
    first = conv("conv_in", x_t.movedim(-1, 1))
    second = block("down_blocks.0.resnets.0", first)
    third = conv("down_blocks.0.downsamplers.0.conv", second, stride=2)
    fourth = attention("down_blocks.1.attentions.0", block("down_blocks.1.resnets.0", third))
    x = block("mid_block.resnets.0", fourth)
    x = block("mid_block.resnets.1", attention("mid_block.attentions.0", x))
    for number, skipped in enumerate((fourth, third)):
        x = block(f"up_blocks.0.resnets.{number}", torch.cat([x, skipped], 1))
        x = attention(f"up_blocks.0.attentions.{number}", x)
    x = conv("up_blocks.0.upsamplers.0.conv", x.repeat_interleave(2, 2).repeat_interleave(2, 3))
    for number, skipped in enumerate((second, first)):
        x = block(f"up_blocks.1.resnets.{number}", torch.cat([x, skipped], 1))
    return conv("conv_out", F.silu(norm("conv_norm_out", x))).movedim(1, -1)


@pytest.mark.parametrize(
    ("change", "written"),
    [
        ({"scale_shift": True}, {}),
        ({"scale_shift": False}, {"scale_shift": False}),
        ({"heads": 4}, {"heads": 4, "heads_up": 4}),
        ({"heads": 1, "heads_up": 8}, {"heads": 1, "heads_up": 8}),
        ({"timestep_scale": 0.25}, {"timestep_scale": 0.25}),
    ],
)
def test_equals_a_version_written_out(change, written):
    net = build(**change)
    torch.testing.assert_close(net(*inputs()), plain(net, *inputs(), **written), rtol=1e-4, atol=1e-4)


def test_as_many_heads_as_head_dim_gives_are_the_same_network():
    by_size, by_number = build(head_dim=8), build(heads=2)
    assert by_size.state_dict().keys() == by_number.state_dict().keys()
    assert torch.equal(by_size(*inputs()), by_number(*inputs()))


def test_the_published_networks_of_64_pixels_have_four_heads_at_every_level():
    """Nichol and Dhariwal's defaults, and their ImageNet models: mult (1, 2, 3, 4), attention at 16 and 8, 4 heads."""
    with torch.device("meta"):
        net = UNet2DConfig(channel_mult=(1, 2, 3, 4), n_res_blocks=3, heads=4).create((64, 64, 3), (0, 512), 2)
    attentions = {module for name, module in net.unet.named_modules() if name.rpartition(".")[0].endswith("attentions")}
    found = {(one.inner_dim, one.heads) for one in attentions if hasattr(one, "heads")}
    assert found == {(384, 4), (512, 4)}


def test_bfloat16_rounds_and_changes_nothing_else():
    net = build()
    exact = net(*inputs())
    with torch.autocast("cpu", torch.bfloat16):
        found = net(*inputs())
    assert found.dtype is torch.bfloat16 and found.shape == exact.shape
    assert (found - exact).norm() < 0.02 * exact.norm()


def test_published_size():
    """Of improved-diffusion's UNetModel with the settings of its CIFAR-10 models: 128 channels, 3 blocks, 16 and 8."""
    with torch.device("meta"):
        net = UNet2DConfig(n_res_blocks=3).create((32, 32, 3), (0, 512), 2)
    assert sum(parameter.numel() for parameter in net.parameters()) == 52_546_438


@pytest.mark.parametrize(("labels", "output", "factor"), [(0, 1, 1), (1, 2, 1), (0, 2, 2), (1, 1, 3)])
def test_learned_variance_self_conditioning_and_labels_change_the_channels_alone(labels, output, factor):
    net = build(labels=labels, output=output, inputs=factor)
    found = net(*inputs(channels=3 * factor, labels=labels))
    assert found.shape == (2, *SHAPE[:2], 3 * output)


def test_an_untrained_network_gives_zero_and_every_branch_but_the_first_starts_at_zero():
    net = UNet2DConfig(**SMALL).create(SHAPE, (1, LABEL))
    assert not net(*inputs()).any()
    started = [name for name, value in net.named_parameters() if name.endswith("weight") and not value.any()]
    blocks = sum(".conv2." in name for name in started), sum(".to_out.0." in name for name in started)
    assert blocks == (8, 4) and "unet.conv_out.weight" in started and len(started) == 13


def test_every_field_changes_the_network():
    def built(**change):
        net = build(**change)
        net.train()
        with dropout_rows(net, Randomness.from_counts(0, "dropout", torch.arange(2))):
            return net(*inputs()), sum(value.numel() for value in net.parameters())

    changes = {
        "channel_mult": (1, 1),
        "n_res_blocks": 2,
        "attention_resolutions": (8, 4),
        "head_dim": 4,
        "heads": 4,
        "timestep_scale": 0.5,
        "n_groups": 2,
        "scale_shift": False,
        "resample": "resnet",
        "dropout": 0.5,
    }
    assert {*changes, "channels", "type", "checkpointing", "heads_up"} == set(UNet2DConfig.model_fields)
    base = built()
    for name, value in changes.items():
        found = built(**{name: value})
        assert found[1] != base[1] or not torch.equal(found[0], base[0]), name
    assert UNet2DConfig(channels=64).cond_dim == 256  # the other networks here have 8 channels


def test_dropout_is_a_function_of_the_sample():
    net, (x, t, cond) = build(dropout=0.5).train(), inputs(batch=4)
    rows = Randomness.from_counts(0, "dropout", torch.arange(4))
    with dropout_rows(net, rows):
        whole = net(x, t, cond)
    with dropout_rows(net, rows[2:]):
        half = net(x[2:], t[2:], cond[2:])
    torch.testing.assert_close(whole[2:], half, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match=naming("eval()", "`dropout_rows`")):
        net(x, t, cond)


@pytest.mark.parametrize(
    ("shape", "change", "message"),
    [
        (
            (9, 8, 3),
            {},
            ("9 x 8", "'unet2d'", 2, "data.size", "[8, 8]"),
        ),
        ((8, 6, 3), {"channel_mult": (1, 1, 1)}, ("8 x 6", "'unet2d'", 4, "data.size", "[8, 8]")),
        ((8, 8, 3), {"attention_resolutions": (16, 8)}, ("[16]", "attention_resolutions", "[8, 4]")),
        ((8, 8, 3), {"head_dim": 5}, ("head_dim 5", "16 channels", "height 4")),
        ((8, 8, 3), {"heads": 5}, ("heads 5", "16 channels", "height 4")),
        ((8, 8, 3), {"heads": 2, "heads_up": 5}, ("heads_up 5", "16 channels", "height 4")),
        ((8, 8, 3), {"heads_up": 2}, ("heads_up", "heads", "head_dim")),
    ],
)
def test_sizes_that_do_not_fit_are_refused(shape, change, message):
    with pytest.raises(ValueError, match=naming(*message)):
        UNet2DConfig(**{**SMALL, **change}).create(shape, (0, LABEL))


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=naming("[8, 24]", "n_groups", 16, 8)):
        UNet2DConfig(channels=8, channel_mult=(1, 3), n_groups=16)
