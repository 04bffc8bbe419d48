"""Loads a policy, a prior or a model of images from a checkpoint or export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack

import torch

if TYPE_CHECKING:
    from dp_prior.tasks.image import ImageDiffusion
    from dp_prior.tasks.policy import DiffusionPolicy
    from dp_prior.tasks.prior import DiffusionPrior


class LoadOptions(TypedDict, total=False):
    """How a model is loaded; each may be left out."""

    weights: str | None
    """Name of an average of the run (`train.ema`); None for the first, which is the exported one."""

    guidance_scale: float | None
    """Scale of classifier-free guidance, instead of the configured scale; 1 is the conditional model, larger scales
    amplify the condition. Needs a model trained with dropout of its conditions."""

    device: torch.device | str
    """Where the model computes; by default the CPU."""

    dtype: torch.dtype | None
    """Type of the network's weights, for example torch.bfloat16; None keeps float32. The normalizer, noise levels and
    sampler stay float32, and so do observations and actions."""

    runtime: Literal["auto", "eager"]
    """`auto` lets agents on a CPU run the network in onnxruntime where that is installed, faster and equal to 1e-5, see
    docs/acting.md; `eager` keeps the network in torch."""


def load_policy(reference: str | Path, *, body: str | None = None, **options: Unpack[LoadOptions]) -> DiffusionPolicy:
    """Load a policy in evaluation mode.

    Nothing in a checkpoint is executed: it is JSON, checked by the same records as a configuration file, and plain
    tensors, whose hashes are compared. The caller's random state is left as it was.

    Args:
        reference: path of a checkpoint, an export or a run, whose best checkpoint is loaded unless the path ends in
            `@latest` or `@step_00012000`. If there is no such path, a Hub repository `user/name`, optionally with
            `@revision`. Or `hf://user/name`, `https://...#sha256=...`, `s3://...` or another URL that fsspec reads, see
            `dp_prior.places.reference`.
        body: the robot's body by name, of a network for many (`task.type` bodies): the policy then has the shapes and
            units of that body. None for all other policies.
        options: `weights`, `guidance_scale`, `device`, `dtype` and `runtime`, see `LoadOptions`.

    Raises:
        FileNotFoundError: the directory, or config.json, spec.json or model.safetensors in it, is missing.
        CheckpointError: there is no usable checkpoint, or a file differs from the manifest.
        ConfigError: the configuration or the shapes do not describe a policy, or it cannot be guided.
        ValueError: there is no average of that name, the weights do not fit the configuration, the device cannot be
            used, dtype is not a floating-point type, or the body is unknown, or missing where the network has many.
    """
    from dp_prior.tasks.policy import DiffusionPolicy  # late, since importing the networks takes a second

    policy = DiffusionPolicy.from_pretrained(reference, **options)
    if policy.bodies:
        return policy.body(body)
    if body is not None:
        raise ValueError(f"{reference} holds a policy of one robot, which has no body {body!r}; leave out body")
    return policy


def load_prior(reference: str | Path, **options: Unpack[LoadOptions]) -> DiffusionPrior:
    """Load a prior in evaluation mode; `predict` then gives image embeddings. Otherwise like `load_policy`."""
    from dp_prior.tasks.prior import DiffusionPrior

    return DiffusionPrior.from_pretrained(reference, **options)


def load_image(reference: str | Path, **options: Unpack[LoadOptions]) -> ImageDiffusion:
    """Load a model of images in evaluation mode; `predict` then draws images. Otherwise like `load_policy`."""
    from dp_prior.tasks.image import ImageDiffusion

    return ImageDiffusion.from_pretrained(reference, **options)
