"""`dp-prior checkpoints`: list, verify, prune, repair and upload the checkpoints of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dp_prior.cli.command import Commands, ResumableCommand, unlisted
from dp_prior.cli.options import PATH, FiniteRange, modules_option
from dp_prior.cli.output import echo
from dp_prior_lab.model_commands import average, likelihood


@click.group(cls=Commands, epilog="\b\nExample:\n  dp-prior checkpoints verify runs/mine")
def checkpoints() -> None:
    """List, verify, prune, repair, average, measure and upload the checkpoints of a run."""


for _command in (average, likelihood):
    checkpoints.add_command(_command)
average_alone, likelihood_alone = unlisted(average), unlisted(likelihood)


@checkpoints.command(
    cls=ResumableCommand, section="Share", example="dp-prior checkpoints push runs/mine --repo me/mine"
)
@modules_option
@click.argument("run", type=PATH)
@click.option("--repo", help="First queue the best checkpoint for this Hugging Face Hub repository, user/name.")
@click.option(
    "--wait", "limit_s", default=3600.0, show_default=True, type=FiniteRange(min=0), help="Seconds to keep trying."
)
def push(run: Path, repo: str | None, limit_s: float) -> None:
    """Upload the checkpoints in the outbox of a run."""
    from dp_prior.run.exit_file import UNAVAILABLE
    from dp_prior_lab.push import push_run

    missing = push_run(run, repo, limit_s, report=echo)
    if missing:
        sys.exit(UNAVAILABLE)


@checkpoints.command("ls", example="dp-prior checkpoints ls runs/mine")
@click.argument("run", type=PATH)
def list_checkpoints(run: Path) -> None:
    """List the checkpoints, newest first."""
    _show_checkpoints(run, compare_hashes=False)


@checkpoints.command("verify", example="dp-prior checkpoints verify runs/mine")
@click.argument("run", type=PATH)
def verify_checkpoints(run: Path) -> None:
    """Compare every byte with its hash; changes nothing. Exit code 65 if something is damaged."""
    from dp_prior.run.exit_file import BAD_DATA

    damaged = _show_checkpoints(run, compare_hashes=True)
    echo("not compared: the data (data.verify), checkpoints that wait in outbox/ (hashed when sent), copies elsewhere")
    sys.exit(BAD_DATA if damaged else 0)


@checkpoints.command("prune", example="dp-prior checkpoints prune runs/mine --dry-run")
@click.argument("run", type=PATH)
@click.option("--keep-latest", type=click.IntRange(min=2), help="Instead of checkpoints.keep_latest of the run.")
@click.option("--keep-best", type=click.IntRange(min=0), help="Instead of checkpoints.keep_best of the run.")
@click.option("--keep-every", type=click.IntRange(min=1), help="Instead of checkpoints.keep_every of the run.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, delete nothing.")
def prune_checkpoints(run: Path, dry_run: bool, **keep: int | None) -> None:
    """Delete the checkpoints that retention does not keep. Damaged and quarantined ones stay."""
    from dp_prior_lab.upkeep import store_of, superfluous

    store = store_of(run, **{name: value for name, value in keep.items() if value is not None})
    if dry_run:
        gone = superfluous(store)
    else:
        with store.lock():
            gone = store.prune()
    verb = "would delete" if dry_run else "deleted"
    echo("\n".join([f"{verb} {path}" for path in gone] or ["nothing to delete"]))


@checkpoints.command("repair", example="dp-prior checkpoints repair runs/mine")
@click.argument("run", type=PATH)
def repair_checkpoints(run: Path) -> None:
    """Set damaged checkpoints aside, restore checkpoints that verify again, delete leftovers, rewrite index.json."""
    from dp_prior_lab.upkeep import repair, store_of

    store = store_of(run)
    with store.lock():
        echo("\n".join(repair(store)))


def _show_checkpoints(run: Path, *, compare_hashes: bool) -> int:
    """Print a line for each checkpoint; returns how many are damaged and not yet set aside."""
    from dp_prior_lab.upkeep import take_stock

    damaged = 0
    for entry in take_stock(run, compare_hashes=compare_hashes):
        damaged += entry.kind == "damaged"
        line = f"{entry.path.name:<28} {entry.kind:<11}"
        if entry.manifest is not None:
            size = sum(entry.size for entry in entry.manifest.files.values()) / 1e6
            line += f"{entry.manifest.samples_seen:>14,} samples {size:>10,.1f} MB  {entry.manifest.saved_at}"
            if entry.manifest.value is not None:
                line += f"  {entry.manifest.monitor} {entry.manifest.value:.6g}"
        echo("  ".join(filter(None, [line, " ".join(entry.roles), entry.remark])))
    return damaged
