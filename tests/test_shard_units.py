"""Every registered network can be divided among ranks: its wrap units exist, hold most of its weights, and change no
number of a step."""

import copy
import json
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from dp_prior.config.annotations import members
from dp_prior.networks.backbones import BackboneConfig, ImageBackboneConfig, PriorBackboneConfig
from dp_prior.networks.encoders import EncoderConfig
from dp_prior.training.model_shards import ModelShards, wrap_units
from dp_prior.training.training_config import TrainingConfig
from tests.faults import assert_none

HALF = 0.5
"""Least share of the weights that the units of a network hold."""

SMALL_ENOUGH = 100_000
"""Weights below which an encoder is gathered as a whole, by the backbone around it."""

PACKAGES = {"vit": "transformers", "unet2d": "diffusers"}
"""What a network needs beside the core; its cases are skipped without the package."""

VIT = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
VIT |= {"intermediate_size": 32, "mlp_ratio": 2, "num_register_tokens": 3}
WIDE_VIT = VIT | {"hidden_size": 96, "intermediate_size": 384, "mlp_ratio": 4}
FAMILIES = ("dinov2", "dinov2_with_registers", "dinov3_vit", "clip_vision_model", "siglip_vision_model")
"""Model types of the vit encoder, whose blocks are classes of transformers."""

SHAPES = {"points": (64, 3), "planar": (5,), "resnet": (64, 64, 3), "vit": (28, 28, 3)}
"""Shape of a step that an encoder reads; (8,) for others."""

SMALL = {
    "unet1d": {"down_dims": [16, 32], "n_groups": 4},
    "unet1d_local": {"down_dims": [16, 32], "n_groups": 4},
    "transformer": {"embed_dim": 16, "n_heads": 2, "n_layers": 2},
    "dit": {"embed_dim": 16, "n_heads": 2, "n_layers": 2},
    "mlp": {"hidden_dim": 16, "n_blocks": 2},
    "unet2d": {"channels": 8, "channel_mult": [1, 2], "n_groups": 4, "head_dim": 4},
    "dit2d": {"embed_dim": 16, "n_heads": 2, "n_layers": 2},
    "prior_transformer": {"embed_dim": 16, "n_heads": 2, "n_layers": 2},
    "multi_query_prior": {"n_layers": 2},
    "resnet": {"width": 16, "blocks": [1, 1], "keypoints": 4, "output_dim": 8, "crop": None},
}
"""Settings of a network that trains in no time; the defaults for others."""


OPTIONAL = {"transformer": {"n_cond_layers": 1}}
"""Settings with which a network has blocks of all its classes; the defaults for others."""


def installed(names):
    """The names whose packages are there."""
    return [name for name in names if name.split()[0] not in PACKAGES or find_spec(PACKAGES[name.split()[0]])]


def backbone(family, name, settings, x_shape):
    """A network, and the shapes of its inputs."""
    record = members(family)[name].model_validate(settings)
    if family is PriorBackboneConfig:
        cond_shape = record.encoder({"text": x_shape}, x_shape[0]).cond_shape
    else:
        cond_shape = (1, record.cond_dim) if family is ImageBackboneConfig else (2, 8)
    return record.create(x_shape, cond_shape), (x_shape, cond_shape)


def encoder(name, is_small):
    """An encoder, and the shape of a step."""
    settings = SMALL.get(name, {}) if is_small else {}
    kind, _, model_type = name.partition(" ")
    if kind == "planar":
        settings = {"points": [[0, 2]]}
    if model_type:
        sizes = VIT if is_small else WIDE_VIT
        settings = {"weights": "unused", "crop": None, "architecture": {"model_type": model_type, **sizes}}
    shape = SHAPES.get(kind, (8,))
    return members(EncoderConfig)[kind].model_validate(settings).create(shape), (shape,)


def networks(is_small):
    """A function for every registered network that builds it, by name."""
    shapes = {BackboneConfig: (8, 3), ImageBackboneConfig: (16, 16, 3), PriorBackboneConfig: (32,)}
    makers = {}
    for family, shape in shapes.items():
        for name in installed(members(family)):
            settings = SMALL.get(name, {}) if is_small else OPTIONAL.get(name, {})
            x_shape = (768,) if family is PriorBackboneConfig and not is_small else shape
            makers[name] = partial(backbone, family, name, settings, x_shape)
    names = [name for name in members(EncoderConfig) if name != "vit"]
    for name in installed([*names, *(f"vit {model_type}" for model_type in FAMILIES)]):
        makers[name] = partial(encoder, name, is_small)
    return makers


def declared(network):
    """The classes that a network and its parts list."""
    return {kind for module in network.modules() for kind in getattr(module, "shard_units", ())}


@pytest.mark.parametrize("is_of_package", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_units_of_every_network_exist_and_hold_most_of_its_weights(is_of_package):
    faults = []
    for name, make in networks(is_small=False).items():
        if (name.split()[0] in PACKAGES) != is_of_package:
            continue
        with torch.device("meta"):
            network, _ = make()
        units = list(wrap_units(network))
        in_units = {parameter for unit in units for parameter in unit.parameters()}
        total = sum(parameter.numel() for parameter in network.parameters())
        missing = [kind.__name__ for kind in declared(network) if kind not in map(type, units)]
        if missing:
            faults.append(f"{name} declares {missing}, but has no such module")
        share = sum(parameter.numel() for parameter in in_units) / max(total, 1)
        if total > SMALL_ENOUGH and share < HALF:
            faults.append(f"{name}: {len(units)} units hold {share:.0%} of {total:,} weights")
    assert_none(faults)


class Region(nn.Module):
    """A loss of a network's output."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, *inputs):
        """The inputs of some samples -> ()."""
        return self.network(*inputs).square().mean()


def inputs_of(network, shapes, count=4):
    """Random inputs of samples: noised samples, timesteps and conditions of a backbone, two steps of an encoder."""
    if len(shapes) == 1:
        values = torch.rand(count, 2, *shapes[0])
        is_picture = len(shapes[0]) == 3
        return [(255 * values).to(torch.uint8) if is_picture else values]
    x_shape, cond_shape = shapes
    return [torch.randn(count, *x_shape), torch.randint(100, (count,)), torch.randn(count, *cond_shape)]


def compared_steps(ranks):
    """Largest difference of a weight after a step with a divided network to one with the whole, the
    largest change of that step, and the share of the weights that this rank holds, by the network's name."""
    differences = {}
    for name, make in networks(is_small=True).items():
        torch.manual_seed(0)
        network, shapes = make()
        network.eval()  # dropout draws by sample
        if not any(parameter.requires_grad for parameter in network.parameters()):
            continue
        for parameter in network.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1)
        plain, inputs = Region(copy.deepcopy(network)), inputs_of(network, shapes)
        before = {key: value.clone() for key, value in plain.state_dict().items()}
        plain(*inputs).backward()
        torch.optim.SGD(plain.parameters(), lr=0.1).step()

        model = Region(network)
        shards = ModelShards(ranks, TrainingConfig(steps=1, shard="model"))
        region, local = shards.distributed(model, model)
        region(*(value.chunk(ranks.num_processes)[ranks.process_index] for value in inputs)).backward()
        shards.take_gradients()
        torch.optim.SGD(local.parameters(), lr=0.1).step()
        whole = shards.whole(local).state_dict()
        changes = [float((value - before[key]).abs().max()) for key, value in plain.state_dict().items()]
        distances = [float((value - whole[key]).abs().max()) for key, value in plain.state_dict().items()]
        held = sum(parameter.numel() for parameter in local.parameters())
        total = sum(parameter.numel() for parameter in plain.parameters())
        differences[name] = {"difference": max(distances), "change": max(changes), "held": held / total}
    return differences


@pytest.mark.slow
def test_a_step_of_every_network_divided_is_the_step_of_the_whole(run_ranks):
    source = "import json; from dp_prior.job.ranks import Ranks; from tests.test_shard_units import compared_steps"
    outputs = run_ranks(f"{source}; print(json.dumps(compared_steps(Ranks(accelerator))))", 2)
    faults, trained = [], set()
    for output in outputs:
        for name, step in json.loads(output.splitlines()[-1]).items():
            trained.add(name)
            if not step["difference"] < 1e-5 * max(1, step["change"]) or not step["change"] > 1e-4:
                faults.append(f"{name}: {step}")
            if step["held"] > 0.6:
                faults.append(f"{name}: a rank holds {step['held']:.0%} of the weights")
    assert_none(faults)
    assert trained >= {*SMALL} & {*installed(SMALL)} and len(trained) >= len(installed(SMALL)) + 1
