"""Priors of DALLE2-pytorch, LAION's among them, after `scripts/export_torch_weights.py` has run: settings and weights.

The settings are those of `train_diffusion_prior.py`, which the table of configurations translates. Early versions, up
to 1.1, compute another attention and never drop a text; their weights are told apart by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from dp_prior.config import ConfigError
from dp_prior.networks.backbones.multi_query_prior import IMAGE
from dp_prior.networks.encoders.text import EMBEDDING, ENCODINGS
from dp_prior.tasks.prior import PriorConfig
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from dp_prior_foreign.importers.foreign_model import (
    WEIGHTS,
    ConvertedCheckpoint,
    PublishedModel,
    dropped,
    translated,
    under,
)
from dp_prior_foreign.translation.dalle2_table import DALLE2
from dp_prior_foreign.translation.foreign_settings import flat

FOREIGN_SETTINGS = "dalle2_prior.json"
_QUERY = "learned_query"

EARLY_BIAS_FACTOR = 128
"""Early versions divide products by this number, add the bias, and multiply by the number before the softmax."""

_EARLY_NULL_TEXT = "null_text_embed"
_DISTANCE_BIAS = "causal_transformer.rel_pos_bias.relative_attention_bias.weight"
_NULL_TOKENS = {
    "null_text_encodings": ENCODINGS,
    _EARLY_NULL_TEXT: ENCODINGS,
    "null_text_embeds": EMBEDDING,
    "null_image_embed": IMAGE,
}
_PRIOR_NAMES = {
    "causal_transformer.": "",
    "to_text_embeds.0": "encoder.project",
    "to_image_embeds.0": "image",
    "to_time_embeds.0.1.net.0.0": "time.1",
    "to_time_embeds.0.1.net.1.0": "time.3",
    "to_time_embeds.0.1.net.2": "time.5",
    "to_time_embeds.0": "time",
    "learned_query": "query",
    "rel_pos_bias.relative_attention_bias": "distances",
    "init_norm.g": "norm_in.weight",
    "project_out": "head",
    ".0.norm.g": ".norm_1.weight",
    ".0.null_kv": ".null",
    ".0.to_q": ".queries",
    ".0.to_kv": ".keys_values",
    ".0.to_out.0": ".attention_out",
    ".0.to_out.1.g": ".norm_attended.weight",
    ".1.0.g": ".norm_2.weight",
    ".1.1.weight": ".expand.weight",
    ".1.3.g": ".norm_inner.weight",
    ".1.5.weight": ".contract.weight",
    "norm.g": "norm_out.weight",  # last, since it ends the names above
}


class PublishedPrior(ConvertedCheckpoint):
    """`dalle2_prior.json`."""

    settings: dict[str, Any]


def read(files: PublishedFiles) -> PublishedModel:
    """A prior of DALLE2-pytorch in our terms.

    Raises:
        ConfigError: a setting is unknown, or the weights are not of a prior, or of a version that is not read.
    """
    checkpoint, tensors = files.document(FOREIGN_SETTINGS, PublishedPrior), under("net.", files.tensors(WEIGHTS))
    place = f"{files.place}/{FOREIGN_SETTINGS}"
    settings = flat(checkpoint.settings, place, DALLE2.lists)
    prior_settings = {path: value for path, value in settings.items() if path.startswith("prior.")}
    translation = translated(DALLE2, prior_settings, place)
    config = translation.config
    for problem in _faults(config["task"], tensors):
        raise ConfigError(f"{files.place}/{WEIGHTS}", [problem])
    if is_early(tensors):
        config["task"]["backbone"]["cosine"] = False
        config["task"]["text_dropout"] = 0.0
    return PublishedModel(
        library=DALLE2.name,
        origin=checkpoint.origin,
        place=files.place,
        record=PriorConfig,
        config=config,
        spec=_spec(config["data"], tensors[_QUERY].shape[0]),
        weights=dict(rename_published(tensors)),
        ignored=dropped(translation),
        to_fill_in=tuple(translation.to_fill_in),
    )


def _spec(data: dict[str, Any], dim: int) -> dict[str, Any]:
    shapes: dict[str, list[int]] = {EMBEDDING: [dim]}
    if ENCODINGS in data:
        shapes[ENCODINGS] = [data[ENCODINGS]["tokens"], dim]
    return {"x_shape": [dim], "cond_shapes": shapes}


def _faults(task: dict[str, Any], tensors: dict[str, Tensor]) -> list[str]:
    """Why these weights are of no prior that is read."""
    if _QUERY not in tensors or tensors[_QUERY].ndim != 1:
        return [f"has no net.{_QUERY}, so it is not of a DiffusionPrior"]
    if is_early(tensors):
        if "null_image_embed" in tensors:
            return ["is of a version from 1.2 to 1.9, which has attention of its own; 0.25 to 1.1 and 1.15 are read"]
        if task["backbone"].get("time_table") is None:
            return ["is of a version up to 1.1 without num_timesteps, which rounds the sines of timesteps to integers"]
    return []


def rename_published(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Weights of `DiffusionPriorNetwork` under the names of a prior here, `encoder.*` and `backbone.*`."""
    early = is_early(weights)
    for name, value in weights.items():
        if name in _NULL_TOKENS:
            yield f"encoder.null.{_NULL_TOKENS[name]}", value.reshape(-1, value.shape[-1])
        elif name == _DISTANCE_BIAS:
            yield "backbone.distances.weight", value * (EARLY_BIAS_FACTOR if early else 1)
        elif not name.endswith("rotary_emb.freqs"):  # a constant of `rotated`
            for published, renamed in _PRIOR_NAMES.items():
                name = name.replace(published, renamed)
            yield (name if name.startswith("encoder.") else f"backbone.{name}"), value
    if early:  # these never drop a text; no token replaces the noisy embedding
        dim = weights[_EARLY_NULL_TEXT].shape[-1]
        count = max(1, weights.get("to_text_embeds.0.weight", torch.empty(0)).shape[0] // dim)
        yield f"encoder.null.{EMBEDDING}", torch.zeros(count, dim)
        yield f"encoder.null.{IMAGE}", torch.zeros(1, dim)


def is_early(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are weights of versions up to 1.1, which have `cosine` false and cannot be guided."""
    return _EARLY_NULL_TEXT in weights
