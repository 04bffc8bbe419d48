"""The models that an evaluator measures: chosen by name, in evaluation mode."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import nn

from dp_prior.diffusion.sampler import SamplerConfig


def pick_models(models: dict[str, nn.Module], names: Sequence[str], evaluator: str) -> dict[str, nn.Module]:
    """The models to measure.

    Raises:
        ValueError: the run has no model of a name; the message lists the run's models.
    """
    missing = [name for name in names if name not in models]
    if missing:
        raise ValueError(
            f"evaluator {evaluator!r} measures model {missing[0]!r}, but this run has {', '.join(models)}; "
            f"name one of these in the evaluator, or add an average of that name to train.ema"
        )
    return {name: models[name] for name in names}


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; restores the mode of every submodule afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's parameters; the CPU for a model without any."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def with_steps(sampler: SamplerConfig, steps: int) -> SamplerConfig:
    """The same sampler with another number of steps."""
    return type(sampler)(**{**sampler.arguments(), "steps": steps})
