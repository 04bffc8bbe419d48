"""How long and how a model is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dp_prior.clock import Cadence, Progress
from dp_prior.config import Change, Config
from dp_prior.training.best import MonitorConfig
from dp_prior.training.deadline import Duration
from dp_prior.training.ema import DecayConfig, PowerDecay
from dp_prior.training.optimizer import AdamWConfig, CosineLearningRate, LearningRateConfig

_UNITS = ("samples", "epochs", "steps")
_START = Progress()


class TrainingConfig(Config):
    """The budget, the optimizer and the cadences of a run. Give exactly one of samples, epochs, steps."""

    samples: int | None = Field(default=None, ge=1)
    """Budget in training samples over all ranks."""

    epochs: float | None = Field(default=None, gt=0)
    """Budget in passes over the training set."""

    steps: int | None = Field(default=None, ge=1)
    """Budget in optimizer steps."""

    accumulation: Annotated[int, Change("harmless")] = Field(default=1, ge=1)
    """Micro-batches per optimizer step; k of them equal one batch k times as large."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast precision of the network; losses, normalizer, optimizer and averages stay fp32. fp16 needs a GPU."""

    optimizer: AdamWConfig = AdamWConfig()
    """The optimizer."""

    lr: LearningRateConfig = CosineLearningRate()
    """Learning rate as a function of the optimizer step."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """The gradient's global norm is clipped to this."""

    ema: Annotated[dict[str, DecayConfig], Change("architecture")] = {"ema": PowerDecay()}
    """Averages of the weights by name; the first is the one that acts. Empty for none."""

    init_from: Annotated[str | None, Change("harmless")] = None
    """Reference of a checkpoint whose weights a fresh run starts from, its normalizer among them: a path, `hf://...`,
    or another that `load_policy` reads. Everything must fit. A run that goes on from its own checkpoint ignores it."""

    monitor: Annotated[MonitorConfig, Change("harmless")] = MonitorConfig()
    """What makes a checkpoint the best."""

    log_every: Annotated[Cadence, Change("harmless")] = Cadence(steps=50)
    """How often training metrics are logged; the only time the loop waits for the device."""

    save_every: Annotated[Cadence, Change("harmless")] = Cadence(epochs=10)
    """How often a checkpoint is saved, besides at a new best and at the end."""

    nonfinite_limit: Annotated[int, Change("harmless")] = Field(default=10, ge=1)
    """Steps in a row with a non-finite gradient after which the run stops; each of them is skipped and counted."""

    rollback: Annotated[int, Change("harmless")] = Field(default=0, ge=0)
    """How often a run that would stop for `nonfinite_limit` instead goes back to the weights of its last checkpoint and
    passes over the samples seen since; 0 never does."""

    dist_timeout: Annotated[Duration, Change("harmless")] = 120.0
    """A rank without a sign of life for so long ends the run, seconds or for example "5m"; it is named, and every rank
    writes its stacks. Work of one rank that cannot show that it goes on, such as a save, may take ten times as long."""

    max_runtime: Annotated[Duration | None, Change("harmless")] = None
    """The run saves and ends with exit code 75 so that it is done after so long, seconds or for example "47h"; null for
    no limit but the one that SLURM tells."""

    requeue: Annotated[bool, Change("harmless")] = False
    """Whether a SLURM job that ends for lack of time, or on SIGUSR1, asks to be started again."""

    @field_validator("ema")
    @classmethod
    def _names(cls, ema: dict[str, DecayConfig]) -> dict[str, DecayConfig]:
        for name in ema:
            if name == "online" or not name.isidentifier():
                raise ValueError(f"{name!r} cannot name an average; use a plain word other than 'online'")
        return ema

    @model_validator(mode="after")
    def _one_budget(self) -> TrainingConfig:
        given = [name for name in _UNITS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"{', '.join(given)}; set the others to null" if given else "none"
            raise ValueError(f"a run needs exactly one of samples, epochs, steps; found {found}")
        return self

    @property
    def unit(self) -> str:
        """What the budget is given in: samples, epochs or steps."""
        return next(name for name in _UNITS if getattr(self, name) is not None)

    def total_samples(self, dataset_length: int, global_batch_size: int, progress: Progress = _START) -> int:
        """The budget in samples, seen from a moment of the run: steps that are over may have been of other sizes."""
        if self.samples is not None:
            return self.samples
        if self.steps is not None:
            return progress.samples_seen + (self.steps - progress.global_step) * global_batch_size
        return max(1, round(self.epochs * dataset_length))

    def spent(self, dataset_length: int, global_batch_size: int, progress: Progress) -> tuple[int, int]:
        """What is spent of the budget and the whole of it, both in optimizer steps with this global batch."""
        if self.steps is not None:
            return progress.global_step, self.steps
        total = self.total_samples(dataset_length, global_batch_size)
        return progress.samples_seen // global_batch_size, -(-total // global_batch_size)
