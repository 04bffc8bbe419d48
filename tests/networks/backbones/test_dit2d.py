"""The diffusion transformer over patches: patches and back, positions on two axes, and equality with `DiT`."""

import pytest
import torch

from dp_prior.networks.attention import RotaryPositions
from dp_prior.networks.backbones.dit2d import DiT2DConfig
from dp_prior.networks.dropout import dropout_rows
from dp_prior.tensors.randomness import Randomness
from tests.messages import naming

SMALL = {"embed_dim": 16, "n_layers": 2, "n_heads": 2, "step_embed_dim": 8}
SHAPE = (4, 6, 3)


def build(shape=SHAPE, labels=1, output=1, inputs=1, **change):
    torch.manual_seed(0)
    net = DiT2DConfig(**{**SMALL, **change}).create(shape, (labels, change.get("embed_dim", 16)), output, inputs)
    with torch.no_grad():
        for parameter in net.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)
    return net


def inputs(batch=2, channels=3, labels=1, dim=16):
    torch.manual_seed(1)
    return torch.randn(batch, *SHAPE[:2], channels), torch.randint(100, (batch,)), torch.randn(batch, labels, dim)


def test_output_is_that_of_the_transformer_patch_by_patch():
    net, (x, t, cond) = build(), inputs()
    tokens = torch.stack([x[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].flatten(1) for i in range(2) for j in range(3)], 1)
    expected, found = net.transformer(tokens, t, cond), net(x, t, cond)
    for number in range(6):
        i, j = divmod(number, 3)
        patch = found[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        assert torch.equal(patch.flatten(1), expected[:, number])


def test_products_depend_on_the_distance_on_both_axes_alone():
    grid = torch.cartesian_prod(torch.arange(5), torch.arange(5)).float()
    rotary = RotaryPositions(positions=grid, head_dim=8)
    torch.manual_seed(0)
    q, k = torch.randn(8), torch.randn(8)
    products = rotary(q.expand(1, 1, 25, 8))[0, 0] @ rotary(k.expand(1, 1, 25, 8))[0, 0].T
    found = {}
    for a in range(25):
        for b in range(25):
            distance = tuple((grid[a] - grid[b]).tolist())
            product = products[a, b].item()
            assert product == pytest.approx(found.setdefault(distance, product), rel=1e-4, abs=1e-4)
    assert len({round(value, 3) for value in found.values()}) > 70


@pytest.mark.parametrize(("labels", "output", "factor"), [(0, 1, 1), (1, 2, 1), (0, 2, 2)])
def test_learned_variance_self_conditioning_and_labels_change_the_channels_alone(labels, output, factor):
    net = build(labels=labels, output=output, inputs=factor)
    assert net(*inputs(channels=3 * factor, labels=labels)).shape == (2, 4, 6, 3 * output)


def test_every_field_changes_the_network():
    changes = {"patch": 1, "n_heads": 1, "embed_dim": 32, "n_layers": 1, "expansion": 3, "step_embed_dim": 16}
    changes["dropout"] = 0.5

    def built(**change):
        net = build(**change).train()
        with dropout_rows(net, Randomness.from_counts(0, "dropout", torch.arange(2))):
            return net(*inputs(dim=change.get("embed_dim", 16)))

    assert {*changes, "type", "checkpointing"} == set(DiT2DConfig.model_fields)
    for name, value in changes.items():
        assert not torch.equal(built(**{name: value}), built()), name


@pytest.mark.parametrize(
    ("change", "shape", "message"),
    [
        ({"patch": 4}, (4, 6, 3), ("4 x 6", "'dit2d'", "data.size", "[4, 8]")),
        ({"embed_dim": 20, "n_heads": 2}, SHAPE, ("embed_dim", 20, 2, 8)),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change, shape, message):
    with pytest.raises(ValueError, match=naming(*message)):
        DiT2DConfig(**{**SMALL, **change}).create(shape, (0, 16))
