"""Commands that train, and that evaluate checkpoints."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dp_prior.cli.command import Command, StoppingCommand, asked_to_stop, exit_codes, import_modules
from dp_prior.cli.options import (
    PATH,
    check_spelling,
    configuration,
    late_modules_option,
    modules_option,
    overrides_option,
)
from dp_prior.cli.output import echo, optional_stdout, say
from dp_prior.files.entry_points import ask

if TYPE_CHECKING:
    from dp_prior.job.slurm import SlurmJob


@click.command(
    cls=StoppingCommand, section="Train and measure", example="dp-prior train mine.json --train.lr.peak=3e-4"
)
@late_modules_option
@configuration()
@overrides_option
@click.option("--check", is_flag=True, help="Try everything once in a temporary directory, print the plan.")
@click.option(
    "--resume",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    show_default=True,
    help="Resume if there is a checkpoint (auto), refuse to resume (never), or refuse to start without one (must).",
)
@click.option("--allow-change", multiple=True, metavar="KEY", help="Resume although this setting changed; repeatable.")
def train(
    config_file: Path,
    overrides: tuple[str, ...],
    check: bool,
    resume: str,
    allow_change: tuple[str, ...],
    modules: tuple[str, ...],
) -> None:
    """Train the model that CONFIG describes, a JSON file or a name that `dp-prior configs` lists; the same command
    resumes a stopped run. `--train.lr.peak=3e-4` is short for `--set train.lr.peak=3e-4`."""
    with optional_stdout(), contextlib.ExitStack() as ends:
        if check:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        else:
            stop = ends.enter_context(asked_to_stop())
        ends.enter_context(exit_codes())
        if not modules:
            check_spelling(config_file, overrides)
        import_modules(modules)
        from dp_prior.cli.farewell import farewell
        from dp_prior.job.stop import LACK_OF_TIME, StoppedEarly
        from dp_prior.run.config import TrainConfig
        from dp_prior.run.exit_file import STOPPED
        from dp_prior.run.run import Run

        config = TrainConfig.from_json_path(config_file, overrides)
        if "WANDB_SWEEP_ID" in os.environ:
            overrides += ask("overrides_of_trial", config, overrides, os.environ) or ()
            config = TrainConfig.from_json_path(config_file, overrides)
        repeat = _repeating_command(config_file, overrides, modules, allow_change)
        if check:
            from dp_prior.cli.plan import show_plan

            show_plan(config, resume, allow_change, repeat)
            return
        job = _slurm_job()
        to_requeue = job if config.train.requeue else None
        try:
            run = Run(config, report=say, stop=stop)
            outcome = run.run(resume, None if job is None else job.end, allow_change)
        except StoppedEarly as early:
            if to_requeue is not None and early.reason in LACK_OF_TIME and os.environ.get("RANK", "0") == "0":
                say(to_requeue.requeue())
            raise
        run.parts.report(farewell(outcome, config, modules, repeat))
        if to_requeue is not None and outcome.wants_more_time and run.parts.ranks.is_main_process:
            say(to_requeue.requeue())
        run.parts.ranks.end()
    if outcome.status == "stopped":
        sys.exit(STOPPED)


def _repeating_command(
    config_file: Path, overrides: tuple[str, ...], modules: tuple[str, ...], allow_change: tuple[str, ...]
) -> str:
    """The command that starts this training again; empty if the launcher's command is unknown."""
    if "LOCAL_RANK" in os.environ:
        return ask("launching", os.environ) or ""
    options = [f"--set={override}" for override in overrides]
    options += [f"--import={module}" for module in modules]
    options += [f"--allow-change={key}" for key in allow_change]
    return shlex.join(["dp-prior", "train", str(config_file), *options])


def _slurm_job() -> SlurmJob | None:
    """The SLURM job of this process; None outside SLURM."""
    if "SLURM_JOB_ID" not in os.environ:
        return None
    from dp_prior.job.slurm import SlurmJob

    return SlurmJob.of(os.environ)


@click.command(cls=Command, section="Train and measure", example="dp-prior evaluate runs/mine --out evaluated")
@modules_option
@click.argument("checkpoint")
@overrides_option
@click.option("--out", type=PATH, help="Folder for reports, videos and pictures; must be empty.")
def evaluate(checkpoint: str, overrides: tuple[str, ...], out: Path | None) -> None:
    """Repeat the evaluations of a checkpoint, or of a run's best checkpoint, and compare with the stored numbers."""
    from dp_prior.run.evaluate import evaluate_checkpoint

    for name, now, stored in evaluate_checkpoint(checkpoint, overrides, out):
        if stored is None:
            verdict = ""
        elif now == stored:
            verdict = f"  equal to the stored {stored:.6g}"
        else:
            verdict = f"  differs from the stored {stored:.6g} by {abs(now - stored):.1g}"
        echo(f"{name:<40} {now:.6g}{verdict}")
