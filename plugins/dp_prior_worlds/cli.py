"""The command that records, and changes, demonstrations by scripted experts."""

from __future__ import annotations

from pathlib import Path

import click

from dp_prior.cli.command import ResumableCommand
from dp_prior.cli.options import EXISTING_PATH, PATH, FiniteRange, refuse_given
from dp_prior.cli.output import echo


@click.command(
    "make-demonstrations",
    cls=ResumableCommand,
    section="Data",
    example="dp-prior make-demonstrations --task push-v3 --out push.npz",
)
@click.option(
    "--out", required=True, type=PATH, help="The .npz file to write; with --suite or --change embed, the folder."
)
@click.option(
    "--task",
    default="pusht",
    show_default=True,
    help="pusht; a task of Meta-World such as push-v3, several with commas, MT10 or MT50; transfer_cube or insertion "
    "of ALOHA; Lift, PickPlaceCan or NutAssemblySquare of robosuite.",
)
@click.option(
    "--suite",
    type=click.Choice(["libero_object", "libero_spatial"]),
    help="Instead of --task: all tasks of a suite of LIBERO, a file for each as LIBERO's own (docs/libero.md).",
)
@click.option("--python", help="With --suite: the Python that has LIBERO, unless it has its usual place.")
@click.option(
    "--episodes", default=200, show_default=True, type=click.IntRange(min=1), help="Solved episodes of each task."
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Seed of the first episode.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes, by default one per core; the result is equal.")
@click.option(
    "--noise",
    default=0.0,
    show_default=True,
    type=FiniteRange(0, 1),
    help="ALOHA, robosuite and LIBERO: share of disturbed episodes.",
)
@click.option("--from", "recorded", type=EXISTING_PATH, help="With --change: demonstrations of Push-T, .npz.")
@click.option(
    "--change",
    type=click.Choice(["align", "goals", "embed"]),
    help="Instead of recording: move each episode of --from so that it ends exactly on the goal (docs/data.md), rotate "
    "it to four goals with their instructions (docs/language.md), or embed a picture of every frame.",
)
def make_demonstrations(
    out: Path,
    task: str,
    suite: str | None,
    python: str | None,
    episodes: int,
    seed: int,
    workers: int | None,
    noise: float,
    recorded: Path | None,
    change: str | None,
) -> None:
    """Record demonstrations by the scripted expert of Push-T, or of tasks of Meta-World, ALOHA, robosuite or LIBERO.
    After a stop the same command continues."""
    if (recorded is None) != (change is None):
        raise click.UsageError("--from and --change belong together: which demonstrations, and what to make of them")
    if suite is None and change != "embed" and out.suffix != ".npz":
        raise click.UsageError(f"--out is {out}; expected a name that ends with .npz, by which other commands read it")
    if change is not None:
        recording = ["task", "suite", "python", "episodes", "seed", "workers", "noise"]
        refuse_given(recording, "only for recording, which --change does not")
        echo(_change(change, recorded, out))
        return
    if suite is not None:
        refuse_given(["task"], "--suite names all tasks of a suite; give one of both")
        from dp_prior_worlds.libero_demonstrations import write_suite

        tried = write_suite(out, suite, episodes, seed, workers, noise, python)
        echo(f"wrote {episodes} episodes of each task of {suite} to {out}, of {tried} that were played")
        return
    refuse_given(["python"], "only for --suite")
    from dp_prior.config import ConfigError, errors_of
    from dp_prior_worlds.demonstrations import TASKS, TASKS_WITH_NOISE, write_demonstrations
    from dp_prior_worlds.metaworld import check_tasks
    from dp_prior_worlds.metaworld_tasks import instructed_tasks

    if noise and task not in TASKS_WITH_NOISE:
        raise ConfigError("--noise", [f"is {noise:g}, but only {', '.join(TASKS_WITH_NOISE)} take noise; remove it"])
    if task not in TASKS and "," not in task:
        import difflib

        close = difflib.get_close_matches(task, TASKS, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"the tasks that have: {', '.join(TASKS)}"
        raise ConfigError("--task", [f"{task!r} has no scripted expert; {hint}"])
    several = instructed_tasks(tuple(task.split(",")) if "," in task else task)
    if task not in ("pusht", *TASKS_WITH_NOISE):
        with errors_of("--task"):
            check_tasks(several or (task,))
    write_demonstrations(out, several or task, episodes, seed, workers, noise)
    share = f", {episodes} of each of {len(several)} tasks," if several else ""
    echo(f"wrote {episodes * (len(several) or 1)} episodes{share} to {out}")


def _change(change: str, episodes: Path, out: Path) -> str:
    """Write changed demonstrations of Push-T; returns what was written."""
    if change == "goals":
        from dp_prior_worlds.pusht_goals import write_goal_demonstrations

        return f"wrote {write_goal_demonstrations(episodes, out)} episodes to {out}"
    if change == "align":
        from dp_prior_worlds.pusht_aligned import write_aligned_demonstrations

        count, distance, degrees = write_aligned_demonstrations(episodes, out)
        return f"wrote {count} episodes to {out}; they ended {distance:.1f} px and {degrees:.1f} degrees (medians) off"
    from dp_prior_worlds.pusht_pictures import write_embeddings

    return f"wrote the embeddings of {write_embeddings(episodes, out)} frames to {out}"
