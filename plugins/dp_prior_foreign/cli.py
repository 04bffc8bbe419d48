"""Commands about other libraries: translate a configuration, import a checkpoint."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from dp_prior.cli.command import Command
from dp_prior.cli.options import PATH, FiniteRange, modules_option
from dp_prior.cli.output import echo
from dp_prior_foreign.pairs import new_names


@click.command(
    cls=Command,
    context_settings={"ignore_unknown_options": True},
    section="Share",
    example="dp-prior translate --out mine.json lerobot-train --policy.type=diffusion ...",
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE | FLAGS")
@click.option(
    "--from",
    "library",
    type=click.Choice(
        ["diffusion_policy", "lerobot", "openpi", "dalle2", "improved_diffusion", "denoising_diffusion", "rin"]
    ),
    help="Whose configuration it is; by default by its settings.",
)
@click.option("--out", type=PATH, help="File to write; by default the configuration is printed.")
def translate(words: tuple[str, ...], library: str | None, out: Path | None) -> None:
    """Translate a configuration of another library, with a line for each setting (docs/coming_from.md).

    FILE is YAML, as Hydra composes and saves, JSON, or a text with the flags of a command line; NAME=VALUE and --NAME
    VALUE behind FILE override its settings. FLAGS alone need no file; the program before them may stay.
    """
    from dp_prior.files.durable import write_new
    from dp_prior_foreign import translated

    source_library, translation = translated.translate_settings(words, library)
    for line in translated.report(source_library, translation):
        echo(line, err=out is None)
    if out is None:
        echo(translated.text(translation).rstrip("\n"), whole=True)
        return
    write_new(out, translated.text(translation))
    echo(f"wrote {out}\nnext\n  dp-prior train {shlex.quote(str(out))} --check")


@click.command(
    "import",
    cls=Command,
    section="Share",
    example="dp-prior import lerobot/diffusion_pusht --out runs/published",
)
@click.argument("source")
@click.option("--out", required=True, type=PATH, help="Run directory to write; must be empty.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["lerobot", "diffusion_policy", "improved_diffusion", "dalle2"]),
    help="By default what the files are.",
)
@click.option("--rename", multiple=True, metavar="THEIRS=OURS", help="Name an observation otherwise; repeatable.")
def import_published(source: str, out: Path, layout: str | None, rename: tuple[str, ...]) -> None:
    """Convert a policy of LeRobot (a directory, or user/name on the Hub) or of Diffusion Policy, images of
    improved-diffusion or a prior of DALLE2-pytorch to a run (docs/import.md)."""
    from dp_prior_foreign import imported

    echo(imported.import_published(source, out, layout, new_names(rename)))


@click.command(cls=Command, section="Data", example="dp-prior convert recordings mine --to lerobot --fps 10")
@modules_option
@click.argument("source", type=PATH)
@click.argument("dest", type=PATH)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TYPE",
    help="Format to write: zarr, lerobot, robomimic, npz, or one of your own.",
)
@click.option("--from", "kind", help="Type of SOURCE, as in data.episodes; by default what its files are.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of data.episodes for SOURCE.")
@click.option("--rename", "renames", multiple=True, metavar="THEIRS=OURS", help="Name a key otherwise; repeatable.")
@click.option("--leave-out", "left_out", multiple=True, metavar="KEY", help="Do not convert this key; repeatable.")
@click.option("--fps", type=FiniteRange(min=0, min_open=True), help="Control steps per second of SOURCE.")
@click.option("--stride", default=1, type=click.IntRange(min=1), help="Keep every Nth row, which divides the rate.")
@click.option(
    "--episodes", metavar="LIST", help="Only these: numbers, ranges and names of parts, such as 0-9,14,train."
)
@click.option("--without", metavar="LIST", help="Not these episodes: as --episodes.")
@click.option("--where", multiple=True, metavar="KEY=VALUE", help="Only episodes that end with this value; repeatable.")
@click.option("--salvage", is_flag=True, help="Convert what is intact of a LeRobot set, or of bags, cut off.")
@click.option("--pictures", is_flag=True, help="LeRobot: keep every pixel as PNG, instead of videos.")
@click.option("--robot-type", metavar="NAME", help="LeRobot's name of the robot; by default as SOURCE says.")
def convert(
    source: Path,
    dest: Path,
    target: str,
    renames: tuple[str, ...],
    episodes: str | None,
    without: str | None,
    where: tuple[str, ...],
    **how: Any,
) -> None:
    """Convert a data set of any readable format to Diffusion Policy's zarr, LeRobot 3.0, robomimic's HDF5 or npz
    (docs/data.md)."""
    from dp_prior_foreign import convert as conversion
    from dp_prior_foreign.chosen_episodes import choice_of

    names = new_names(renames)
    choice = choice_of(episodes, without, where)
    echo(conversion.convert(source, dest, target, renames=names, choice=choice, **how))
