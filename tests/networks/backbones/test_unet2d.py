"""The UNet of images: equality with a version written out, its zero start, dropout by the sample, refused sizes."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dp_prior.networks.backbones.unet2d import UNet2DConfig
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.randomness import Randomness
from dp_prior_foreign.importers.improved_diffusion import rename_published
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


class PlainUNetModel(nn.Module):
    """`UNetModel` of improved-diffusion with the published names of its weights; (B, C, H, W), levels of any number.

    Attention is at the levels from number `attended` on.
    """

    def __init__(self, channels=32, mult=(1, 2), n_blocks=1, inputs=3, outputs=3, classes=0, heads=4, heads_up=4,
                 scale_shift=True, timestep_scale=1.0, attended=1):  # fmt: skip
        super().__init__()
        self.channels, self.mult, self.n_blocks, self.scale_shift = channels, mult, n_blocks, scale_shift
        self.heads, self.heads_up, self.timestep_scale = heads, heads_up, timestep_scale
        self.weights, time = {}, 4 * channels
        self.layer("time_embed.0", time, channels), self.layer("time_embed.2", time, time)
        if classes:
            self.weights["label_emb.weight"] = torch.randn(classes, time)
        self.layer("input_blocks.0.0", channels, inputs, 3, 3)
        skipped, number, width = [channels], 1, channels
        for level, factor in enumerate(mult):
            for _ in range(n_blocks):
                self.block(f"input_blocks.{number}", width, width := factor * channels, level >= attended)
                skipped, number = [*skipped, width], number + 1
            if level < len(mult) - 1:
                self.layer(f"input_blocks.{number}.0.op", width, width, 3, 3)
                skipped, number = [*skipped, width], number + 1
        self.block("middle_block", width, width, True, ("0", "1"))
        self.block("middle_block", width, width, False, ("2",))
        number = 0
        for level, factor in reversed(list(enumerate(mult))):
            for index in range(n_blocks + 1):
                place, before = f"output_blocks.{number}", width + skipped.pop()
                self.block(place, before, width := factor * channels, level >= attended)
                if level and index == n_blocks:
                    self.layer(f"{place}.2.conv", width, width, 3, 3)
                number += 1
        self.norm("out.0", channels), self.layer("out.2", outputs, channels, 3, 3)

    def layer(self, name, *shape):
        self.weights[f"{name}.weight"] = torch.randn(shape) / math.sqrt(math.prod(shape[1:]))
        self.weights[f"{name}.bias"] = 0.1 * torch.randn(shape[0])

    def norm(self, name, width):
        self.weights[f"{name}.weight"], self.weights[f"{name}.bias"] = 0.5 + torch.rand(width), 0.1 * torch.randn(width)

    def block(self, place, before, after, has_attention, numbers=("0", "1")):
        name = f"{place}.{numbers[0]}"
        self.norm(f"{name}.in_layers.0", before), self.layer(f"{name}.in_layers.2", after, before, 3, 3)
        self.layer(f"{name}.emb_layers.1", after * (2 if self.scale_shift else 1), 4 * self.channels)
        self.norm(f"{name}.out_layers.0", after), self.layer(f"{name}.out_layers.3", after, after, 3, 3)
        if before != after:
            self.layer(f"{name}.skip_connection", after, before, 1, 1)
        if has_attention:
            name = f"{place}.{numbers[1]}"
            self.norm(f"{name}.norm", after)
            self.layer(f"{name}.qkv", 3 * after, after, 1), self.layer(f"{name}.proj_out", after, after, 1)

    def state_dict(self):
        return dict(self.weights)

    def apply_layer(self, name, x, stride=1):
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        if x.dim() == 2:
            return x @ weight.T + bias
        return F.conv2d(x, weight.view(*weight.shape[:2], *weight.shape[2:4], *[1] * (4 - weight.dim())), bias, stride,
                        weight.shape[-1] // 2)  # fmt: skip

    def apply_norm(self, name, x):
        return F.group_norm(x, 32, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def apply_block(self, place, x, embedded, numbers=("0", "1")):
        name = f"{place}.{numbers[0]}"
        hidden = self.apply_layer(f"{name}.in_layers.2", F.silu(self.apply_norm(f"{name}.in_layers.0", x)))
        modulation = self.apply_layer(f"{name}.emb_layers.1", F.silu(embedded))[:, :, None, None]
        if self.scale_shift:
            scale, shift = modulation.chunk(2, dim=1)
            hidden = self.apply_norm(f"{name}.out_layers.0", hidden) * (1 + scale) + shift
        else:
            hidden = self.apply_norm(f"{name}.out_layers.0", hidden + modulation)
        hidden = self.apply_layer(f"{name}.out_layers.3", F.silu(hidden))
        same = f"{name}.skip_connection.weight" not in self.weights
        x = hidden + (x if same else self.apply_layer(f"{name}.skip_connection", x))
        return self.apply_attention(f"{place}.{numbers[1]}", x) if len(numbers) > 1 else x

    def apply_attention(self, name, x):
        if f"{name}.qkv.weight" not in self.weights:
            return x
        heads = self.heads_up if name.startswith("output") else self.heads
        values = self.apply_layer(f"{name}.qkv", self.apply_norm(f"{name}.norm", x)).flatten(2)
        found = []
        for part in values.chunk(heads, dim=1):  # a head has its queries, keys and values beside each other
            q, k, v = part.chunk(3, dim=1)
            found.append(v @ (q.transpose(1, 2) @ k / math.sqrt(q.shape[1])).softmax(-1).transpose(1, 2))
        return x + self.apply_layer(f"{name}.proj_out", torch.cat(found, dim=1).view_as(x))

    def forward(self, x, t, label=None):
        rates = torch.exp(-math.log(10_000) * torch.arange(self.channels // 2) / (self.channels // 2))
        angles = self.timestep_scale * t[:, None] * rates
        embedded = self.apply_layer("time_embed.0", torch.cat([angles.cos(), angles.sin()], 1))
        embedded = self.apply_layer("time_embed.2", F.silu(embedded))
        if label is not None:
            embedded = embedded + self.weights["label_emb.weight"][label]
        x = self.apply_layer("input_blocks.0.0", x)
        skipped, number = [x], 1
        for level in range(len(self.mult)):
            for _ in range(self.n_blocks):
                x = self.apply_block(f"input_blocks.{number}", x, embedded)
                skipped, number = [*skipped, x], number + 1
            if level < len(self.mult) - 1:
                x = self.apply_layer(f"input_blocks.{number}.0.op", x, stride=2)
                skipped, number = [*skipped, x], number + 1
        x = self.apply_block("middle_block", x, embedded, ("0", "1"))
        x = self.apply_block("middle_block", x, embedded, ("2",))
        for number in range(len(skipped)):
            x = self.apply_block(f"output_blocks.{number}", torch.cat([x, skipped.pop()], 1), embedded)
            if f"output_blocks.{number}.2.conv.weight" in self.weights:
                x = x.repeat_interleave(2, 2).repeat_interleave(2, 3)
                x = self.apply_layer(f"output_blocks.{number}.2.conv", x)
        return self.apply_layer("out.2", F.silu(self.apply_norm("out.0", x)))


@pytest.mark.parametrize(
    ("mult", "blocks", "heads", "heads_up", "scale_shift", "scale"),
    [((1, 2), 1, 2, 8, True, 1.0), pytest.param((1, 2, 3), 2, 4, 4, False, 0.25, marks=pytest.mark.slow)],
)
def test_published_weights_are_the_same_network(mult, blocks, heads, heads_up, scale_shift, scale):
    torch.manual_seed(0)
    theirs = PlainUNetModel(32, mult, blocks, 6, 6, 0, heads, heads_up, scale_shift, scale)
    size = 4 * 2 ** (len(mult) - 1)
    config = UNet2DConfig(
        channels=32, channel_mult=mult, n_res_blocks=blocks, heads=heads, heads_up=heads_up, scale_shift=scale_shift,
        timestep_scale=scale, attention_resolutions=[size >> level for level in range(1, len(mult))],
    )  # fmt: skip
    net = config.create((size, size, 3), (0, 128), 2, 2)
    sizes = {"n_res_blocks": blocks, "heads": heads, "heads_up": heads_up}
    net.load_state_dict(rename_published(theirs.state_dict(), **sizes))
    x, t = torch.randn(2, size, size, 6), torch.tensor([3, 700])
    expected = theirs(x.movedim(-1, 1), t).movedim(1, -1)
    assert expected.std() > 0.1
    torch.testing.assert_close(net(x, t, torch.zeros(2, 0, 128)), expected, rtol=1e-4, atol=1e-4)


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
