"""What the evaluators of one part of the data have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from dp_prior.config import Config


class HeldOutConfig(Config):
    """Measures models on samples of one part of the data, with noise that is fixed for each sample."""

    tasks: ClassVar[tuple[str, ...] | None] = None
    """Kinds of tasks that can be measured; None for all."""

    models: tuple[str, ...] = Field(default=("ema",), min_length=1)
    """Which weights are measured: names of averages in `train.ema`, or `online` for the trained weights themselves."""

    split: Literal["train", "val", "test"] = "val"
    """Part of the data that is measured."""

    batch_size: int = Field(default=256, ge=1)
    """Samples per batch and rank; changes memory and speed, not the result."""

    seed: int = 0
    """Chooses the noise that each sample keeps; independent of the run's seed, so runs compare."""

    def check(self, task: Any) -> None:
        """Any of these tasks can be measured."""

    def sampling_steps(self) -> tuple[int, ...]:
        """Numbers of sampling steps that are asked for."""
        return ()

    def measured_models(self) -> tuple[str, ...]:
        """Names of the models that `run` needs."""
        return self.models


class SampledConfig(HeldOutConfig):
    """Measures what is drawn in each of some numbers of sampling steps."""

    eval_timesteps: tuple[int, ...] = Field(default=(16,), min_length=1)
    """Numbers of sampling steps to measure with, otherwise using the model's own sampler."""

    @field_validator("eval_timesteps")
    @classmethod
    def _positive(cls, eval_timesteps: tuple[int, ...]) -> tuple[int, ...]:
        if min(eval_timesteps) < 1 or len(set(eval_timesteps)) < len(eval_timesteps):
            raise ValueError(f"{list(eval_timesteps)} should be different numbers of steps, each at least 1")
        return eval_timesteps

    def sampling_steps(self) -> tuple[int, ...]:
        """See `HeldOutConfig`."""
        return self.eval_timesteps
