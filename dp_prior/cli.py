"""The commands. This is the only place that reads arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import click

EXIT_CONFIG = 64
EXIT_DATA = 65
EXIT_BUSY = 73
EXIT_UNSAVED = 74
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """User errors end with one clear message and their exit code, without a traceback."""
    from dp_prior.checkpoints.format import CheckpointError
    from dp_prior.checkpoints.lock import LockedError
    from dp_prior.config import ConfigError
    from dp_prior.data.errors import DataError
    from dp_prior.training.trainer import NotFiniteError

    codes = {
        ConfigError: EXIT_CONFIG,
        FileNotFoundError: EXIT_CONFIG,
        FileExistsError: EXIT_CONFIG,
        ImportError: EXIT_CONFIG,
        DataError: EXIT_DATA,
        NotFiniteError: EXIT_DATA,
        LockedError: EXIT_BUSY,
        CheckpointError: EXIT_UNSAVED,
        KeyboardInterrupt: EXIT_INTERRUPTED,
    }
    try:
        yield
    except tuple(codes) as error:
        code = next(code for kind, code in codes.items() if isinstance(error, kind))
        click.echo(f"error: {str(error) or 'interrupted'}", err=True)
        sys.exit(code)


@click.group()
@click.version_option(package_name="dp_prior")
def main() -> None:
    """Train diffusion policies and act with them."""


@main.command()
@click.option("--config_file", required=True, type=click.Path(path_type=Path), help="JSON file that describes the run.")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
@click.option("--check", is_flag=True, help="Build all, do each thing once in a temporary place, print the plan.")
@click.option("--resume", type=click.Choice(["auto", "never", "must"]), default="auto", show_default=True)
def train(config_file: Path, overrides: tuple[str, ...], check: bool, resume: str) -> None:
    """Train the policy that a JSON file describes; the same command again goes on where it stopped."""
    _quiet()
    with exit_codes():
        from dp_prior.experiment import Experiment, TrainConfig

        config = TrainConfig.from_json_path(config_file, overrides)
        experiment = Experiment(config, report=click.echo)
        if check:
            experiment.report(experiment.check())
            experiment.end()
            return
        outcome = experiment.run(resume)
        experiment.end()
        experiment.report(_farewell(outcome, config.task.type))
    if outcome.status == "stopped":
        sys.exit(EXIT_STOPPED)


@main.command()
@click.argument("checkpoint")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
def evaluate(checkpoint: str, overrides: tuple[str, ...]) -> None:
    """Measure a checkpoint, or the best one of a run, as its own run did, and compare with what is stored in it."""
    _quiet()
    with exit_codes():
        from dp_prior.experiment import evaluate_checkpoint

        for name, now, stored in evaluate_checkpoint(checkpoint, overrides):
            verdict = "" if stored is None else "  equal to" if now == stored else "  differs from"
            click.echo(f"{name:<40} {now:.6g}{verdict}{'' if stored is None else f' the stored {stored:.6g}'}")


@main.command("make-demonstrations")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The .npz file to write.")
@click.option("--episodes", default=200, show_default=True, help="Solved episodes to record.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first episode.")
@click.option("--workers", default=None, type=int, help="Processes, by default one per core; the result is the same.")
def make_demonstrations(out: Path, episodes: int, seed: int, workers: int | None) -> None:
    """Let the scripted expert solve Push-T and record it."""
    with exit_codes():
        from dp_prior.envs.pusht_demonstrations import write_demonstrations

        write_demonstrations(out, episodes, seed=seed, workers=workers)
    click.echo(f"wrote {episodes} episodes to {out}")


@main.command("embed-demonstrations")
@click.option("--episodes", required=True, type=click.Path(exists=True, path_type=Path), help="Push-T as .npz.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write.")
def embed_demonstrations(episodes: Path, out: Path) -> None:
    """Embed a picture of every frame of Push-T demonstrations, for policies that see embeddings."""
    with exit_codes():
        from dp_prior.envs.pusht_pictures import write_embeddings

        frames = write_embeddings(episodes, out)
    click.echo(f"wrote the embeddings of {frames} frames to {out}")


def _farewell(outcome, task: str) -> str:
    """How the run ended, the scores, where things are, and what to try next."""
    result, best = outcome.result(), outcome.best
    head = {
        "finished": "finished",
        "stopped": "stopped on request; the same command goes on from here",
        "complete": "already complete; nothing to do. A larger budget (--set train.samples=...) goes on from here",
    }[outcome.status]
    lines = [f"{head}: {outcome.progress.samples_seen:,} samples in {outcome.progress.global_step:,} steps"]
    if result is not None and outcome.status != "stopped":
        lines += [f"  {name:<40} {value:.4g}" for name, value in result["test"].items() if value is not None]
        lines += [f"  {name:<40} {path}" for name, path in result["media"].items()]
    lines.append(f"  {'run':<40} {outcome.directory}")
    if best is not None:
        lines.append(f"  {'best checkpoint':<40} {best}")
        lines.append("next")
        lines.append(f"  dp-prior evaluate {best}")
        lines.append(f"  python -c \"from dp_prior import load_{task}; print(load_{task}('{best}'))\"")
    return "\n".join([*lines, *(f"warning: {line}" for line in outcome.failures)])


def _quiet() -> None:
    """Warnings of our own are shown; the libraries' chatter below a warning is not."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)


main.add_command(evaluate, "eval")
