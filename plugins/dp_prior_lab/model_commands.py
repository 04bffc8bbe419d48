"""Commands that measure and average a trained model."""

from __future__ import annotations

from pathlib import Path

import click

from dp_prior.cli.command import Command
from dp_prior.cli.options import PATH, modules_option
from dp_prior.cli.output import echo, say

weights_option = click.option("--weights", help="An average of train.ema, or `online`; by default the first average.")
guidance_option = click.option("--guidance-scale", type=float, help="Instead of the configured one.")


@click.command(cls=Command, example="dp-prior checkpoints likelihood runs/mine --split test")
@modules_option
@click.argument("checkpoint")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    default="val",
    show_default=True,
    help="Part of the run's data to measure on.",
)
@click.option("--max-samples", type=click.IntRange(min=1), help="At most this many, evenly spread; by default all.")
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(min=1), help="Measured together.")
@weights_option
@guidance_option
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change data, for example its path.")
@click.option("--seed", default=0, show_default=True, help="Of the fixed noise of each sample.")
def likelihood(checkpoint: str, **options: object) -> None:
    """Measure the bits per dimension of a model, and of simple baselines for comparison (docs/sampling.md)."""
    from dp_prior.job.accelerator import make_accelerator
    from dp_prior.job.ranks import Ranks
    from dp_prior_lab.stored_likelihood import measure_likelihood
    from dp_prior_lab.trained_model import TIMEOUT_S

    ranks = Ranks(make_accelerator("fp32", TIMEOUT_S))
    bits = measure_likelihood(checkpoint, ranks, say if ranks.is_main_process else lambda line: None, **options)
    ranks.end()
    if ranks.is_main_process:
        for name, value in bits.items():
            echo(f"{name:<16} {value:.6g}")


@click.command(cls=Command, example="dp-prior checkpoints average runs/mine --relative-width 0.07 --out wide")
@modules_option
@click.argument("run")
@click.option("--relative-width", required=True, type=float, help="Width of the average, as a fraction of the run.")
@click.option("--out", required=True, type=PATH, help="Directory to write.")
@click.option("--max-error", default=0.1, show_default=True, help="Refuse a larger relative error of the profile.")
def average(run: str, relative_width: float, out: Path, max_error: float) -> None:
    """Reconstruct an average of any width from the power-function averages in the checkpoints of a run: from all
    checkpoints, or up to RUN@step_00012000."""
    from dp_prior_lab.posthoc import reconstruct

    made = reconstruct(run, relative_width, out, max_error=max_error)
    echo(
        f"average of relative width {relative_width:g} at step {made.target.step:,} in {made.directory}, from "
        f"{made.n_averages} averages in {made.n_checkpoints} checkpoints; relative error of the profile "
        f"{made.error:.2g}"
    )
