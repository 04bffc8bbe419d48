"""How evaluators measure: models by name and at rest, samples shared out over ranks, the same ones every time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from dp_prior.batch import Batch
from dp_prior.config import ConfigError
from dp_prior.diffusion.sampler import SamplerConfig
from dp_prior.tasks.model import Samples


def pick_models(models: dict[str, nn.Module], names: Sequence[str], evaluator: str) -> dict[str, nn.Module]:
    """The models to measure, or a ValueError that tells which there are."""
    missing = [name for name in names if name not in models]
    if missing:
        raise ValueError(
            f"evaluator {evaluator!r} measures model {missing[0]!r}, but this run has {', '.join(models)}; "
            f"name one of these in the evaluator, or add an average of that name to train.ema"
        )
    return {name: models[name] for name in names}


def pick_samples(data: Any, split: str, evaluator: str) -> Samples:
    """One part of the data, or a ConfigError if it is empty."""
    samples = getattr(data, split)
    if not len(samples):
        raise ConfigError(
            "data.split",
            [
                f"evaluator {evaluator!r} measures the {split} part of the data, which is empty; "
                f"give it a share in data.split, or remove the evaluator"
            ],
        )
    return samples


def shared_batches(
    samples: Samples, max_samples: int | None, batch_size: int, accelerator: Any, device: torch.device
) -> Iterator[Batch]:
    """This rank's batches: every so many samples of the whole split, dealt to the ranks in turn."""
    n = len(samples) if max_samples is None else min(max_samples, len(samples))
    ids = torch.arange(n) * len(samples) // n
    rank, ranks = rank_of(accelerator)
    for part in ids[rank::ranks].split(batch_size):
        if len(part):  # splitting no ids gives one empty part
            sign_of_life(accelerator)
            yield samples.fetch(part.to(samples.device)).to(device)


def with_steps(sampler: SamplerConfig, steps: int) -> SamplerConfig:
    """The same sampler with another number of steps."""
    return type(sampler)(**{**sampler.arguments(), "steps": steps})


def rank_of(accelerator: Any) -> tuple[int, int]:
    """(rank, number of ranks); no accelerator is one rank."""
    return (0, 1) if accelerator is None else (accelerator.process_index, accelerator.num_processes)


def sign_of_life(accelerator: Any) -> None:
    """Say that this rank is at work, where somebody waits for it; leaves the evaluation if the run is asked to stop."""
    getattr(accelerator, "beat", lambda: None)()


def device_of(model: nn.Module) -> torch.device:
    """Where a model lives."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextlib.contextmanager
def at_rest(model: nn.Module) -> Iterator[None]:
    """In evaluation mode and without gradients; every submodule then goes back to the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode
