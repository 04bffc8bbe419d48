"""The commands: the only modules that read arguments, print, and turn errors into exit codes."""

from __future__ import annotations

import os
import sys

from dp_prior.cli.interpreter import interpreter_fault

if _fault := interpreter_fault():
    sys.stderr.write(f"error: {_fault}\n")
    sys.exit(64)  # as for any missing package; docs/processes.md

import click

from dp_prior.cli.checkpoints import checkpoints
from dp_prior.cli.command import Commands
from dp_prior.cli.configurations import configs, schema, translate
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
from dp_prior.cli.export import export
from dp_prior.cli.models import average, import_published, likelihood, sample
from dp_prior.cli.runs import compare, evaluate, improve, push, report, sweep, train, watch
from dp_prior.cli.serving import serve, trial

__all__ = ["main", "train"]

# A waiting thread of GNU OpenMP spins 300,000 times before sleeping, and so keeps its core from threads with work. With
# 1,000 spins a step of the main job takes 0.63 of the time while another process uses one of two cores, and the same
# time on idle cores (python -m benchmarks waiting --widths 32,64,128). Torch, loaded later, reads the variable.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder prints errors alone, not 22 lines about each video


@click.group(cls=Commands)
@click.version_option(package_name="dp_prior")
def main() -> None:
    """Train diffusion policies and act with them."""


for _command in (
    *(train, sweep, evaluate, compare, improve, trial, report, watch, push, schema, configs, translate, checkpoints),
    *(inspect, cache, convert, embed, make_demonstrations, make_goal_demonstrations, align_demonstrations),
    embed_demonstrations,
    *(sample, likelihood, serve, average, export, import_published),
):
    main.add_command(_command)
main.add_command(evaluate, "eval")
