"""The published CIFAR-10 network (`configs/image/cifar10_iddpm.json`) as ours, with images without meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_policy import bare_trainer
from dp_prior.run.files.config import TrainConfig
from dp_prior.tasks.image import ImageDiffusion
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.training.trainer import PolicyTrainer

RECIPE = Path(__file__).parent.parent / "configs/image/cifar10_iddpm.json"
QUICK = ("task.backbone.channels=32", "task.backbone.n_res_blocks=1", "task.backbone.head_dim=16")
"""Changes that make the network small."""


def record(*changes: str) -> TrainConfig:
    """The recipe with changes."""
    return TrainConfig.from_json_path(RECIPE, changes)


def model(config: TrainConfig, size: int = 32) -> ImageDiffusion:
    """An untrained model of RGB images without labels."""
    torch.manual_seed(0)
    return config.task.create(Spec(x_shape=(size, size, 3), cond_shapes={}))


def trainer(config: TrainConfig) -> PolicyTrainer:
    """A trainer of it with nowhere to save; give `step` the batches."""
    return bare_trainer(model(config), config)


def batch(count: int, size: int = 32) -> Batch:
    """Images of random pixels."""
    ids = torch.arange(count)
    x = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return Batch(x=x, cond={}, mask=torch.ones(x.shape[:-1], dtype=torch.bool), ids=ids, positions=ids)


_PARTS = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
    "norm": "group_norm",
    "proj_out": "to_out.0",
    "op": "conv",
    "conv": "conv",
}
_ENDS = {
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "input_blocks.0.0": "conv_in",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}


def renamed(weights: Mapping[str, Tensor], blocks: int, heads: int) -> dict[str, Tensor]:
    """Weights, or gradients, of improved-diffusion's `UNetModel` under the names of our `unet2d` backbone.

    Args:
        blocks: residual blocks of a level on the way down.
        heads: of every attention.
    """
    found = {}
    for name, value in weights.items():
        place, end = name.rsplit(".", 1)
        if place in _ENDS:
            found[f"unet.{_ENDS[place]}.{end}"] = value
            continue
        part, number, layer, inner = re.fullmatch(r"(\w+?)_blocks?\.(\d+)\.(?:(\d+)\.)?(.+)", place).groups()
        if part == "middle":  # middle_block.0 is no list of lists
            is_attention = number == "1"
            prefix = "mid_block.attentions.0" if is_attention else f"mid_block.resnets.{int(number) // 2}"
        else:
            # On the way down a level is `blocks` blocks and a downsampling, on the way up one more block.
            level, block = divmod(int(number) - (part == "input"), blocks + 1)
            is_attention = inner.startswith(("norm", "qkv", "proj_out"))
            kind = "attentions" if is_attention else "resnets"
            side = {"input": "down", "output": "up"}[part]
            if inner in ("op", "conv"):
                kind, block = f"{side}samplers", 0
            prefix = f"{side}_blocks.{level}.{kind}.{block}"
        if inner == "qkv":  # (heads, 3, channels of a head) rows
            rows = value.flatten(1) if value.dim() > 1 else value
            for key, own in zip("qkv", rows.unflatten(0, (heads, 3, -1)).unbind(1), strict=True):
                found[f"unet.{prefix}.to_{key}.{end}"] = own.flatten(0, 1)
        else:
            is_matrix = inner == "proj_out" and value.dim() > 1
            found[f"unet.{prefix}.{_PARTS[inner]}.{end}"] = value.flatten(1) if is_matrix else value
    return found


def write_folder(folder: Path, count: int) -> None:
    """Write PNG files of 32 x 32 in ten folders of classes: coloured gradients with noise, of about 2.5 kB each."""
    from PIL import Image

    random = np.random.default_rng(0)
    ramp = np.linspace(0, 1, 32)[:, None]
    for number in range(count):
        ends = random.uniform(0, 255, (2, 2, 3))
        image = (ends[0, 0] * (1 - ramp) + ends[0, 1] * ramp)[:, None] + (ends[1, 0] - 128) * ramp[None] / 4
        image = (image + random.normal(0, 12, (32, 32, 3))).clip(0, 255).astype(np.uint8)
        place = folder / f"class_{number % 10}" / f"{number:05d}.png"
        place.parent.mkdir(exist_ok=True)
        Image.fromarray(image).save(place)
