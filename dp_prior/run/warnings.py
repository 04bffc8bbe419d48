"""Warnings in the plan of a run: settings that contradict the budget, the data, the robots or the processor."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn

from dp_prior.checkpoints.clock import Progress
from dp_prior.run.assembly import Assembly
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.randomness import Randomness
from dp_prior.training.measure import evaluator_warnings
from dp_prior.training.trainer import PolicyTrainer

MANY_EPOCHS, HIGH_RATE = 1000, 0.1
CLOUDS = 64
"""Samples whose point clouds are compared with their boxes."""

TIMED_ROUNDS = 3
TIMED_SAMPLES = 64
"""Most samples of a batch that is timed."""

SLOWER = 1.2
"""Ratio of times that is told; a smaller ratio is within the noise of a busy machine."""


def plan_warnings(config: TrainConfig, parts: Assembly, trainer: PolicyTrainer) -> list[str]:
    """All warnings of a run before its training, a line each. A collective.

    Args:
        config: of the run; the configuration of `parts` may differ in a trial.
    """
    return [
        *parts.data.report()["warnings"],
        *parts.model.warnings(),
        *batch_warnings(config),
        *budget_warnings(config, trainer),
        *camera_warnings(config),
        *cloud_warnings(parts),
        *precision_warnings(parts, trainer),
        *evaluator_warnings([*parts.evaluators, *parts.tests], parts.ranks),
    ]


def batch_warnings(config: TrainConfig) -> Iterator[str]:
    """Warn of sizes beside `data.global_batch_size` that have no effect, or fit one number of ranks alone."""
    step, most, accumulation = config.data.step_size, config.data.batch_size, config.train.accumulation
    if step is not None and most > step:
        yield f"data.batch_size {most} has no effect: a step takes data.global_batch_size {step} samples; change that"
    elif step not in (None, most) and accumulation > 1:
        product = f"{step // (most * accumulation)} x data.batch_size {most} x train.accumulation {accumulation}"
        condition = f"is data.global_batch_size {step} on this number of ranks alone"
        yield f"{product} {condition}; remove train.accumulation, which then follows on others too"


def budget_warnings(config: TrainConfig, trainer: PolicyTrainer) -> Iterator[str]:
    """Name the settings that do not suit the length of the run, a line each."""
    train, warmup, steps = config.train, config.train.lr.warmup_steps, trainer.total_steps
    if warmup > steps:
        yield (
            f"train.lr.warmup_steps is {warmup:,}, but the run has {steps:,} steps: the rate only rises, to "
            f"{train.lr.at(steps - 1, steps):.2g} of {train.lr.peak:g}; set it to {steps // 10:,}, or train for longer"
        )
    if train.lr.peak > HIGH_RATE:
        yield f"train.lr.peak is {train.lr.peak:g}: each step may change a weight by as much; lower it, 1e-4 is usual"
    epochs = trainer.total_samples / len(trainer.loader)
    if epochs >= MANY_EPOCHS * (10 if train.unit == "epochs" else 1):
        yield (
            f"train.{train.unit} is {getattr(train, train.unit):,}, which is {epochs:,.0f} epochs: each of the "
            f"{len(trainer.loader):,} samples of the training set is seen as often; lower it, or train on more data"
        )
    if not config.evaluate and not config.test:
        yield "evaluate and test are empty: nothing is measured, and no checkpoint is selected as the best"
    last = Progress(trainer.total_samples - 1, steps - 1)
    for evaluator in config.evaluate:
        is_late = evaluator.every.minutes is None and not evaluator.every.due(Progress(), last, len(trainer.loader))
        if is_late and evaluator.rollouts() is not None and evaluator.name in config.data.followed():
            yield (
                f"evaluator {evaluator.name!r} runs every {evaluator.every}, but the run has {epochs:,.1f} epochs in "
                f'{steps:,} steps: data.language weights "by_success" stay as they begin; run it more often'
            )


def camera_warnings(config: TrainConfig) -> Iterator[str]:
    """Name each camera whose recorded frames are drawn in another way than an environment draws those of its name."""
    rendered = []
    for set_name, record in config.data.recorded_sets().items():
        images = "data.images" if record is config.data else f"data.sets.{set_name}.images"
        cameras = record.images.items()
        rendered += [(f"{images}.{name}", name, camera.render) for name, camera in cameras if camera.render is not None]
    for evaluator in (*config.evaluate, *config.test):
        rollouts = evaluator.rollouts()
        if rollouts is None:
            continue
        env = rollouts.env
        for where, name, render in rendered:
            if render.type != env.type or name not in getattr(env, "cameras", {}):
                continue
            for field, env_setting in (("camera", name), ("shadows", getattr(env, "shadows", None))):
                setting = getattr(render, field, env_setting)
                if setting != env_setting:
                    yield (
                        f"{where}.render.{field} is {setting!r}, but environment {env.type!r} of "
                        f"{evaluator.name!r} shows {env_setting!r} by this name; give both the same"
                    )


def cloud_warnings(parts: Assembly) -> Iterator[str]:
    """Name each point cloud without a point in its encoder's box, as with a box in another unit or frame."""
    train, names = parts.data.train, [name for name, kind in parts.data.spec.kinds.items() if kind == "points"]
    if not names:
        return
    count = min(CLOUDS, len(train))
    cond = train.fetch(torch.arange(count, device=train.device) * len(train) // count).cond
    for name in names:
        has_point = parts.model.encoder.encoder_of(name).is_seen(cond[name].to(parts.ranks.device)).any(-1)
        if not has_point.all():
            share, field = 1 - has_point.double().mean().item(), f"task.encoders.{name}.box"
            yield (
                f"points.{name}: no point lies in {field} in {share:.0%} of the clouds, which the policy cannot tell "
                f"apart; dp-prior inspect tells where the points lie"
            )


def precision_warnings(parts: Assembly, trainer: PolicyTrainer) -> Iterator[str]:
    """Warn if the network takes longer in bf16 than in fp32: torch computes bf16 more slowly on a processor without
    instructions for it. Timed by a few passes in turns, on a CPU alone."""
    if parts.config.train.precision != "bf16" or parts.ranks.device.type != "cpu":
        return
    fp32, bf16 = forward_seconds(parts, trainer.models["online"])
    if bf16 > SLOWER * fp32:
        yield (
            f"train.precision is bf16, but a pass of this network takes {bf16 / fp32:.1f} times as long as in fp32 on "
            f"this processor; set train.precision to fp32"
        )


def forward_seconds(parts: Assembly, model: nn.Module) -> tuple[float, float]:
    """Shortest times of a pass without gradients in fp32 and in bf16, in turns. Changes nothing of the model."""
    n = min(TIMED_SAMPLES, parts.config.data.batch_size, len(parts.data.train))
    batch = parts.data.train.fetch(torch.arange(n, device=parts.data.train.device)).to(parts.ranks.device)
    random = Randomness.from_counts(parts.config.seed, "precision", batch.ids)
    was_training, times = model.training, ([], [])
    model.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for _ in range(TIMED_ROUNDS + 1):  # the first round also plans kernels
            for durations, is_low in zip(times, (False, True), strict=True):
                begun = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16, enabled=is_low):
                    model(batch, random)
                durations.append(time.perf_counter() - begun)
    model.train(was_training)
    return min(times[0][1:]), min(times[1][1:])


def robot_notes(config: TrainConfig, spec: Spec) -> list[str]:
    """Name what the program that drives the robots of each recorded data set would not give the policy; see
    `EpisodeStoreRecord.rollout_gaps`.

    Args:
        spec: of the policy.
    """
    if not isinstance(config.task, PolicyConfig):
        return []
    gaps = []
    for record in config.data.recorded_sets().values():
        gaps += record.rollout_gaps(spec.names, config.task.n_obs_steps)
    return list(dict.fromkeys(gaps))
