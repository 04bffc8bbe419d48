"""`dp-prior try`: from a folder of recordings to a policy that was judged, in one command."""

from __future__ import annotations

import shlex
import signal
import sys
import time
from pathlib import Path

import click

from dp_prior.cli.command import ResumableCommand
from dp_prior.cli.options import PATH, FiniteRange, modules_option
from dp_prior.cli.output import say

STOPPED = 75
"""Exit code of an attempt that was stopped (docs/processes.md)."""


@click.command("try", cls=ResumableCommand, section="Data", example="dp-prior try recordings --minutes 10")
@modules_option
@click.argument("place", metavar="DATA")
@click.option(
    "--minutes",
    default=10.0,
    show_default=True,
    type=FiniteRange(min=0, min_open=True),
    help="Time limit of the whole command.",
)
@click.option("--out", type=PATH, help="Folder of everything that is written; by default tried/NAME.")
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.KEY=VALUE",
    help="Name the action, such as data.action.key=command. Repeatable.",
)
def try_data(place: str, minutes: float, out: Path | None, overrides: tuple[str, ...]) -> None:
    """Inspect a data set, train on it for some minutes, and judge the policy (docs/own_data.md). The same command goes
    on where it was stopped. Exit code 65 if the data cannot be trained on."""
    begun = time.monotonic()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # outside of the training, which ends after its step
    from dp_prior.files.regular_files import expanded
    from dp_prior_studio.attempt.attempt import Attempt
    from dp_prior_studio.inspection.inspect import short_name

    if out is None:
        out = Path("tried") / (short_name(place) or short_name(str(expanded(place).resolve())) or "data")
    context = click.get_current_context()
    options = [f"--set={override}" for override in overrides]
    options += [f"--import={module}" for module in context.params.get("imported", ())]
    repeat = shlex.join(["dp-prior", "try", place, "--out", str(out), *options])
    try:
        outcome = Attempt(place, out, 60 * minutes, say, begun).make(overrides)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; what was written stays, and this goes on:\n  {repeat}") from None
    if outcome.status == "stopped":
        progress = f"{outcome.samples_seen:,} samples are trained and saved"
        say(f"stopped on {outcome.stopped_by}: {progress}; this goes on:\n  {repeat}")
        sys.exit(STOPPED)
