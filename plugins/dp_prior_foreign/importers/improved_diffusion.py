"""Checkpoints of improved-diffusion (OpenAI), after `scripts/export_torch_weights.py` has run: its flags, and weights.

A published model is its network, its noise schedule and its sampler, all of which follow from the flags by the table
that translates configurations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.tasks.image import ImageTaskConfig
from dp_prior.tensors.batch import LABEL, LOW_RES
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from dp_prior_foreign.importers.foreign_model import WEIGHTS, ConvertedCheckpoint, PublishedModel, dropped, translated
from dp_prior_foreign.translation.foreign_settings import read_flags
from dp_prior_foreign.translation.improved_diffusion_table import IMPROVED_DIFFUSION

FOREIGN_SETTINGS = "improved_diffusion.json"
_LABELS = "label_emb.weight"
_BLOCK = re.compile(r"(?P<side>input|middle|output)_blocks?\.(?P<number>\d+)\.(?:\d+\.)?(?P<inner>.+)")
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


class PublishedFlags(ConvertedCheckpoint):
    """`improved_diffusion.json`."""

    flags: tuple[str, ...]


def read(files: PublishedFiles) -> PublishedModel:
    """A model of improved-diffusion in our terms.

    Raises:
        ConfigError: a flag is unknown, or the weights are of a class-conditional model and the flags are not, or the
            reverse.
    """
    checkpoint, tensors = files.document(FOREIGN_SETTINGS, PublishedFlags), files.tensors(WEIGHTS)
    place = f"{files.place}/{FOREIGN_SETTINGS}"
    translation = translated(IMPROVED_DIFFUSION, read_flags(checkpoint.flags), place)
    config = translation.config
    sampler = config["task"]["sampler"]
    if sampler.get("spacing") == "ddim" and config["task"]["diffusion"]["schedule"]["steps"] % sampler["steps"] == 0:
        sampler["spacing"] = (
            "diffusers"  # the same strides, but the first step is not moved up to the noisiest timestep
        )
    trained = config["task"]["diffusion"]["schedule"]["steps"]
    first = _first_step(sampler, trained)
    moved = f"sampling begins at timestep {trained - 1}, the noisiest, where theirs begins at {first}"
    if config["data"].get("labels", False) != (_LABELS in tensors):
        negation, article = ("", "no") if _LABELS not in tensors else ("not ", "a")
        raise ConfigError(place, [f"the model is {negation}--class_cond, but the weights have {article} {_LABELS}"])
    ignored = dropped(translation)
    if first < trained - 1:
        ignored[moved] = ["the first step of timestep_respacing"]
    return PublishedModel(
        library=IMPROVED_DIFFUSION.name,
        origin=checkpoint.origin,
        place=files.place,
        record=ImageTaskConfig,
        config=config,
        spec=_spec(config["data"], tensors),
        weights=_weights(config["task"]["backbone"], tensors),
        ignored=ignored,
        to_fill_in=tuple(translation.to_fill_in),
    )


def _first_step(sampler: dict[str, Any], trained: int) -> int:
    """The noisiest timestep that their respacing visits; spacing `diffusers` begins there too."""
    match sampler.get("spacing"):
        case "ddim":
            return (sampler["steps"] - 1) * -(-trained // sampler["steps"])
        case [*counts, 1]:  # the first timestep of the last section
            return trained - max(1, trained // (len(counts) + 1))
    return trained - 1


def _spec(data: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The shapes of a model; its classes have numbers for names."""
    spec: dict[str, Any] = {"x_shape": [*data["size"], 3], "cond_shapes": {}, "kinds": {}}
    if _LABELS in tensors:
        spec["cond_shapes"][LABEL], spec["kinds"][LABEL] = [], "label"
        spec["classes"] = {LABEL: [str(number) for number in range(len(tensors[_LABELS]))]}
    if "low_res" in data:
        spec["cond_shapes"][LOW_RES], spec["kinds"][LOW_RES] = [*data["low_res"], 3], "image"
    return spec


def _weights(backbone: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    sizes = {name: backbone.get(name) for name in ("n_res_blocks", "heads", "heads_up")}
    try:
        renamed = rename_published({name: tensor for name, tensor in tensors.items() if name != _LABELS}, **sizes)
    except RuntimeError as error:
        raise ConfigError(WEIGHTS, [f"an attention has no {sizes['heads']} heads: {error}"]) from None
    weights = {f"backbone.{name}": value for name, value in renamed.items()}
    if _LABELS in tensors:  # the last token stands for a dropped label, which theirs never drops
        labels = tensors[_LABELS]
        weights["encoder.label.tokens.weight"] = torch.cat([labels, torch.zeros_like(labels[:1])])
    return weights


def rename_published(
    weights: Mapping[str, Tensor], *, n_res_blocks: int, heads: int, heads_up: int | None = None
) -> dict[str, Tensor]:
    """Weights, or gradients, of improved-diffusion's `UNetModel` by the names of a `UNet2D`.

    Args:
        n_res_blocks, heads, heads_up: see `UNet2DConfig`.

    Returns:
        Tensors by name; an unknown one under its own name.

    Raises:
        RuntimeError: the rows of an attention cannot be divided into the heads.
    """
    tensors = {}
    for name, value in weights.items():
        place, _, end = name.rpartition(".")
        if place in _ENDS:
            tensors[f"unet.{_ENDS[place]}.{end}"] = value
            continue
        parts = _BLOCK.fullmatch(place)
        inner = parts["inner"] if parts else ""
        if inner == "qkv":  # (heads, 3, channels of a head) rows
            count = heads_up or heads if parts["side"] == "output" else heads
            rows = value.flatten(1) if value.dim() > 1 else value
            for key, projection in zip("qkv", rows.unflatten(0, (count, 3, -1)).unbind(1), strict=True):
                tensors[f"unet.{_block(parts, n_res_blocks)}.to_{key}.{end}"] = projection.flatten(0, 1)
        elif inner in _PARTS:
            is_matrix = inner == "proj_out" and value.dim() > 1
            renamed = f"unet.{_block(parts, n_res_blocks)}.{_PARTS[inner]}.{end}"
            tensors[renamed] = value.flatten(1) if is_matrix else value
        else:
            tensors[name] = value
    return tensors


def _block(parts: re.Match[str], n_res_blocks: int) -> str:
    """The name of a block: a level has `n_res_blocks` blocks and a downsampling, on the way up one more block."""
    number, inner = int(parts["number"]), parts["inner"]
    is_attention = inner.startswith(("norm", "qkv", "proj_out"))
    if parts["side"] == "middle":
        return "mid_block.attentions.0" if is_attention else f"mid_block.resnets.{number // 2}"
    side = {"input": "down", "output": "up"}[parts["side"]]
    level, block = divmod(number - (side == "down"), n_res_blocks + 1)
    if inner in ("op", "conv"):
        return f"{side}_blocks.{level}.{side}samplers.0"
    return f"{side}_blocks.{level}.{'attentions' if is_attention else 'resnets'}.{block}"
