"""Experiments: sweep settings, compare policies, score them blindly, improve one by an expert."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from dp_prior.cli.command import ResumableCommand, import_modules
from dp_prior.cli.options import (
    PATH,
    ConfigurationFile,
    FiniteRange,
    check_spelling,
    configuration,
    late_modules_option,
    modules_option,
    overrides_option,
    refuse_given,
)
from dp_prior.cli.output import echo, say
from dp_prior_lab.options import error_option, range_option

if TYPE_CHECKING:
    from dp_prior_lab.sweep import Trial


@click.command(
    cls=ResumableCommand,
    section="Train and measure",
    example="dp-prior sweep mine.json --vary train.lr.peak=1e-4,1e-3 --seeds 3",
)
@late_modules_option
@configuration()
@click.option("--vary", "varied", multiple=True, metavar="KEY.KEY=VALUE,VALUE", help="Values to try; repeatable.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="Runs of each, with own seeds.")
@overrides_option
@click.option("--print", "only_print", is_flag=True, help="Print a command for each run, for a scheduler; run nothing.")
@click.option("--slurm-array", type=PATH, help="Write an array script for sbatch, a task for each run; run nothing.")
@click.option("--html", type=PATH, help="Write a page that compares the runs at the end.")
def sweep(
    config_file: Path,
    varied: tuple[str, ...],
    seeds: int,
    overrides: tuple[str, ...],
    only_print: bool,
    slurm_array: Path | None,
    html: Path | None,
    modules: tuple[str, ...],
) -> None:
    """Train every combination of settings, one run after another; after a stop the same command continues."""
    if not modules:
        from dp_prior_lab.varied import overrides_of

        check_spelling(config_file, (*overrides, *overrides_of(varied)))
    import_modules(modules)
    from dp_prior.run.configurations import find_configuration
    from dp_prior_lab.sweep import run_trials, trials

    planned = trials(find_configuration(config_file), varied, seeds, overrides)
    if only_print or slurm_array is not None:
        why = "only for runs, and --print and --slurm-array run nothing"
        refuse_given(["html"], f"{why}; `dp-prior report` makes their page later")
    if html is not None:
        from dp_prior_studio.pages.page import check_page_place

        check_page_place(html)
    if slurm_array is not None:
        refuse_given(["only_print"], "prints what --slurm-array writes into a file; name one of both")
        write_array_script(slurm_array, planned, modules)
        return
    if only_print:
        echo("\n".join(trial.command(modules) for trial in planned), whole=True)
        return
    is_main = os.environ.get("RANK", "0") == "0"  # of ranks that a launcher starts
    code = run_trials(planned, say, is_main)
    if not is_main:
        sys.exit(0)  # a launcher ends all ranks at another code, and the main one still writes the page
    rank_trials(planned, html)
    sys.exit(code)


def write_array_script(path: Path, planned: Sequence[Trial], modules: Sequence[str]) -> None:
    """Write the script of `sweep --slurm-array`, and print the command that submits the trials.

    Raises:
        FileExistsError: the file exists.
    """
    from dp_prior.files.durable import write_new
    from dp_prior_lab.sweep import slurm_array

    write_new(path, slurm_array(planned, modules, Path.cwd()))
    echo(f"wrote {path}: {len(planned)} trials\nnext\n  sbatch {shlex.quote(str(path))}")


def rank_trials(planned: Sequence[Trial], html: Path | None) -> None:
    """Print the trials that began to train in the order of their scores, and write the page that compares them."""
    from dp_prior.checkpoints.documents import CONFIG
    from dp_prior_studio.pages.ranking import ranking
    from dp_prior_studio.pages.report import write_report
    from dp_prior_studio.pages.story import read_story

    directories = [trial.config.tracker.directory for trial in planned]
    runs = [directory for directory in directories if (directory / CONFIG).is_file()]
    for line in ranking([read_story(run) for run in runs]):
        echo(line)
    if html is not None:
        echo(f"wrote {write_report(runs, html)}" if runs else f"{html} is not written: no trial began to train")


@click.command(
    cls=ResumableCommand, section="Train and measure", example="dp-prior compare runs/a runs/b --out compared"
)
@modules_option
@click.argument("policies", nargs=-1, metavar="POLICY POLICY ... | OUTCOMES.csv")
@click.option("--out", type=PATH, help="Folder of outcomes, result and page; needed for policies.")
@error_option
@click.option("--most", default=200, show_default=True, type=click.IntRange(min=1), help="Starts at most.")
@click.option(
    "--round", "per_round", default=10, show_default=True, type=click.IntRange(min=1), help="Starts between two looks."
)
@click.option("--measure", type=click.Choice(["score", "success"]), default="score", show_default=True)
@click.option("--evaluator", help="Name of the rollouts; by default the only ones of `test`, or else of `evaluate`.")
@click.option("--config_file", type=ConfigurationFile(), help="Has the rollouts, in place of the policies' own.")
@range_option("Lowest and highest score of OUTCOMES.csv.")
@click.option("--plan", is_flag=True, help="Print how many starts tell which difference at which error; play nothing.")
@click.option("--trials", type=PATH, help="Write the outcomes as a CSV file that fieldtrial and robostats read.")
@click.option("--device", default="cpu", show_default=True, help="Where the policies run, for example cuda.")
def compare(
    policies: tuple[str, ...],
    plan: bool,
    trials: Path | None,
    out: Path | None,
    evaluator: str | None,
    config_file: Path | None,
    limits: tuple[float, float],
    device: str,
    **rules: Any,
) -> None:
    """Tell which of several policies is better, with as few rollouts as that takes (docs/comparing.md).

    After a stop the same command continues. OUTCOMES.csv holds what was noted elsewhere, for example beside a robot, in
    the columns start, policy and score, or is a table of trials of fieldtrial or robostats.
    """
    if plan:
        print_plan(policies, rules)
        return
    if not policies:
        raise click.UsageError("name two policies or more, or a CSV file of outcomes; --plan needs none")
    if trials is not None and trials.exists():
        raise FileExistsError(f"--trials {trials}: this file exists; name a new one")
    if trials is not None and len(policies) > 1 and rules["measure"] == "score":
        raise click.UsageError("--trials writes solved and not solved; add --measure success")
    if config_file is not None:
        check_spelling(config_file, ())
    is_table = len(policies) == 1
    if is_table:
        playing = ("most", "per_round", "measure", "evaluator", "config_file", "device")
        refuse_given(playing, "only for two policies or more, which play; a CSV file holds outcomes that are known")
    else:
        check_players(policies, out)
    from dp_prior.run.config import TrainConfig
    from dp_prior_lab.compare import Rules, compare_outcomes, compare_policies
    from dp_prior_lab.comparison_result import check_verdict_place
    from dp_prior_lab.outcomes import OUTCOMES
    from dp_prior_lab.players import Player

    if is_table:
        if out is not None:
            check_verdict_place(out, Path(policies[0]))
        result = compare_outcomes(Path(policies[0]), limits, rules["error"])
    else:
        configuration = None if config_file is None else TrainConfig.from_json_path(config_file)
        players = [Player(policy, evaluator, configuration, device) for policy in policies]
        result = compare_policies(players, Rules(**rules), out, say)
    echo("\n".join(result.lines()))
    if out is not None:
        for path in result.write(out):
            echo(f"wrote {path}")
    if trials is not None:
        copy_outcomes(Path(policies[0]) if is_table else out / OUTCOMES, trials)


def check_players(policies: Sequence[str], out: Path | None) -> None:
    """Check the arguments of `compare` for policies that play.

    Raises:
        click.UsageError: `--out` is missing, `--range` is set, a policy is named twice, or a file is no policy.
    """
    refuse_given(["limits"], "only for OUTCOMES.csv; policies are scored by their rollouts, whose range is known")
    if out is None:
        raise click.UsageError("--out names the folder for the outcomes, from which a stopped comparison continues")
    if len(set(policies)) < len(policies):
        raise click.UsageError("a policy is named twice; compare different ones")
    tables = [policy for policy in policies if policy.endswith(".csv") or Path(policy).is_file()]
    if tables:
        usage = "two names or more are checkpoints, runs or exports; a CSV file of outcomes stands alone"
        raise click.UsageError(f"{tables[0]} is no policy: {usage}, with all policies in its column policy")


def copy_outcomes(table: Path, trials: Path) -> None:
    """Write the outcomes of a table as `compare --trials` does."""
    from dp_prior_lab.outcomes import Outcomes
    from dp_prior_lab.trial_tables import write_trials

    write_trials(trials, Outcomes.read(table, (-math.inf, math.inf)).rows.values())
    echo(f"wrote {trials}")


def print_plan(policies: tuple[str, ...], rules: dict[str, Any]) -> None:
    """Print the table of `compare --plan`.

    Raises:
        click.UsageError: policies are named, or an option that has no effect on the table.
    """
    from dp_prior_lab.comparison_plan import ERRORS, MOST_STARTS, plan_lines

    if policies:
        raise click.UsageError(f"--plan compares no policies, but {policies[0]!r} is named; leave one of these out")
    others = ("out", "trials", "measure", "evaluator", "config_file", "limits", "device")
    refuse_given(others, "not for --plan, which plays nothing")
    source = click.get_current_context().get_parameter_source
    is_stated = {name: source(name) is not ParameterSource.DEFAULT for name in ("error", "most")}
    errors = (rules["error"],) if is_stated["error"] else ERRORS
    for line in plan_lines(errors, rules["most"] if is_stated["most"] else MOST_STARTS, rules["per_round"]):
        say(line)


_PLAYING = ("lost", "error", "first_seed", "max_rounds", "losses", "points", "evaluator", "config_file", "device")
"""Parameters of `improve` for a policy that plays."""


@click.command(
    cls=ResumableCommand,
    context_settings={"show_default": True},
    section="Train and measure",
    example="dp-prior improve runs/mine --out improved",
)
@modules_option
@click.argument("run")
@click.option("--out", required=True, type=PATH, help="Folder of the rounds, or of the one run.")
@click.option(
    "--corrections",
    multiple=True,
    metavar="DATA",
    help="Recorded rollouts in which a person took over, a path or user/name: one run on these. Repeatable.",
)
@click.option(
    "--lost", default=0.01, type=FiniteRange(0, 1, min_open=True), help="Stop below this share of lost starts."
)
@error_option
@click.option("--seeds", "first_seed", default=1_000_000, type=click.IntRange(min=0), help="Seed of the first start.")
@click.option("--rounds", "max_rounds", default=3, type=click.IntRange(min=1), help="Trainings at most.")
@click.option("--losses", default=50, type=click.IntRange(min=1), help="Lost starts to ask about in a round.")
@click.option("--points", default=3, type=click.IntRange(min=1), help="Take-overs of the expert in a lost episode.")
@click.option("--samples", default=200_000, type=click.IntRange(min=1), help="Samples to train on in a round.")
@click.option(
    "--weight", default=0.25, type=FiniteRange(0, min_open=True), help="Of a round's episodes; first data: 1."
)
@click.option("--evaluator", help="Name of the rollouts; by default the only ones of `test`, or else of `evaluate`.")
@click.option("--config_file", type=ConfigurationFile(), help="Has the rollouts, in place of the run's own.")
@click.option("--device", default="cpu", help="Where the policy plays, for example cuda.")
@overrides_option
def improve(
    run: str,
    out: Path,
    corrections: tuple[str, ...],
    max_rounds: int,
    evaluator: str | None,
    config_file: Path | None,
    device: str,
    **aim: object,
) -> None:
    """Let an expert show what to do where a policy loses, and train on, until few starts are lost (docs/improving.md).

    After a stop the same command continues; a higher --rounds adds rounds.
    """
    if config_file is not None:
        check_spelling(config_file, ())
    from dp_prior.run.config import TrainConfig
    from dp_prior_lab.corrected_rollouts import learn_corrections
    from dp_prior_lab.improve import Aim, Improvement

    if corrections:
        refuse_given(_PLAYING, "only without --corrections; with these a person has played already")
        settings = {key: aim[key] for key in ("weight", "samples", "overrides")}
        outcome = learn_corrections(run, corrections, out, **settings, report=say)
        exit_if_stopped(outcome.status == "stopped")
        echo(f"policy {outcome.best}")
        return
    configuration = None if config_file is None else TrainConfig.from_json_path(config_file)
    goal = Aim(**aim)
    improvement = Improvement(run, goal, out, say, evaluator=evaluator, configuration=configuration, device=device)
    rounds = improvement.rounds(max_rounds)
    exit_if_stopped(improvement.is_stopped)
    last = rounds[-1]
    is_reached = goal.is_reached(last.losses)
    verdict = f"fewer than {goal.lost:.2%} of the starts are lost" if is_reached else "go on with more --rounds"
    echo(f"{verdict}: {last.losses}\npolicy {last.policy}")


def exit_if_stopped(is_stopped: bool) -> None:
    """End a command that was asked to stop, with the exit code that makes schedulers repeat it."""
    from dp_prior.run.exit_file import STOPPED

    if is_stopped:
        echo("stopped; the same command goes on", err=True)
        sys.exit(STOPPED)
