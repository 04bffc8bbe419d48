"""`dp-prior train --check`: everything that the run does is tried once, and the plan printed."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from dp_prior.cli.output import say
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.run.check import check
from dp_prior.run.config import TrainConfig
from dp_prior.run.exit_file import UNAVAILABLE
from dp_prior.run.start import Resume


def show_plan(config: TrainConfig, resume: Resume, allow_changes: Iterable[str], repeat: str) -> None:
    """Try the run on every rank and print its plan; ends the process if a place or an account will not work.

    Args:
        resume: see `Run.run`.
        allow_changes: see `Run.run`.
        repeat: the command that trains, which the last lines name; empty if the launcher's command is unknown.
    """
    ranks = Ranks(make_accelerator(config.train.precision, config.train.dist_timeout))
    plan, has_problems = check(config, ranks, say, allow_changes, resume)
    if ranks.is_main_process:
        once = f" --resume={resume}" if resume != "auto" else ""
        say(f"{plan}\nnext\n  {repeat}{once}" if repeat else plan)
    ranks.end()
    if has_problems:
        sys.exit(UNAVAILABLE)
