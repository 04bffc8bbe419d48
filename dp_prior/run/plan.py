"""The plan: a readable summary of what a run will do."""

from __future__ import annotations

from pathlib import Path
from textwrap import shorten

from dp_prior.data.samples.loader import Loader
from dp_prior.run.assembly import Assembly
from dp_prior.run.config import TrainConfig
from dp_prior.run.warnings import plan_warnings, robot_notes
from dp_prior.tasks.weights import TransferConfig
from dp_prior.training.optimizer import AdamW
from dp_prior.training.trainer import PolicyTrainer


def plan(config: TrainConfig, parts: Assembly, trainer: PolicyTrainer, checkpoint: Path | str | None) -> str:
    """One line for each part of the run, and what evaluators tell before training. A collective.

    Args:
        config: of the run; the configuration of `parts` may differ in a trial.
        trainer: at the sample where training will begin.
        checkpoint: what the run resumes from: its path, or a remote place that was not asked; None for a fresh start.
    """
    loader = parts.loader
    weights = sum(parameter.numel() for parameter in parts.model.parameters())
    ranks = parts.ranks.num_processes
    if checkpoint is None:
        source = TransferConfig.of(config.train.init_from)
        start = "a fresh start" if source is None else f"the weights of {source.path}"
    elif "://" in str(checkpoint):
        start = f"{checkpoint}, if there is a checkpoint"
    else:
        start = f"{checkpoint}, sample {trainer.progress.samples_seen:,}"
    tests = "; ".join(evaluator.name for evaluator in config.test)
    lines = {
        "run": f"{config.tracker.directory}  {shorten(config.description, 100, placeholder=' ...')}",
        "config": config.digest()[:12],
        "data": parts.data.summary(),
        "verified": parts.integrity.scope(),
        "model": f"{config.task.backbone.type}, {weights / 1e6:.2f} M parameters, {config.train.precision} on "
        f"{ranks} x {parts.ranks.device.type}",
        "compile": trainer.compilation,
        "optimizer": "; ".join(filter(None, [_tuned(trainer.optimizer), str(trainer.replicas)])),
        "batch": batch_line(loader, config),
        "budget": f"{trainer.total_samples:,} samples = {trainer.total_steps:,} steps = "
        f"{trainer.total_samples / len(loader):.1f} epochs",
        "evaluate": "; ".join(f"{evaluator.name} every {evaluator.every}" for evaluator in config.evaluate),
        "test": f"{tests} on the best weights, once" if tests else "",
        "save": f"every {config.train.save_every}, {_and_best(config)}",
        "also to": ", ".join(saver.type for saver in config.tracker.save),
        "start from": start,
    }
    if ranks > 1 or config.train.shard:
        from dp_prior.run.memory import memory_row

        lines["memory"] = memory_row(parts.model, trainer)
    rows = [f"  {name:<13} {text}".rstrip() for name, text in lines.items() if text]
    rows += [f"  {'on robots':<13} {note}" for note in robot_notes(config, parts.model.spec)]
    rows += [f"  {'warning':<13} {warning}" for warning in plan_warnings(config, parts, trainer)]
    return "\n".join(rows)


def batch_line(loader: Loader, config: TrainConfig) -> str:
    """Describe the sizes of a step, as `64 = 16 a micro-batch x 2 summed x 2 ranks`."""
    total, ranks = loader.global_batch_size, f"{loader.world_size} rank" + "s" * (loader.world_size > 1)
    is_even = loader.batch_size * loader.accumulation * loader.world_size == total
    size = f"{loader.batch_size}" if is_even else f"{loader.batch_size} or {loader.batch_size - 1}"
    fits_one = config.train.accumulation > 1 and config.data.batch_size != total  # see `batch_warnings`
    others = "" if config.data.step_size is None or fits_one else f"; {total} on any number of ranks that divides it"
    return f"{total} = {size} a micro-batch x {loader.accumulation} summed x {ranks}{others}"


def _and_best(config: TrainConfig) -> str:
    """When else a checkpoint is saved."""
    if not config.evaluate:
        return "and at the end"
    return f"at the end, and at a new best of {config.train.monitor.metric}"


def _tuned(optimizer: AdamW) -> str:
    """See `tuned_parts`; empty where no part has settings of its own."""
    if not any(group["part"] for group in optimizer.param_groups):
        return ""
    from dp_prior.training.tuned_parts import tuned_parts

    return tuned_parts(optimizer.param_groups, optimizer.replicas.size)
