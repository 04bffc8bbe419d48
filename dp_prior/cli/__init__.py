"""The commands: the only modules that read arguments, print, and turn errors into exit codes."""

from __future__ import annotations

import os

import click

from dp_prior.cli.checkpoints import checkpoints
from dp_prior.cli.command import Commands
from dp_prior.cli.data import (
    align_demonstrations,
    cache,
    convert,
    embed,
    embed_demonstrations,
    inspect,
    make_demonstrations,
    make_goal_demonstrations,
)
from dp_prior.cli.models import average, export, import_policy, likelihood, sample, serve
from dp_prior.cli.runs import evaluate, push, report, schema, sweep, train, watch

__all__ = ["main", "train"]

# torch, which is not loaded yet, starts a thread for each core. By default one that waits for the others spins for
# milliseconds first; where another process takes one of the cores, that makes a training step many times longer
# (python -m benchmarks waiting). GNU OpenMP reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@click.group(cls=Commands)
@click.version_option(package_name="dp_prior")
def main() -> None:
    """Train diffusion policies and act with them."""


for _command in (
    *(train, sweep, evaluate, report, watch, push, schema, checkpoints),
    *(inspect, cache, convert, embed, make_demonstrations, make_goal_demonstrations, align_demonstrations),
    embed_demonstrations,
    *(sample, likelihood, serve, average, export, import_policy),
):
    main.add_command(_command)
main.add_command(evaluate, "eval")
