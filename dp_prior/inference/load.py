"""From a checkpoint or export to a policy that is ready to act, or a prior that is ready to predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from dp_prior.tasks.policy import DiffusionPolicy
    from dp_prior.tasks.prior import DiffusionPrior


def load_policy(
    reference: str | Path,
    *,
    weights: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> DiffusionPolicy:
    """Load a policy in evaluation mode.

    Nothing in a checkpoint is executed: it is JSON, checked by the same records as a configuration file, and plain
    tensors, whose hashes are compared. The caller's random state is left as it was.

    Args:
        reference: path of a checkpoint, an export or a run; of a run the best checkpoint is taken, unless it ends in
            `@latest` or `@step_00012000`. Or a repository of the Hub, `user/name`, perhaps with `@revision`, if there
            is no such path; or `hf://user/name`, `https://...#sha256=...`, `s3://...` and whatever else fsspec reads,
            see `dp_prior.places.reference`.
        weights: name of an average of the run (`train.ema`); None for the first of them, which is the one exported.
        dtype: of the network's weights, for example torch.bfloat16; None keeps float32. The normalizer, the noise
            levels and the sampler stay float32, and so do observations and actions.

    Raises:
        FileNotFoundError: the directory, or config.json, spec.json or model.safetensors in it, is missing.
        CheckpointError: there is no usable checkpoint, or a file is not what the manifest says.
        ConfigError: the configuration or the shapes are not ones of a policy.
        ValueError: there is no average of that name, the weights do not fit the configuration, or dtype is none of
            floating point.
    """
    from dp_prior.tasks.policy import DiffusionPolicy  # the networks: a second that `import dp_prior` need not take

    return DiffusionPolicy.from_pretrained(reference, weights=weights, device=device, dtype=dtype)


def load_prior(
    reference: str | Path,
    *,
    weights: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
) -> DiffusionPrior:
    """Load a prior in evaluation mode; `predict` then gives image embeddings. Otherwise like `load_policy`."""
    from dp_prior.tasks.prior import DiffusionPrior

    return DiffusionPrior.from_pretrained(reference, weights=weights, device=device, dtype=dtype)
