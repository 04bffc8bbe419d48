"""Dropout as a function of a sample's row and a layer's place: its statistics, and what must not change a mask."""

import math

import pytest
import torch
from torch import nn

from dp_prior.networks.attention import attend
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.backbones.mlp import MLPConfig
from dp_prior.networks.backbones.prior_transformer import PriorTransformerConfig
from dp_prior.networks.backbones.transformer import TransformerConfig
from dp_prior.networks.dropout import Dropout, dropout_rows
from dp_prior.tensors.randomness import Randomness
from tests.cases import every
from tests.messages import naming
from tests.networks.backbones import test_dit2d, test_unet2d

ROWS = 64
BACKBONES = {
    "mlp": MLPConfig(hidden_dim=16, n_blocks=2, dropout=0.3),
    "dit": DiTConfig(embed_dim=16, n_layers=2, n_heads=2, dropout=0.3),
    "transformer": TransformerConfig(
        embed_dim=16, n_layers=2, n_heads=2, n_cond_layers=1, dropout=0.3, embed_dropout=0.3
    ),
}


def rows(start=0, count=ROWS):
    return Randomness.from_counts(0, "training", torch.arange(start, start + count)).stream("dropout")


def masks(p, start=0, shape=(500,), layers=1):
    """What each layer makes of ones."""
    network = nn.ModuleList(Dropout(p) for _ in range(layers))
    with dropout_rows(network, rows(start)):
        return [layer(torch.ones(ROWS, *shape)) for layer in network]


def inputs(batch=6):
    random = torch.Generator().manual_seed(1)
    return (
        torch.randn(batch, 8, 3, generator=random),
        torch.arange(batch) % 5,
        torch.randn(batch, 2, 4, generator=random),
    )


def build(name):
    torch.manual_seed(0)
    net = BACKBONES[name].create((8, 3), (2, 4))
    with torch.no_grad():  # DiT opens every layer from zero, so that a fresh one shows nothing
        for parameter in net.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return net.train()


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_share_of_dropped_elements_and_mean_are_as_asked(p):
    (mask,) = masks(p, shape=(40, 50))
    n = mask.numel()
    assert (mask == 0).float().mean().item() == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / n) + 2**-16)
    assert mask.mean().item() == pytest.approx(1, abs=5 * math.sqrt(p / (1 - p) / n))
    assert mask.unique().numel() == 2


def test_every_16_bit_part_of_a_number_decides_alike():
    (mask,) = masks(0.5, shape=(4000,))
    shares = (mask == 0).float().view(ROWS, -1, 4).mean((0, 1))
    assert (shares - 0.5).abs().max() < 5 * 0.5 / math.sqrt(ROWS * 1000)


def correlation(a, b):
    """Of two masks, in standard deviations of that of independent ones."""
    a, b = ((one.flatten() == 0).float() for one in (a, b))
    return torch.corrcoef(torch.stack([a, b]))[0, 1].item() * math.sqrt(len(a))


def test_rows_layers_steps_and_neighbouring_elements_are_independent():
    (mask,) = masks(0.3, shape=(2000,))
    (later,) = masks(0.3, start=ROWS, shape=(2000,))
    one, other, third = masks(0.3, shape=(2000,), layers=3)
    pairs = [(mask, later), (one, other), (one, third), (other, third), (mask[1:], mask[:-1])]
    pairs += [(mask[:, lag:], mask[:, :-lag]) for lag in (1, 2, 3, 4, 8, 256)]
    assert max(abs(correlation(*pair)) for pair in pairs) < 5


def test_a_row_keeps_its_mask_whatever_its_neighbours():
    (whole,) = masks(0.5)
    layer = Dropout(0.5)
    for part in (slice(0, 1), slice(10, 30), torch.tensor([63, 5])):
        with dropout_rows(layer, rows()[part]):
            assert torch.equal(layer(torch.ones(ROWS, 500)[part]), whole[part])


@every(shape=[(), (1,), (3,), (5, 7), (0,)])
def test_any_shape_of_a_sample(shape):
    (mask,) = masks(0.5, shape=shape)
    assert mask.shape == (ROWS, *shape)


def test_gradient_passes_where_an_element_was_kept():
    layer, x = Dropout(0.5), torch.ones(ROWS, 9, requires_grad=True)
    with dropout_rows(layer, rows()):
        y = layer(x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_off_when_evaluating_and_at_zero():
    x = torch.randn(3, 4)
    assert Dropout(0.5).eval()(x) is x and Dropout(0.0)(x) is x


def test_training_without_rows_is_refused_and_rows_are_taken_back():
    layer = Dropout(0.5)
    with pytest.raises(RuntimeError, match=naming("Dropout", "eval()", "`dropout_rows`")):
        layer(torch.ones(2, 2))
    with pytest.raises(ZeroDivisionError), dropout_rows(layer, rows()):
        raise ZeroDivisionError
    assert layer.rows is None


def test_attention_with_dropped_weights_is_attention_when_none_is_dropped():
    q, k, v = (torch.randn(ROWS, 2, 5, 8) for _ in range(3))
    mask = torch.rand(5, 5) < 0.7
    mask.fill_diagonal_(True)
    for arguments in ({}, {"mask": mask}, {"is_causal": True}):
        plain = attend(q, k, v, Dropout(0.0), **arguments)
        layer = Dropout(1e-5)  # rounds to one level in 65536
        with dropout_rows(layer, rows()):
            found = attend(q, k, v, layer, **arguments)
        same = torch.isclose(found, plain, atol=1e-3).float().mean()
        assert same > 0.99


@pytest.mark.parametrize("name", BACKBONES)
def test_micro_batches_give_the_rows_of_the_whole_batch(name):
    net, arguments = build(name), inputs()
    random = rows(count=6)
    with dropout_rows(net, random):
        whole = net(*arguments)
    for part in (slice(0, 2), slice(2, 6)):
        with dropout_rows(net, random[part]):
            torch.testing.assert_close(net(*(one[part] for one in arguments)), whole[part])
    with dropout_rows(net, rows(start=6, count=6)):
        assert not torch.allclose(net(*arguments), whole)


@pytest.mark.parametrize("name", BACKBONES)
def test_every_place_has_a_mask_of_its_own(name):
    net, seen = build(name), []
    factors = Dropout.factors
    for layer in net.modules():
        if isinstance(layer, Dropout):
            layer.factors = lambda shape, layer=layer: (seen.append(id(layer)), factors(layer, shape))[1]
    with dropout_rows(net, rows(count=6)):
        net(*inputs())
    assert seen and len(seen) == len(set(seen)), "a layer that is called twice drops the same elements twice"
    assert len(seen) == sum(isinstance(layer, Dropout) for layer in net.modules())


def test_every_place_of_a_prior_has_a_mask_of_its_own():
    net = PriorTransformerConfig(embed_dim=16, n_layers=2, n_heads=2, attention_dropout=0.2, dropout=0.2)
    net = net.create((3,), (2, 16)).train()
    with dropout_rows(net, rows(count=6)):
        assert net(torch.randn(6, 3), torch.arange(6), torch.randn(6, 2, 16)).shape == (6, 3)
    assert not any(isinstance(layer, nn.Dropout) for layer in net.modules())


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKBONES)
def test_a_compiled_network_drops_the_same_elements(name):
    net, arguments = build(name), inputs()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    for start in (0, 6):
        with dropout_rows(net, rows(start, 6)):
            plain = net(*arguments)
        with dropout_rows(compiled, rows(start, 6)):
            torch.testing.assert_close(compiled(*arguments), plain)


@pytest.mark.parametrize("backbone", [test_unet2d, test_dit2d], ids=["unet2d", "dit2d"])
def test_same_gradients_from_less_memory(backbone):
    kept, outputs, gradients = [], [], []
    for checkpointing in (False, True):
        net = backbone.build(dropout=0.5, checkpointing=checkpointing).train()
        sizes = {}

        def keep(tensor, sizes=sizes):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with dropout_rows(net, Randomness.from_counts(0, "dropout", torch.arange(2))):
                output = net(*backbone.inputs())
            kept.append(sum(sizes.values()))  # of the forward pass; the rows of dropout are gone by now
        output.square().sum().backward()
        outputs.append(output)
        gradients.append([parameter.grad for parameter in net.parameters()])
    assert kept[1] < 0.8 * kept[0]
    assert torch.equal(*outputs)
    for plain, again in zip(*gradients, strict=True):
        assert torch.equal(plain, again)


@pytest.mark.slow
def test_compiled_networks_are_left_alone():
    net = test_dit2d.build(dropout=0.5, checkpointing=True).train()
    found = []
    for function in (net, torch.compile(net, backend="aot_eager")):
        with dropout_rows(net, Randomness.from_counts(0, "dropout", torch.arange(2))):
            found.append(function(*test_dit2d.inputs()))
    found[1].sum().backward()
    assert torch.equal(*found)


def test_a_probability_that_rounds_to_one_still_keeps_an_element_now_and_then():
    layer = Dropout(1 - 1e-9).train()
    layer.rows = rows()
    factors = layer.factors((ROWS, 20_000))
    assert factors.isfinite().all() and set(factors.unique().tolist()) <= {0.0, 2.0**16}
    assert (factors > 0).float().mean().item() == pytest.approx(2**-16, rel=1)
