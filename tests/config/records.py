"""Small records of every kind of field, and their readers."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from dp_prior.config import Config, ConfigError


class Cosine(Config):
    type: Literal["cosine"] = "cosine"
    steps: int = Field(default=100, ge=1)
    """Timesteps."""


class Linear(Config):
    type: Literal["linear"] = "linear"
    steps: int = 50
    beta: float = 0.5


Schedule = Annotated[Cosine | Linear, Field(discriminator="type")]


class Every(Config):
    steps: int | None = None
    epochs: float | None = None

    @model_validator(mode="after")
    def _one(self) -> "Every":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give exactly one of steps, epochs")
        return self


class Evaluator(Config):
    every: Every = Every(epochs=1)
    name: str = "loss"


class Task(Config):
    horizon: int
    down_dims: tuple[int, ...] = (256, 512)
    schedule: Schedule = Cosine()
    encoders: dict[str, Schedule] = {"left": Linear(), "right": Cosine()}
    seed_or_name: int | str = 0


class Run(Config):
    description: str = ""
    task: Task
    evaluate: list[Evaluator] = [Evaluator()]
    learning_rate: float = 1e-4
    use_ema: bool = True
    path: Path | None = None
    extra_schedule: Schedule | None = None


MINIMAL = {"task": {"horizon": 16}}


def read(data: Any, *overrides: str) -> Run:
    return Run.from_json(data if isinstance(data, str) else json.dumps(data), overrides)


def problems(data: Any, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read(data, *overrides)
    assert str(caught.value).splitlines()[1:] == [f"  {problem}" for problem in caught.value.problems]
    assert all(len(problem) < 400 for problem in caught.value.problems)
    return caught.value.problems


class Outside(Config):
    """A record of an installed package."""

    type: Literal["outside"] = "outside"
    width: int = 3


class Inside(Config):
    """A record of our own."""

    type: Literal["inside"] = "inside"
