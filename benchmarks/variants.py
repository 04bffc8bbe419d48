"""`python -m benchmarks.variants`: the main job with other diffusion, each trained like the default, in one picture.

Without arguments it prints the commands; with the run directories it prints the table and draws the picture.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import click

from dp_prior.evaluation.picture import INK, import_figure
from dp_prior.tracking.jsonl import read_rows

CONFIG = "configs/policy/pusht_state.json"
LONGER = "train.samples=2500000"
X0 = [LONGER, 'task.diffusion.objective={"type":"x0"}', 'task.diffusion.weighting={"type":"uniform"}']
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "v_minsnr_selfcond": [LONGER, "task.diffusion.self_condition=0.5"],
    "x0": X0,
    "importance": [*X0, 'task.diffusion.timesteps={"type":"loss_second_moment"}'],
    "learned_sigma": [
        *X0,
        'task.diffusion.variance={"type":"learned_range"}',
        'task.sampler={"type":"ddpm","steps":16}',
    ],
    "flow": [
        LONGER,
        'task.diffusion.schedule={"type":"flow"}',
        'task.diffusion.objective={"type":"flow"}',
        'task.diffusion.weighting={"type":"uniform"}',
        'task.sampler={"type":"euler","steps":8}',
    ],
}
SCORE, ERROR = "rollout/score", "action_error/ema/mse[steps=8]"
PANELS = {SCORE: "Push-T score on the selection seeds", ERROR: "squared action error of 8 steps, pixels squared"}


def command(name: str) -> str:
    """What trains a variant."""
    settings = [f"tracker.data_path=runs/{name}", *VARIANTS[name]]
    words = ["accelerate", "launch", "train_policy.py", "--config_file", CONFIG]
    return shlex.join([*words, *(word for setting in settings for word in ("--set", setting))])


def row(run: Path) -> str:
    """One run in the table."""
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    test, best = result["test"], result["best"]
    score, low, high = (test[f"test/{kind}"] for kind in ("score", "score_ci_low", "score_ci_high"))
    selected = best["metrics"][SCORE]
    last = [values for values in read_rows(run) if ERROR in values][-1]
    return (
        f"| {run.name} | {selected:.3f} at step {best['step']:,} | {score:.3f} ({low:.3f} to {high:.3f}) | "
        f"{test['test/success_rate']:.0%} | {last[ERROR]:.0f} |"
    )


@click.command(help=__doc__)
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--plot", type=Path, help="Where the picture goes.")
def main(runs: tuple[Path, ...], plot: Path | None) -> None:
    if not runs:
        click.echo("\n".join(command(name) for name in VARIANTS))
        return
    click.echo("| run | selected | test seeds | solved | action error at the end |\n|---|---|---|---|---|")
    click.echo("\n".join(map(row, runs)))
    if plot is None:
        return
    figure = import_figure()(figsize=(10, 4.2), dpi=110, layout="constrained")
    for axes, (metric, label) in zip(figure.subplots(1, 2), PANELS.items(), strict=True):
        for run in runs:
            found = [values for values in read_rows(run) if values.get(metric) is not None]
            axes.plot([v["samples_seen"] / 1e6 for v in found], [v[metric] for v in found], marker="o", label=run.name)
        axes.set_title(label, fontsize=10, color=INK, loc="left")
        axes.set_xlabel("samples seen, millions")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(plot)


if __name__ == "__main__":
    main()
