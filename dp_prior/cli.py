"""The commands: the only module that reads arguments, prints, and turns errors into exit codes."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from dp_prior.redact import redact

if TYPE_CHECKING:
    from dp_prior.run.config import TrainConfig
    from dp_prior.run.run import Outcome


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """User errors end with one clear message and their exit code (docs/processes.md), without a traceback."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        from dp_prior.run.exit_file import FAILED, STOPPED, classify

        _, code = classify(error)
        if code == FAILED:
            raise
        click.echo(str(error) if code == STOPPED else f"error: {str(error) or 'interrupted'}", err=True)
        sys.exit(code)


class _Command(click.Command):
    """A command whose user errors end with their exit code."""

    def invoke(self, context: click.Context) -> object:
        _quiet()
        with exit_codes():
            return super().invoke(context)


class _Commands(click.Group):
    """A group of such commands."""

    command_class = _Command
    group_class = type  # groups inside it are like it


modules_option = click.option(
    "--import",
    "modules",
    multiple=True,
    envvar="DP_PRIOR_IMPORT",
    metavar="MODULE",
    help="Import a module with parts of your own first (docs/extending.md); repeatable.",
)


def import_modules(modules: tuple[str, ...]) -> None:
    """Import the modules that the user names, from the working directory too; no file can cause an import.

    Raises:
        ConfigError: one cannot be imported.
    """
    if modules:
        sys.path.append(os.getcwd())  # last, so that no file in it hides an installed module
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            from dp_prior.config import ConfigError

            places = [f"{frame.filename}, line {frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
            ours = (str(Path(__file__).parent), importlib.__file__, "<")
            where = next((f" ({place})" for place in reversed(places) if not place.startswith(ours)), "")
            problem = f"{type(error).__name__}: {error}{where}"
            if isinstance(error, ImportError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
                problem = f"there is no such module, installed or in {os.getcwd()}; expected a name such as my_parts"
            raise ConfigError(f"--import {name}", [problem]) from error


@click.group(cls=_Commands)
@click.version_option(package_name="dp_prior")
def main() -> None:
    """Train diffusion policies and act with them."""


@main.command()
@modules_option
@click.option("--config_file", required=True, type=click.Path(path_type=Path), help="JSON file that describes the run.")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
@click.option("--check", is_flag=True, help="Try everything once in a temporary directory, print the plan.")
@click.option(
    "--resume",
    type=click.Choice(["auto", "never", "must"]),
    default="auto",
    show_default=True,
    help="Resume if there is a checkpoint (auto), refuse to resume (never), or refuse to start without one (must).",
)
@click.option("--allow-change", multiple=True, metavar="KEY", help="Resume although this setting changed; repeatable.")
def train(
    config_file: Path,
    overrides: tuple[str, ...],
    check: bool,
    resume: str,
    allow_change: tuple[str, ...],
    modules: tuple[str, ...],
) -> None:
    """Train the model that a JSON file describes; the same command resumes a run that was stopped."""
    from dp_prior.job.signals import ECHO_S, LAUNCHER_ECHO_S, ignore_repeats_at_exit, stop_on_signal
    from dp_prior.job.stop import Stop

    with _optional_stdout(), contextlib.ExitStack() as ends:
        stop, is_launched = Stop(), "LOCAL_RANK" in os.environ
        if check:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        else:  # before the imports below, which take seconds
            ends.enter_context(stop_on_signal(stop, LAUNCHER_ECHO_S if is_launched else ECHO_S))
            ignore_repeats_at_exit()
        ends.enter_context(exit_codes())
        from dp_prior.job.launcher import end_with_parent
        from dp_prior.job.ranks import Ranks, make_accelerator
        from dp_prior.job.slurm import SlurmJob
        from dp_prior.run.check import check as check_run
        from dp_prior.run.config import TrainConfig
        from dp_prior.run.exit_file import STOPPED
        from dp_prior.run.run import Run

        import_modules(modules)
        config = TrainConfig.from_json_path(config_file, overrides)
        if check:
            ranks = Ranks(make_accelerator(config.train.precision, config.train.dist_timeout))
            found = check_run(config, ranks, _print, allow_change)
            if ranks.is_main_process:
                _print(found)
            ranks.end()
            return
        if is_launched:
            ends.enter_context(end_with_parent(stop))
        job = SlurmJob.of(os.environ)
        run = Run(config, report=_print, stop=stop)
        outcome = run.run(resume, None if job is None else job.end, allow_change)
        run.parts.report(_farewell(outcome, config))
        is_main = run.parts.ranks.is_main_process
        if is_main and job is not None and config.train.requeue and outcome.wants_more_time:
            _print(job.requeue())
        run.parts.ranks.end()
    if outcome.status == "stopped":
        sys.exit(STOPPED)


@main.command()
@modules_option
@click.argument("config_file", type=click.Path(path_type=Path))
@click.option("--vary", "varied", multiple=True, metavar="KEY.KEY=VALUE,VALUE", help="Values to try; repeatable.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="Runs of each, with own seeds.")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
@click.option("--print", "only_print", is_flag=True, help="Print a command for each run, for a scheduler; run nothing.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page that compares the runs at the end.")
def sweep(
    config_file: Path,
    varied: tuple[str, ...],
    seeds: int,
    overrides: tuple[str, ...],
    only_print: bool,
    html: Path | None,
    modules: tuple[str, ...],
) -> None:
    """Train every combination of settings, one run after another; the same command goes on where it was stopped."""
    import_modules(modules)
    from dp_prior.pages.report import write_report
    from dp_prior.run.config import run_directory
    from dp_prior.run.sweep import run_trials, trials

    found = trials(config_file, varied, seeds, overrides)
    if only_print:
        click.echo("\n".join(trial.command(modules) for trial in found))
        return
    code = run_trials(found, _print)
    runs = [path for trial in found if (path := run_directory(trial.config)).is_dir()]
    if html is not None:
        click.echo(f"wrote {write_report(runs, html)}")
    sys.exit(code)


@main.command()
@modules_option
@click.argument("checkpoint")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for reports, videos and pictures; must be empty.")
def evaluate(checkpoint: str, overrides: tuple[str, ...], out: Path | None, modules: tuple[str, ...]) -> None:
    """Repeat the evaluations of a checkpoint, or of the best one of a run, and compare with the stored numbers."""
    import_modules(modules)
    from dp_prior.run.commands import evaluate_checkpoint

    for name, now, stored in evaluate_checkpoint(checkpoint, overrides, out):
        verdict = ""
        if stored is not None:
            verdict = f"  {'equal to' if now == stored else 'differs from'} the stored {stored:.6g}"
            verdict += "" if now == stored else f" by {abs(now - stored):.1g}"
        click.echo(f"{name:<40} {now:.6g}{verdict}")


@main.command()
@modules_option
@click.argument("config_files", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
@click.option("--stale", is_flag=True, help="Only list the caches beside theirs that no configuration given uses.")
@click.option("--remove-stale", is_flag=True, help="Delete those caches; build nothing.")
def cache(
    config_files: tuple[Path, ...],
    overrides: tuple[str, ...],
    stale: bool,
    remove_stale: bool,
    modules: tuple[str, ...],
) -> None:
    """Decode and resize the camera frames of configurations ahead of training. Stop and repeat it at any time."""
    import_modules(modules)
    from dp_prior.run.commands import build_frame_caches, unused_frame_caches

    if not stale and not remove_stale:
        for config_file in config_files:
            build_frame_caches(config_file, overrides, report=click.echo)
        return
    found = unused_frame_caches(config_files, overrides)
    for unused in found:
        if remove_stale:
            unused.remove()
        click.echo(f"{'removed' if remove_stale else 'not used'}  {unused}")
    click.echo(f"{len(found)} caches, {sum(unused.n_bytes for unused in found) / 1e9:.3f} GB")


@main.command()
@modules_option
def schema(modules: tuple[str, ...]) -> None:
    """Print the JSON Schema of a configuration, with the parts of imported and installed packages, for editors."""
    import_modules(modules)
    import json

    from dp_prior.run.config import TrainConfig
    from dp_prior.schema import json_schema

    click.echo(json.dumps(json_schema(TrainConfig), indent=2))


@main.group()
def checkpoints() -> None:
    """List, verify, prune and repair the checkpoints of a run."""


@checkpoints.command("ls")
@click.argument("run", type=click.Path(path_type=Path))
def list_checkpoints(run: Path) -> None:
    """List the checkpoints, newest first."""
    _show_checkpoints(run, compare_hashes=False)


@checkpoints.command("verify")
@click.argument("run", type=click.Path(path_type=Path))
def verify_checkpoints(run: Path) -> None:
    """Compare every byte with its hash; changes nothing. Exit code 65 if something is damaged."""
    from dp_prior.run.exit_file import DATA

    sys.exit(DATA if _show_checkpoints(run, compare_hashes=True) else 0)


@checkpoints.command("prune")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--keep-latest", type=click.IntRange(min=2), help="Instead of checkpoints.keep_latest of the run.")
@click.option("--keep-best", type=click.IntRange(min=0), help="Instead of checkpoints.keep_best of the run.")
@click.option("--keep-every", type=click.IntRange(min=1), help="Instead of checkpoints.keep_every of the run.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, delete nothing.")
def prune_checkpoints(run: Path, dry_run: bool, **keep: int | None) -> None:
    """Delete the checkpoints that retention does not keep. Damaged and quarantined ones stay."""
    from dp_prior.checkpoints.upkeep import root_of, store_of, superfluous

    store = store_of(root_of(run), **{name: value for name, value in keep.items() if value is not None})
    if dry_run:
        gone = superfluous(store)
    else:
        with store.lock():
            gone = store.prune()
    verb = "would delete" if dry_run else "deleted"
    click.echo("\n".join([f"{verb} {path}" for path in gone] or ["nothing to delete"]))


@checkpoints.command("repair")
@click.argument("run", type=click.Path(path_type=Path))
def repair_checkpoints(run: Path) -> None:
    """Set damaged checkpoints aside, restore those that verify again, delete leftovers, rewrite index.json."""
    from dp_prior.checkpoints.upkeep import repair, root_of, store_of

    store = store_of(root_of(run))
    with store.lock():
        click.echo("\n".join(repair(store)))


def _show_checkpoints(run: Path, *, compare_hashes: bool) -> int:
    """Print a line for each checkpoint; returns how many are damaged and not yet set aside."""
    from dp_prior.checkpoints.upkeep import root_of, take_stock

    damaged = 0
    for found in take_stock(root_of(run), compare_hashes=compare_hashes):
        damaged += found.kind == "damaged"
        line = f"{found.path.name:<28} {found.kind:<11}"
        if found.manifest is not None:
            size = sum(entry.size for entry in found.manifest.files.values()) / 1e6
            line += f"{found.manifest.samples_seen:>14,} samples {size:>10,.1f} MB  {found.manifest.saved_at}"
        if found.value is not None:
            line += f"  {found.manifest.monitor} {found.value:.6g}"
        click.echo("  ".join(filter(None, [line, " ".join(found.roles), found.remark])))
    return damaged


@main.command()
@modules_option
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--repo", help="First queue the best checkpoint for this Hugging Face Hub repository, user/name.")
@click.option("--wait", "limit_s", default=3600.0, show_default=True, help="Seconds to keep trying.")
def push(run: Path, repo: str | None, limit_s: float, modules: tuple[str, ...]) -> None:
    """Upload the checkpoints in the outbox of a run."""
    import_modules(modules)
    from dp_prior.run.commands import push_run
    from dp_prior.run.exit_file import UNAVAILABLE

    missing = push_run(run, repo, limit_s, report=click.echo)
    if missing:
        sys.exit(UNAVAILABLE)


@main.command()
@modules_option
@click.argument("checkpoint")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--whole", is_flag=True, help="Everything needed to resume training, not only for inference.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["checkpoint", "onnx", "torch_export"]),
    default="checkpoint",
    show_default=True,
    help="onnx and torch_export write graphs of the policy for robots, see docs/export.md.",
)
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change task.sampler in a graph format.")
def export(
    checkpoint: str, directory: Path, whole: bool, layout: str, overrides: tuple[str, ...], modules: tuple[str, ...]
) -> None:
    """Copy a checkpoint, or the best one of a run, to a directory that loads by itself."""
    import_modules(modules)
    from dp_prior.run.commands import export_checkpoint, export_policy

    if layout != "checkpoint":
        if whole:
            raise click.UsageError("--whole is for --format checkpoint")
        report = export_policy(checkpoint, directory, layout, overrides)
        click.echo(f"exported {checkpoint} to {directory}; largest error {report['largest_error']:.2g} normalised")
        return
    if overrides:
        raise click.UsageError("--set is for --format onnx and torch_export; a copy keeps its configuration")
    source, digest = export_checkpoint(checkpoint, directory, whole=whole)
    click.echo(f"exported {source} to {directory}")
    click.echo(f"its reference on a web server is https://.../{directory.name}#sha256={digest}")


@main.command("import")
@click.argument("source")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Run directory to write; must be empty.")
@click.option(
    "--format", "layout", type=click.Choice(["lerobot", "diffusion_policy"]), help="By default what the files are."
)
@click.option("--rename", multiple=True, metavar="THEIRS=OURS", help="Name an observation otherwise; repeatable.")
def import_policy(
    source: str, out: Path, layout: Literal["lerobot", "diffusion_policy"] | None, rename: tuple[str, ...]
) -> None:
    """Convert a policy of LeRobot (a directory, or user/name on the Hub) or of Diffusion Policy to a run."""
    from dp_prior.run import imported

    names = {theirs: ours for theirs, _, ours in (pair.partition("=") for pair in rename)}
    click.echo(imported.import_policy(source, out, layout, names))
    click.echo(f"next\n  dp-prior train --config_file {out / 'config.json'} --set data.episodes.path=...")


@main.command()
@modules_option
@click.argument("run")
@click.option("--relative-width", required=True, type=float, help="Width of the average, as a fraction of the run.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory to write.")
@click.option("--max-error", default=0.1, show_default=True, help="Refuse a larger relative error of the profile.")
def average(run: str, relative_width: float, out: Path, max_error: float, modules: tuple[str, ...]) -> None:
    """Reconstruct an average of any width from the power-function averages in the checkpoints of a run: from all of
    them, or from those up to RUN@step_00012000."""
    import_modules(modules)
    from dp_prior.training.posthoc import reconstruct

    made = reconstruct(run, relative_width, out, max_error=max_error)
    click.echo(
        f"average of relative width {relative_width:g} at step {made.target.step:,} in {made.directory}, from "
        f"{made.n_averages} averages in {made.n_checkpoints} checkpoints; relative error of the profile "
        f"{made.error:.2g}"
    )


@main.command()
@modules_option
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), help="The page; by default report.html in the one run.")
def report(runs: tuple[Path, ...], html: Path | None, modules: tuple[str, ...]) -> None:
    """Write one HTML page about a run, or about several side by side; they may be running."""
    from dp_prior.pages.report import write_report
    from dp_prior.run.scores import PAGE

    import_modules(modules)
    if html is None and len(runs) > 1:
        raise click.UsageError("--html says where the page of several runs goes")
    click.echo(f"wrote {write_report(runs, html or runs[0] / PAGE)}")


@main.command()
@modules_option
@click.argument("place", metavar="DATA_OR_CONFIG")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with everything that was found.")
@click.option("--write-config", type=click.Path(path_type=Path), help="Write a configuration that trains on the data.")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
def inspect(
    place: str, html: Path | None, write_config: Path | None, overrides: tuple[str, ...], modules: tuple[str, ...]
) -> None:
    """Show a data set and what is wrong with it: a path, user/name on the Hub, or a configuration (docs/pages.md)."""
    import_modules(modules)
    from dp_prior.inspection.inspect import inspect as look
    from dp_prior.inspection.inspect import write_config as propose
    from dp_prior.pages.dataset import summary, write_inspection

    found = look(place, overrides)
    click.echo("\n".join(summary(found)))
    if html is not None:
        click.echo(f"wrote {write_inspection(found, html, Path(place).name)}")
    if write_config is not None:
        propose(found, write_config)
        click.echo(f"wrote {write_config}\nnext\n  dp-prior train --config_file {write_config} --check")


@main.command()
@modules_option
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("dest", type=click.Path(path_type=Path))
@click.option(
    "--to",
    "target",
    required=True,
    type=click.Choice(["zarr", "lerobot", "robomimic", "npz"]),
    help="Format to write.",
)
@click.option("--from", "kind", help="Type of SOURCE, as in data.episodes; by default what its files are.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A setting of data.episodes for SOURCE.")
@click.option("--rename", multiple=True, metavar="THEIRS=OURS", help="Name a key otherwise; repeatable.")
@click.option("--leave-out", multiple=True, metavar="KEY", help="Do not convert this key; repeatable.")
@click.option("--fps", type=click.FloatRange(min=0, min_open=True), help="Control steps per second of SOURCE.")
def convert(
    source: Path,
    dest: Path,
    target: Literal["zarr", "lerobot", "robomimic", "npz"],
    kind: str | None,
    settings: tuple[str, ...],
    rename: tuple[str, ...],
    leave_out: tuple[str, ...],
    fps: float | None,
    modules: tuple[str, ...],
) -> None:
    """Convert a data set of any format that is read to Diffusion Policy's zarr, LeRobot 3.0, robomimic's HDF5 or npz
    (docs/data.md)."""
    from dp_prior.data import convert as conversion

    import_modules(modules)
    names = {theirs: ours for theirs, _, ours in (pair.partition("=") for pair in rename)}
    how = {"kind": kind, "settings": settings, "renames": names, "left_out": leave_out, "fps": fps}
    click.echo(conversion.convert(source, dest, target, **how))


@main.command("make-demonstrations")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The .npz file to write.")
@click.option("--task", default="pusht", show_default=True, help="pusht, or a task of Meta-World such as push-v3.")
@click.option("--episodes", default=200, show_default=True, help="Solved episodes to record.")
@click.option("--seed", default=0, show_default=True, help="Seed of the first episode.")
@click.option("--workers", default=None, type=int, help="Processes, by default one per core; the result is equal.")
def make_demonstrations(out: Path, task: str, episodes: int, seed: int, workers: int | None) -> None:
    """Record demonstrations by the scripted expert of Push-T or of a Meta-World task."""
    from dp_prior.config import ConfigError
    from dp_prior.envs import metaworld_demonstrations, pusht_demonstrations
    from dp_prior.envs.metaworld import task_class

    if task == "pusht":
        pusht_demonstrations.write_demonstrations(out, episodes, seed, workers)
    else:
        try:
            task_class(task)
        except ValueError as error:
            raise ConfigError("--task", [str(error)]) from None
        metaworld_demonstrations.write_demonstrations(out, task, episodes, seed, workers)
    click.echo(f"wrote {episodes} episodes to {out}")


@main.command("make-goal-demonstrations")
@click.option("--episodes", required=True, type=click.Path(exists=True, path_type=Path), help="Demonstrations, .npz.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The .npz file to write.")
def make_goal_demonstrations(episodes: Path, out: Path) -> None:
    """Turn demonstrations of Push-T to its four goals, with the instruction of each (docs/language.md)."""
    from dp_prior.envs.pusht_goals import write_goal_demonstrations

    click.echo(f"wrote {write_goal_demonstrations(episodes, out)} episodes to {out}")


@main.command("embed-demonstrations")
@click.option("--episodes", required=True, type=click.Path(exists=True, path_type=Path), help="Demonstrations, .npz.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write.")
def embed_demonstrations(episodes: Path, out: Path) -> None:
    """Embed a picture of every frame of Push-T demonstrations, for policies that observe embeddings."""
    from dp_prior.envs.pusht_pictures import write_embeddings

    frames = write_embeddings(episodes, out)
    click.echo(f"wrote the embeddings of {frames} frames to {out}")


@main.command()
@modules_option
@click.option(
    "--model", required=True, help="A folder or user/name[@revision] of the Hub for transformers; or `hashed`."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The folder to write.")
@click.option(
    "--texts", type=click.Path(exists=True, path_type=Path), help="Texts: lines of a .txt, or .csv, .parquet."
)
@click.option(
    "--images", type=click.Path(exists=True, path_type=Path), help="Paths of pictures, relative to this file; the same."
)
@click.option("--column", help="Column of --texts or --images that holds them; by default text or image.")
@click.option("--config_file", type=click.Path(path_type=Path), help="Configuration whose data are embedded.")
@click.option("--key", help="With it: the name in data.language or data.images.")
@click.option("--set", "overrides", multiple=True, metavar="KEY.KEY=VALUE", help="Override a setting; repeatable.")
def embed(
    model: str,
    out: Path,
    texts: Path | None,
    images: Path | None,
    column: str | None,
    config_file: Path | None,
    key: str | None,
    overrides: tuple[str, ...],
    modules: tuple[str, ...],
) -> None:
    """Embed texts, pictures or camera frames once, for training to read (docs/language.md). Stop and repeat it at any
    time."""
    from dp_prior.run.embed import embed_data, embed_pictures, embed_texts

    import_modules(modules)
    if [texts, images, config_file].count(None) != 2 or (config_file is None) != (key is None):
        raise click.UsageError("give --texts, --images, or --config_file and --key")
    if texts is not None:
        is_new = embed_texts(model, out, texts, column or "text", click.echo)
    elif images is not None:
        is_new = embed_pictures(model, out, images, column or "image", click.echo)
    else:
        is_new = embed_data(model, out, config_file, overrides, key, click.echo)
    click.echo(f"wrote {out}" if is_new else f"{out} is complete already")


@main.command()
@modules_option
@click.argument("checkpoint")
@click.option("--n", required=True, type=click.IntRange(min=1), help="Number of samples.")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="File NAME.npz, or for images a folder of PNG files."
)
@click.option("--labels", help="Names or numbers of classes, with commas, in turn; by default drawn uniformly.")
@click.option("--conditions", type=click.Path(path_type=Path), help=".npz with an array (m, ...) for each condition.")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    default="val",
    show_default=True,
    help="Part of the run's data that gives the conditions where --conditions does not.",
)
@click.option("--weights", help="An average of train.ema, or `online`; by default the first average.")
@click.option("--guidance-scale", type=float, help="Instead of the configured one.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change task.sampler, or data.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(min=1), help="Drawn together.")
@click.option("--seed", default=0, show_default=True, help="Determines the noise, with the index of a sample.")
def sample(checkpoint: str, n: int, out: Path, labels: str | None, modules: tuple[str, ...], **options: object) -> None:
    """Draw samples of any model into one file or folder (docs/sampling.md), on any number of ranks. Stop and repeat it
    at any time: the same command goes on."""
    from dp_prior.job.launcher import end_with_parent
    from dp_prior.job.signals import ECHO_S, LAUNCHER_ECHO_S, ignore_repeats_at_exit, stop_on_signal
    from dp_prior.job.stop import Stop

    stop, is_launched = Stop(), "LOCAL_RANK" in os.environ
    with stop_on_signal(stop, LAUNCHER_ECHO_S if is_launched else ECHO_S):
        ignore_repeats_at_exit()
        from dp_prior.job.ranks import Ranks, make_accelerator
        from dp_prior.run.exit_file import STOPPED
        from dp_prior.run.sample import Request, draw
        from dp_prior.run.stored import TIMEOUT_S

        import_modules(modules)
        request = Request(n, out, labels=tuple(filter(None, (labels or "").split(","))), **options)
        ranks = Ranks(make_accelerator("fp32", TIMEOUT_S), stop)
        with end_with_parent(stop) if is_launched else contextlib.nullcontext():
            is_done = draw(checkpoint, request, ranks, _print if ranks.is_main_process else lambda line: None)
        ranks.end()
    if not is_done:
        click.echo(f"stopped on {stop.reason or 'a signal to another rank'}; the same command goes on", err=True)
        sys.exit(STOPPED)
    if ranks.is_main_process:
        click.echo(f"wrote {n} samples to {out}")


@main.command()
@modules_option
@click.argument("checkpoint")
@click.option(
    "--split",
    type=click.Choice(["train", "val", "test"]),
    default="val",
    show_default=True,
    help="Part of the run's data to measure on.",
)
@click.option("--max-samples", type=click.IntRange(min=1), help="At most this many, evenly spread; by default all.")
@click.option("--batch-size", default=256, show_default=True, type=click.IntRange(min=1), help="Measured together.")
@click.option("--weights", help="An average of train.ema, or `online`; by default the first average.")
@click.option("--guidance-scale", type=float, help="Instead of the configured one.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change data, for example its path.")
@click.option("--seed", default=0, show_default=True, help="Of the fixed noise of each sample.")
def likelihood(checkpoint: str, modules: tuple[str, ...], **options: object) -> None:
    """Measure the bits per dimension of a model, beside those of simple baselines (docs/sampling.md)."""
    from dp_prior.job.ranks import Ranks, make_accelerator
    from dp_prior.run.likelihood import measure_likelihood
    from dp_prior.run.stored import TIMEOUT_S

    import_modules(modules)
    ranks = Ranks(make_accelerator("fp32", TIMEOUT_S))
    found = measure_likelihood(checkpoint, ranks, _print if ranks.is_main_process else lambda line: None, **options)
    ranks.end()
    if ranks.is_main_process:
        for name, value in found.items():
            click.echo(f"{name:<16} {value:.6g}")


@main.command()
@modules_option
@click.argument("checkpoint")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 for a free one.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the key that clients must show.")
@click.option("--insecure", is_flag=True, help="Let other machines connect without a key.")
@click.option(
    "--history",
    type=click.Choice(["client", "server"]),
    default="client",
    show_default=True,
    help="Who keeps past observations of stock clients; server if they ask at every control step.",
)
@click.option(
    "--merge",
    type=click.Choice(["naive", "guided", "prefix"]),
    default="naive",
    show_default=True,
    help="How a chunk follows the unfinished one that a client sends (docs/realtime.md).",
)
@click.option(
    "--texts", type=click.Path(path_type=Path), help="Folder of embeddings, or of the model, for instructions."
)
@click.option("--guidance-scale", type=float, help="Instead of the policy's own (docs/sampling.md).")
@click.option("--seed", default=0, show_default=True, help="Determines the noise, with episode and step.")
@click.option("--device", default="cpu", show_default=True, help="Where the policy runs, for example cuda.")
@click.option("--max-connections", default=16, show_default=True, type=click.IntRange(min=1), help="Clients at once.")
@click.option("--max-message", "max_mib", type=click.IntRange(min=1), help="MiB; by default what the policy may need.")
@click.option("--idle", "idle_s", default=3600.0, show_default=True, help="Seconds without a request before closing.")
def serve(
    checkpoint: str,
    host: str,
    port: int,
    token_file: Path | None,
    insecure: bool,
    history: Literal["client", "server"],
    merge: Literal["naive", "guided", "prefix"],
    texts: Path | None,
    guidance_scale: float | None,
    seed: int,
    device: str,
    max_connections: int,
    max_mib: int | None,
    idle_s: float,
    modules: tuple[str, ...],
) -> None:
    """Serve a policy to robots, in openpi's protocol (docs/robot.md); SIGTERM or Ctrl-C ends it."""
    import_modules(modules)
    import asyncio

    from dp_prior.export.policy import POLICY
    from dp_prior.export.torch_policy import AgentPolicy
    from dp_prior.inference.chunking import Guided, Prefix
    from dp_prior.inference.instructions import Instructions
    from dp_prior.inference.load import load_policy
    from dp_prior.serving.server import Limits, PolicyServer, bind, most_bytes, read_token

    token = None if token_file is None else read_token(token_file)
    with bind(host, port, is_protected=insecure or token is not None) as listener:
        if Path(checkpoint, POLICY).is_file():
            if guidance_scale is not None:
                raise click.UsageError("--guidance-scale is for checkpoints; that of an export is in its graphs")
            policy = AgentPolicy.load(checkpoint)
        else:
            policy = load_policy(checkpoint, guidance_scale=guidance_scale, device=device)
        limits = Limits(max_connections, most_bytes(policy.spec) if max_mib is None else max_mib << 20, idle_s)
        name = redact(checkpoint.rstrip("/").rpartition("/")[2])
        ways = {"naive": None, "guided": Guided(), "prefix": Prefix()}
        options = {"token": token, "history": history, "merge": ways[merge], "seed": seed, "limits": limits}
        options["instructions"] = Instructions(policy.spec, texts)
        asyncio.run(PolicyServer(policy, name=name, report=_print, **options).run_until_signal(listener))


def _farewell(outcome: Outcome, config: TrainConfig) -> str:
    """The last lines of the output: how the run ended, its scores and paths, and commands to try next."""
    result, best = outcome.result(), outcome.best
    larger, load = f"--set train.{config.train.unit}=...", f"load_{config.task.kind}"
    head = {
        "finished": "finished",
        "stopped": f"stopped on {outcome.stopped_by}; the same command resumes it",
        "complete": f"already complete; nothing to do. To continue, raise the budget ({larger})",
    }[outcome.status]
    lines = [f"{head}: {outcome.progress.samples_seen:,} samples in {outcome.progress.global_step:,} steps"]
    if result is not None and outcome.status != "stopped":
        lines += [f"  {name:<40} {value:.4g}" for name, value in result["test"].items() if value is not None]
        lines += [f"  {name:<40} {path}" for name, path in result["media"].items()]
    lines.append(f"  {'run':<40} {outcome.directory}")
    if best is not None:
        lines.append(f"  {'best checkpoint':<40} {best}")
        lines.append("next")
        lines.append(f"  dp-prior evaluate {best}")
        lines.append(f"  python -c \"from dp_prior import {load}; print({load}('{best}'))\"")
    if outcome.diverged_at is not None:
        lines.append(f"warning: the training loss diverged at step {outcome.diverged_at:,}; see events.jsonl")
    return "\n".join([*lines, *(f"warning: {line}" for line in outcome.failures)])


def _print(line: str) -> None:
    """Print a line. A closed pipe or a full disk under the log must not end the training."""
    with contextlib.suppress(OSError):
        click.echo(line)


@contextlib.contextmanager
def _optional_stdout() -> Iterator[None]:
    """Discard output if stdout is closed or fails; otherwise the interpreter flushes it again when it exits, fails and
    changes the exit code."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open until the process ends)
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _quiet() -> None:
    """Show warnings; hide what libraries log below that level."""
    handler = logging.lastResort  # looks up sys.stderr at every message, because the live display replaces it
    handler.filters = [lambda record: not logging.getLogger(record.name.partition(".")[0]).handlers]  # no duplicates
    logging.basicConfig(handlers=[handler], format="%(message)s", level=logging.WARNING)
    # torch renamed an option that accelerate passes; every rank would warn of it
    warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
    # convolutions of 1x1 on channels-last images have two equal descriptions of one layout
    warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides", UserWarning)


main.add_command(evaluate, "eval")
