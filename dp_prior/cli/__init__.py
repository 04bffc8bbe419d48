"""The commands: the only modules that read arguments, print, and turn errors into exit codes."""

from __future__ import annotations

import os
import sys

from dp_prior.cli.interpreter import interpreter_fault

if _fault := interpreter_fault():
    sys.stderr.write(f"error: {_fault}\n")
    sys.exit(64)  # as for any missing package; docs/processes.md

import click

from dp_prior.cli.installed import InstalledCommands
from dp_prior.cli.runs import train

__all__ = ["main", "train"]

# A waiting thread of GNU OpenMP spins 300,000 times before sleeping, and so keeps its core from threads with work. With
# 1,000 spins a step of the main job takes 0.63 of the time while another process uses one of two cores, and the same
# time on idle cores (python -m benchmarks waiting --widths 32,64,128). Torch, loaded later, reads the variable.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

if "WORLD_SIZE" in os.environ:  # a rank that loses another one says so in a line; torch would warn with C++ stacks
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

os.environ.setdefault("SVT_LOG", "1")  # the AV1 encoder prints errors alone, not 22 lines about each video


_COMMANDS = {
    "train": "dp_prior.cli.runs:train",
    "evaluate": "dp_prior.cli.runs:evaluate",
    "configs": "dp_prior.cli.configurations:configs",
}
_EARLIER = {  # spellings of earlier versions, which go on working and are not listed
    "eval": "dp_prior.cli.runs:evaluate",
    "push": "checkpoints push",
    "schema": "dp_prior.cli.configurations:schema",
}


@click.group(cls=InstalledCommands, places=_COMMANDS, hidden_places=_EARLIER)
@click.version_option(package_name="dp_prior")
def main() -> None:
    """Train diffusion policies and act with them."""
