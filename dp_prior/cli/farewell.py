"""The last lines of the output of `train`: how the run ended, its scores and paths, and commands to try next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from dp_prior.files.json_text import readable_json
from dp_prior.run.config import TrainConfig
from dp_prior.run.outcome import Outcome
from dp_prior.run.scores import PAGE
from dp_prior.tracking.console import summaries


def farewell(outcome: Outcome, config: TrainConfig, modules: Sequence[str], repeat: str = "") -> str:
    """The lines, with warnings at their end.

    Args:
        modules: what `--import` named.
        repeat: the command that trains this run; empty if the launcher's command is unknown.
    """
    head = {
        "finished": "finished",
        "stopped": f"stopped on {outcome.stopped_by}; the same command resumes it",
        "complete": "already complete; nothing to do. To continue, raise the budget "
        f"(--set train.{config.train.unit}=...)",
    }[outcome.status]
    lines = [f"{head}: {outcome.progress.samples_seen:,} samples in {outcome.progress.global_step:,} steps"]
    lines += [f"  {name:<40} {value}" for name, value in [*_scores(outcome, config), *_places(outcome, config)]]
    commands = [repeat] * (outcome.status == "stopped" and bool(repeat))
    if outcome.best is not None:
        commands += map(shlex.join, _commands(outcome, config, modules))
    lines += ["next", *(f"  {command}" for command in commands)] if commands else []
    if outcome.diverged_at is not None:
        lines.append(f"warning: the training loss diverged at step {outcome.diverged_at:,}; see events.jsonl")
    return "\n".join([*lines, *(f"warning: {line}" for line in outcome.failures)])


def _scores(outcome: Outcome, config: TrainConfig) -> Iterator[tuple[str, str]]:
    """The scores of the best weights, the value that selected these, and films and pictures."""
    result = outcome.result()
    if result is None or outcome.status == "stopped":
        return
    yield from summaries({name: value for name, value in result["test"].items() if value is not None}).items()
    monitor, metrics = config.train.monitor.metric, result["best"].get("metrics", {})
    if outcome.is_measured and metrics.get(monitor) is not None:
        yield f"best {monitor}", f"{metrics[monitor]:.4g} at step {result['best']['step']:,}"
    yield from result["media"].items()


def _places(outcome: Outcome, config: TrainConfig) -> Iterator[tuple[str, Path | str]]:
    """The page, the run, the best checkpoint, and the newest one where a loss selected the best of a policy."""
    if (page := outcome.directory / PAGE).is_file():
        yield "page", page
    yield "run", outcome.directory
    if outcome.best is None:
        return
    yield outcome.label, outcome.best
    is_by_loss = config.task.kind == "policy" and config.train.monitor.metric.endswith("/loss")
    if outcome.is_measured and is_by_loss and (latest := outcome.latest) != outcome.best:
        remark = "a policy may go on improving while this loss rises, so try both"
        yield "newest checkpoint", f"{latest}; {remark}"


def _commands(outcome: Outcome, config: TrainConfig, modules: Sequence[str]) -> Iterator[list[str]]:
    """The next commands for the best checkpoint."""
    best, load, body = str(outcome.best), f"load_{config.task.kind}", ""
    if config.task.kind == "bodies":
        load, body = "load_policy", f", body={readable_json(next(iter(config.data.sets)))}"
    imports = [f"--import={module}" for module in modules]
    yield ["dp-prior", "evaluate", best, *imports]
    statements = "".join(f"import {module}; " for module in modules)
    yield ["python", "-c", f"{statements}from dp_prior import {load}; print({load}({readable_json(best)}{body}).spec)"]
    if config.task.kind == "policy":
        yield ["dp-prior", "serve", best, *imports]
        yield ["dp-prior", "export", best, f"{outcome.directory}_policy", *imports]
