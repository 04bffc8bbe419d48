"""`dp-prior cache`: the camera frames of configurations, decoded ahead of training."""

from __future__ import annotations

from pathlib import Path

import click

from dp_prior.cli.command import ResumableCommand
from dp_prior.cli.options import (
    ConfigurationFile,
    check_spelling,
    modules_option,
    overrides_option,
)
from dp_prior.cli.output import echo


@click.command(cls=ResumableCommand, section="Data", example="dp-prior cache mine.json")
@modules_option
@click.argument("config_files", type=ConfigurationFile(), nargs=-1, required=True)
@overrides_option
@click.option("--stale", is_flag=True, help="Only list the caches beside theirs that no configuration given uses.")
@click.option("--remove-stale", is_flag=True, help="Delete those caches; build nothing.")
def cache(config_files: tuple[Path, ...], overrides: tuple[str, ...], stale: bool, remove_stale: bool) -> None:
    """Decode and resize the camera frames of configurations ahead of training. Stop and repeat it at any time."""
    for file in config_files:
        check_spelling(file, overrides)
    from dp_prior.run.config import TrainConfig
    from dp_prior_studio.unused_caches import unused_caches

    opened_data = (TrainConfig.from_json_path(file, overrides).open_data() for file in config_files)
    if not stale and not remove_stale:
        for data in opened_data:
            data.build_caches(echo)
            has_frames = bool(data.spec.fits or data.images)  # a set of images has frames, and no camera
            echo("all frames are cached" if has_frames else "the data have no camera, so there is nothing to cache")
        return
    directories = set().union(*(data.cache_directories() for data in opened_data))
    caches = unused_caches(directories)
    for unused in caches:
        if remove_stale:
            unused.remove()
        echo(f"{'removed' if remove_stale else 'not used'}  {unused}")
    echo(f"{len(caches)} caches, {sum(unused.n_bytes for unused in caches) / 1e9:.3f} GB")
