"""`dp-prior sample`: draws samples of any model into one file or folder."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from dp_prior.cli.command import StoppingCommand, asked_to_stop, import_modules
from dp_prior.cli.options import PATH, late_modules_option
from dp_prior.cli.output import echo, say
from dp_prior_lab.model_commands import guidance_option, weights_option


@click.command(
    cls=StoppingCommand, section="Train and measure", example="dp-prior sample runs/digits --n 64 --out drawn"
)
@late_modules_option
@click.argument("checkpoint")
@click.option("--n", required=True, type=click.IntRange(min=1), help="Number of samples.")
@click.option("--out", required=True, type=PATH, help="File NAME.npz, or for images a folder of PNG files.")
@click.option("--labels", help="Names or numbers of classes, with commas, in turn; by default drawn uniformly.")
@click.option(
    "--conditions",
    type=PATH,
    help=".npz with an array (m, ...) for each condition, or samples of another model, to enlarge.",
)
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    show_default="val",
    help="Part of the run's data that gives the conditions where --conditions does not.",
)
@weights_option
@guidance_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change task.sampler, or data.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(min=1), help="Drawn together.")
@click.option("--seed", default=0, show_default=True, help="Determines the noise, with the index of a sample.")
def sample(checkpoint: str, n: int, out: Path, labels: str | None, modules: tuple[str, ...], **options: object) -> None:
    """Draw samples of any model into one file or folder (docs/sampling.md), on any number of ranks. Stop at any time;
    the same command continues."""
    with asked_to_stop() as stop:
        import_modules(modules)
        from dp_prior.job.accelerator import make_accelerator
        from dp_prior.job.ranks import Ranks
        from dp_prior.job.stop import StoppedEarly
        from dp_prior.run.exit_file import STOPPED
        from dp_prior_lab.sample import Request, draw
        from dp_prior_lab.trained_model import TIMEOUT_S

        request = Request(n, out, labels=() if labels is None else tuple(labels.split(",")), **options)
        is_done = False
        with contextlib.suppress(StoppedEarly):  # while the ranks meet
            ranks = Ranks(make_accelerator("fp32", TIMEOUT_S, stop), stop)
            is_done = draw(checkpoint, request, ranks, say if ranks.is_main_process else lambda line: None)
            ranks.end()
    if not is_done:
        echo(f"stopped on {stop.reason or 'a signal to another rank'}; the same command goes on", err=True)
        sys.exit(STOPPED)
    if ranks.is_main_process:
        echo(f"wrote {n} samples to {out}")
