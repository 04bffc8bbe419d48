"""Budget, optimizer and cadences of training, and the metrics that it logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dp_prior.checkpoints.clock import Cadence, Progress
from dp_prior.config import Change, Config, family
from dp_prior.job.deadline import Duration
from dp_prior.tasks.weights import TransferConfig
from dp_prior.tensors.compilation import CUDA_GRAPHS, Compile
from dp_prior.tracking.metric_names import Metric
from dp_prior.training.best import MonitorConfig
from dp_prior.training.ema import DecayConfig, PowerDecay
from dp_prior.training.learning_rate import CosineLearningRate, LearningRateConfig
from dp_prior.training.optimizer import AdamWConfig

OptimizerConfig = family(
    "optimizers",
    {
        "adamw": "dp_prior.training.optimizer:AdamWConfig",
        "muon": "dp_prior.training.muon:MuonConfig",
    },
)

_BUDGET_UNITS = ("samples", "epochs", "steps")
_LONGEST_NAME = 100  # of an average with a file of its name
_CLOCK_START = Progress()


class TrainingConfig(Config):
    """The budget, the optimizer and the cadences of a run. Give exactly one of samples, epochs, steps."""

    samples: int | None = Field(default=None, ge=1)
    """Budget in training samples over all ranks."""

    epochs: float | None = Field(default=None, gt=0)
    """Budget in passes over the training set."""

    steps: int | None = Field(default=None, ge=1)
    """Budget in optimizer steps."""

    accumulation: Annotated[int, Change("harmless")] = Field(default=1, ge=1)
    """Micro-batches per optimizer step; k of them give the same step as one batch k times as large. With
    `data.global_batch_size`, 1 is as many as `data.batch_size` requires."""

    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast precision of the network; losses, normalizer, optimizer and averages stay fp32. fp16 needs a GPU."""

    compile: Annotated[Compile, Change("harmless")] = "auto"
    """How torch compiles a micro-batch up to its loss: off, or a mode of `torch.compile`. reduce-overhead and
    max-autotune record CUDA graphs on a GPU. Compiling takes a minute or more at the first step of every start. auto:
    on a GPU where ten minutes of training are left, if the first batch then has the same loss and gradient in less
    time; off otherwise."""

    optimizer: OptimizerConfig = AdamWConfig()
    """The optimizer; its `type` defaults to adamw."""

    shard: Annotated[Literal["optimizer", "model", False], Change("harmless")] = False
    """What the ranks divide among themselves. optimizer: its state (ZeRO stage 1); each weight is updated by one rank,
    which sends it to the others, so that every number stays the same, and Muon has less work. model: weights,
    gradients, averages and the optimizer's state (FSDP2); each rank holds a part of every weight and gathers the
    network block by block. No effect on one rank."""

    shard_optimizer: Annotated[bool, Change("harmless")] = False
    """The earlier name of `shard` "optimizer"; an omitted one follows the other."""

    lr: LearningRateConfig = CosineLearningRate()
    """Learning rate as a function of the optimizer step."""

    max_grad_norm: float = Field(default=1.0, gt=0)
    """Maximum global norm of the gradient; a larger gradient is clipped."""

    ema: Annotated[dict[str, DecayConfig], Change("architecture")] = {"ema": PowerDecay()}
    """Averages of the weights by name; the first is the exported model. Empty for none."""

    init_from: Annotated[str | TransferConfig | None, Change("harmless")] = None
    """Checkpoint whose weights and normalizer a fresh run starts from: a path, `hf://...`, or another reference that
    `load_policy` reads, all of whose tensors must match; or an object that says which parts are taken and which may
    differ. Ignored when a run continues from its own checkpoint."""

    monitor: Annotated[MonitorConfig, Change("harmless")] = MonitorConfig()
    """The metric that selects the best checkpoint."""

    log_every: Annotated[Cadence, Change("harmless")] = Cadence(steps=50)
    """How often training metrics are logged; the only time the loop waits for the device."""

    save_every: Annotated[Cadence, Change("harmless")] = Cadence(epochs=10)
    """How often a checkpoint is saved, besides at a new best and at the end."""

    nonfinite_limit: Annotated[int, Change("harmless")] = Field(default=10, ge=1)
    """Steps in a row with a non-finite gradient after which the run stops; each of them is skipped and counted."""

    rollback: Annotated[int, Change("harmless")] = Field(default=0, ge=0)
    """How many times a run that would stop for `nonfinite_limit` or `divergence` instead restores the
    weights of its last good checkpoint and skips the samples seen since; 0 for never."""

    divergence: Annotated[Literal["warn", "stop", "roll back"] | None, Change("harmless")] = "warn"
    """Response to a loss above 10 times its lowest running mean for 20 steps in a row: `warn` in the console and in
    events.jsonl, and exit code 65 if the loss is still there at the end; `stop` with exit code 65, `roll back` as
    `rollback` says, or null to ignore such a loss."""

    dist_timeout: Annotated[Duration, Change("harmless")] = 120.0
    """Time without progress after which a rank is lost and the run ends, in seconds or for example "5m". The rank is
    named and every rank writes its stacks. Work that cannot report progress, such as a save, may take 10 times that."""

    max_runtime: Annotated[Duration | None, Change("harmless")] = None
    """Time limit in seconds or for example "47h": the run saves and ends with exit code 75 before it. null for no
    limit other than that of SLURM."""

    requeue: Annotated[bool, Change("harmless")] = False
    """Whether to requeue the SLURM job when it ends because of its time limit or SIGUSR1."""

    @field_validator("ema")
    @classmethod
    def _names(cls, ema: dict[str, DecayConfig]) -> dict[str, DecayConfig]:
        for name in ema:
            if name == "online" or not name.isidentifier():
                raise ValueError(f"{name!r} cannot name an average; use an identifier other than 'online'")
        for name in [*ema][1:]:  # see `weights_file`
            if not name.isascii() or len(name) > _LONGEST_NAME:
                expected = f"use at most {_LONGEST_NAME} letters a to z, digits and _"
                raise ValueError(f"{name!r} cannot name the file of an average in a checkpoint; {expected}")
        return ema

    @model_validator(mode="after")
    def _fill_shard(self) -> Self:
        """Make `shard` and its earlier name agree where one is omitted, in stored files too."""
        if "shard_optimizer" not in self.model_fields_set:
            vars(self)["shard_optimizer"] = self.shard == "optimizer"
        elif "shard" not in self.model_fields_set and self.shard_optimizer:
            vars(self)["shard"] = "optimizer"
        return self

    def faults(self) -> Iterator[str]:
        divides_optimizer, names = self.shard == "optimizer", {"shard", "shard_optimizer"}
        if names <= self.model_fields_set and self.shard_optimizer != divides_optimizer:
            finding = f"shard is {self.shard!r} and shard_optimizer, its earlier name, {self.shard_optimizer}"
            yield f"{finding}; remove shard_optimizer, or make both say the same"
        budgets = [name for name in _BUDGET_UNITS if getattr(self, name) is not None]
        if len(budgets) != 1:
            finding = f"{', '.join(budgets)}; set the others to null" if budgets else "none"
            yield f"a run needs exactly one of samples, epochs, steps; found {finding}"
        yield from self.graph_faults(self.accumulation)
        if self.divergence == "roll back" and self.rollback == 0:
            yield "divergence is 'roll back', but rollback is 0; set rollback to the most rollbacks allowed"

    def graph_faults(self, micro_batches: int) -> Iterator[str]:
        """A line if `compile` records CUDA graphs and a step has several micro-batches."""
        if self.compile in CUDA_GRAPHS and micro_batches > 1:
            if self.accumulation > 1:
                finding = f"accumulation is {micro_batches}; set accumulation to 1"
            else:
                finding = (
                    f"data.batch_size divides a step into {micro_batches}; raise data.batch_size, start more ranks"
                )
            yield (
                f"compile is {self.compile!r}, whose CUDA graphs overwrite the gradient of the micro-batch before, but "
                f"{finding}, or set compile to 'default'"
            )

    @property
    def unit(self) -> str:
        """Unit of the budget: samples, epochs or steps."""
        return next(name for name in _BUDGET_UNITS if getattr(self, name) is not None)

    def total_samples(self, dataset_length: int, global_batch_size: int, progress: Progress = _CLOCK_START) -> int:
        """The budget in samples. A budget in steps depends on `progress`: past steps may have had other batch sizes."""
        if self.samples is not None:
            return self.samples
        if self.steps is not None:
            return progress.samples_seen + (self.steps - progress.global_step) * global_batch_size
        return max(1, round(self.epochs * dataset_length))

    def spent(self, dataset_length: int, global_batch_size: int, progress: Progress) -> tuple[int, int]:
        """The spent part of the budget and the total, both in optimizer steps of this global batch size."""
        if self.steps is not None:
            return progress.global_step, self.steps
        total = self.total_samples(dataset_length, global_batch_size)
        return progress.samples_seen // global_batch_size, -(-total // global_batch_size)


METRICS = (
    Metric("train/loss", "1", "lower", "The training objective, weighted as configured; mean over valid elements."),
    Metric("train/loss_q<quarter>", "1", "lower", "The same over one quarter of the timesteps; absent if empty."),
    Metric("train/simple", "1", "lower", "Where the variance is learned: the part of the loss for the mean."),
    Metric("train/simple_q<quarter>", "1", "lower", "The same over one quarter of the timesteps."),
    Metric("train/vb", "bits/dim", "lower", "With learned variance: the bound's terms, mean over timesteps."),
    Metric("train/vb_q<quarter>", "bits/dim", "lower", "The same over one quarter of the timesteps."),
    Metric("train/grad_norm", "1", None, "L2 norm of the gradient before clipping; mean over steps with a finite one."),
    Metric("train/skipped_steps", "steps", "lower", "Steps since the start whose gradient was not finite."),
    Metric("train/lr", "1", None, "Learning rate of the last step."),
    Metric(
        "train/loss_scale", "1", None, "With fp16: the factor of the loss that keeps small gradients from vanishing."
    ),
    Metric("train/<average>_decay", "1", None, "Weight that the average kept at the last step."),
    Metric("train/epoch", "epochs", None, "Samples seen over the length of the training set."),
    Metric(
        "train/data_share",
        "1",
        "lower",
        "Share of the time, without that of evaluations, that the first rank spent waiting for batches.",
    ),
    Metric("train/samples_per_second", "samples/s", "higher", "Over all ranks, without the time of evaluations."),
    Metric("train/evaluation_seconds", "s", "lower", "Time that the evaluations after this step took, all together."),
)
"""The metrics that the trainer logs, over the samples since the row before."""
