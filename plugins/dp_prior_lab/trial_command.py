"""`dp-prior trial`: a person at a robot scores policies without knowing which one acts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dp_prior.cli.command import ResumableCommand
from dp_prior.cli.options import PATH, FiniteRange, modules_option
from dp_prior.cli.output import echo, say
from dp_prior.files.printable import printable
from dp_prior_lab.options import error_option, range_option
from dp_prior_robot.serve_command import AnswerOptions, bound, merge_of, not_held_up, serving_options

if TYPE_CHECKING:
    from dp_prior_lab.trial_sheet import Sheet
    from dp_prior_robot.candidate import Candidate


LOG = "trial.log"
"""Holds warnings of policies, which the person at the robot should not see before the end."""


NOTICEABLE_S = 0.02
"""Difference of times to answer that a person at the robot may notice."""


@click.command(
    cls=ResumableCommand, section="Robot", example="dp-prior trial runs/a runs/b --out trials --stages reach,lift"
)
@modules_option
@click.argument("policies", nargs=-1, required=True, metavar="POLICY POLICY ...")
@click.option("--out", required=True, type=PATH, help="Folder of the trials, result and page.")
@error_option
@click.option("--most", "max_starts", default=50, show_default=True, type=click.IntRange(min=1), help="Starts at most.")
@range_option("Of scores.")
@click.option("--stages", default="", metavar="NAME,NAME,...", help="Stages that a trial may reach, in order.")
@click.option(
    "--answer-after",
    "least_s",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 10),
    help="Seconds from each request to its answer at least, so that no policy is known by its speed.",
)
@click.option("--device", default="cpu", show_default=True, help="Where the policies run, for example cuda.")
@serving_options
def trial(
    policies: tuple[str, ...],
    out: Path,
    error: float,
    max_starts: int,
    limits: tuple[float, float],
    stages: str,
    **serving: Any,
) -> None:
    """Score policies on a robot without knowing which one acts (docs/comparing.md).

    Serves the policies at one address, as `serve` does, each in its turn of a shuffled order, and asks for the outcome
    of every trial until the policies are told apart. After a stop the same command continues.
    """
    from dp_prior.run.exit_file import STOPPED
    from dp_prior_lab.comparison_result import ComparisonResult
    from dp_prior_lab.outcomes import OUTCOMES
    from dp_prior_lab.trial_sheet import TrialRules, opened_sheet
    from dp_prior_robot.candidate import Candidate

    if len(policies) < 2 or len(set(policies)) < len(policies):
        raise click.UsageError("a trial compares two policies or more, each named once")
    if sys.stdin is None:
        raise click.UsageError("standard input is closed, but a trial asks a person; run it in a terminal")
    rules = TrialRules(limits, error, max_starts, _stages(stages))
    candidates = {name: Candidate(name) for name in policies}
    try:
        with opened_sheet(list(candidates.values()), rules, out) as sheet:
            if sheet.journal.is_unblinded:
                say("this trial is over, and its policies are named; a new one needs another --out")
            else:
                _hold(sheet, candidates, out, **serving)
            sheet.outcomes().write(out / OUTCOMES)
    except (EOFError, KeyboardInterrupt):
        echo(f"\nstopped; every entry is kept in {out}, and the same command goes on", err=True)
        sys.exit(STOPPED)
    result = ComparisonResult(sheet.names, sheet.comparison(), max_starts)
    echo("\n".join(result.lines()))
    if void := sheet.void():
        echo(f"void trials, which were repeated: {', '.join(f'{count} of {name}' for name, count in void.items())}")
    for path in (out / OUTCOMES, *result.write(out)):
        echo(f"wrote {path}")
    if (out / LOG).is_file():
        echo(f"warnings of the policies, which were not shown meanwhile, are in {out / LOG}")


def _stages(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")] if text else []
    if len(set(names)) < len(names) or any(not name or name.isdecimal() for name in names):
        raise click.UsageError(f"--stages is {text!r}; expected different names with commas between, and no numbers")
    return tuple(names)


def _hold(
    sheet: Sheet,
    candidates: Mapping[str, Candidate],
    out: Path,
    *,
    least_s: float,
    device: str,
    host: str,
    port: int,
    token_file: Path | None,
    insecure: bool,
    **answers: Any,
) -> None:
    """Serve the policies and ask the person until they may be named."""
    from dp_prior_lab.trial import Dialogue
    from dp_prior_robot.listener import authority
    from dp_prior_robot.serving.background import serving
    from dp_prior_robot.serving.lineup import Lineup
    from dp_prior_robot.serving.policy_server import PolicyServer

    with bound(host, port, token_file, insecure) as (listener, token), _logged_to(out / LOG):
        policies = {name: candidates[name].load(device=device) for name in sheet.names}
        lineup = Lineup(policies, merge_of(answers["merge"]))
        settings = AnswerOptions(**answers).settings_for(lineup)
        took = lineup.warm_up(**settings)
        server = PolicyServer(lineup, name="trial", token=token, least_s=least_s, **settings)
        dialogue = Dialogue(sheet, lineup, server, _ask, say, out)
        server.on_lost = dialogue.lost
        sys.stdin.reconfigure(errors="replace")
        with not_held_up(), serving(server, listener):
            say(f"{len(policies)} policies take turns at ws://{authority(listener)}")
            if max(took) > max(least_s, min(took)) + NOTICEABLE_S:
                betrayal = f"answers take {min(took):.3f} to {max(took):.3f} s, which may betray the policy"
                say(f"{betrayal}; --answer-after {1.2 * max(took):.2g} hides this, and holds up the faster policy")
            dialogue.run()


def _ask(question: str) -> str:
    """The next line from the terminal, or from a pipe, which does not show its answers by itself."""
    answer = input(printable(question))
    if not sys.stdin.isatty():
        echo(answer)
    return answer


@contextlib.contextmanager
def _logged_to(path: Path) -> Iterator[None]:
    """Inside, log lines and warnings go to a file: they speak of one policy, and the person at the terminal reads."""
    import logging

    root, handler = logging.getLogger(), logging.FileHandler(path, encoding="utf-8", delay=True)
    before, root.handlers = root.handlers, [handler]
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.handlers = before
        handler.close()
