"""Everything that is to be measured on a GPU, by one command that is called again until it says that all is done:

    python -m benchmarks.gpu --out runs/gpu

A call ends by itself within `--limit` (9 minutes), with code 75 while something is left; the next one goes on from
there. In this order: the tests that need a GPU; the step of the published image policy and of `pusht_image_gpu.json` as
they are by default and without compilation, beside those of LeRobot and Stanford, with kernels and peak memory; a chunk
drawn for 1 and 56 rows, by default and without compilation; the policy of `pusht_image_gpu.json` with 500 test
episodes; the other steps; the published recipe. Results are in OUT/results.jsonl as soon as they are measured, and in
OUT/report.md. `--device cpu --small` rehearses all of it in minutes, with tiny networks.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import peers, training
from benchmarks.results_file import ResultsFile
from benchmarks.steps import measure

ROOT = Path(__file__).parent.parent
MORE = 75
"""Exit code while something is left, as of a training run that was stopped by its time limit."""

MODES = ("off", "auto", "default", "reduce-overhead", "max-autotune")
PEER_MODES = ("off", "default")
ACTING = {"b1": 1, "b56": 56}
"""Rows of observations for which a chunk is drawn."""

RECIPES = {"pusht_image_gpu": "fast", "pusht_image_paper": "image"}
SIZES = {"state": ("256,512,1024", 256), "image": ("512,1024,2048", 64), "fast": ("128,256,512", 256)}
Case = tuple[str, str, str, str]
"""Whose step, of which kind of policy, in which precision, compiled how."""

TINY = {
    "task.encoders.camera.width": 16,
    "task.encoders.camera.blocks": [1, 1],
    "task.backbone.down_dims": [16, 32, 64],
    "task.sampler.steps": 2,
    "data.global_batch_size": 8,
}
BUDGET = {"pusht_image_gpu": {"train.samples": 160}, "pusht_image_paper": {"train.steps": 20}}


class OutOfTimeError(Exception):
    """The next measurement needs more time than this call has."""


class Job:
    """The results so far, and the remaining time of this call."""

    def __init__(self, out: Path, device: str, data: Path | None, is_small: bool, limit_s: float):
        self.out, self.device, self.is_small = out, device, is_small
        self._end = time.monotonic() + limit_s
        self.data = data if data is not None and data.exists() else None
        store = ResultsFile(out / "results.jsonl", device=device, small=is_small, recorded_data=self.data is not None)
        self.results, self.note = store.results, store.note

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def needs(self, seconds: float) -> None:
        if self.left_s < seconds:
            raise OutOfTimeError

    @property
    def environment(self) -> dict[str, str]:
        is_cpu = self.device == "cpu"
        return os.environ | {"ACCELERATE_USE_CPU": str(is_cpu).lower(), "DP_PRIOR_TEST_DEVICE": self.device}


def check(job: Job) -> None:
    """The tests that need a GPU, side by side: most of their time is compilation on the processor."""
    if "check" in job.results:
        return
    job.needs(120)
    begun = time.monotonic()
    workers = str(min(8, os.cpu_count() or 1))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "-n", workers]
    try:
        done = subprocess.run(
            [*command, "tests/test_gpu.py"],
            cwd=ROOT,
            env=job.environment,
            capture_output=True,
            text=True,
            timeout=job.left_s,
        )
    except subprocess.TimeoutExpired:
        job.note("check", {"passed": False, "summary": f"did not end within {time.monotonic() - begun:.0f} s"})
        raise OutOfTimeError from None
    (job.out / "check.log").write_text(done.stdout + done.stderr)
    summary = (done.stdout or done.stderr).strip().rpartition("\n")[2]
    is_checked = done.returncode == 0 and re.search(r"\d passed", summary) is not None  # none if all were skipped
    job.note("check", {"passed": is_checked, "summary": summary})


def first_steps(job: Job) -> list[Case]:
    """The default beside no compilation, the steps of others with the same network, and then the other modes."""
    cases: list[Case] = []
    for precision in ("fp32", "bf16"):
        cases += [("ours", "image", precision, mode) for mode in ("auto", "off")]
    cases += [("ours", "fast", "bf16", mode) for mode in ("auto", "off")]
    lacking = {"lerobot": peers.missing(), "stanford": peers.missing("diffusion_policy", "packages/robomimic")}
    for peer, absent in lacking.items():
        if absent is None:
            cases += [(peer, "image", precision, mode) for precision in ("fp32", "bf16") for mode in PEER_MODES]
        elif peer not in job.results:
            job.note(peer, f"NOT MEASURED: {absent}")
    quick = ("default", "reduce-overhead")
    cases += [("ours", kind, "bf16", mode) for kind, mode in itertools.product(("fast", "image"), quick)]
    return [case for case in cases if not job.is_small or case[3] in ("auto", "off")]  # the others are the same code


def acting_cases(job: Job) -> list[Case]:
    """A chunk in ten steps of DDIM, by number of rows."""
    modes = ("auto", "off") if job.is_small else ("auto", "off", "reduce-overhead")
    return [("acting", f"image {rows}", "fp32", mode) for rows in ACTING for mode in modes]


def further_steps(job: Job) -> list[Case]:
    """The steps of the policy of states, of arithmetic alone, and of the mode that compiles for minutes."""
    cases: list[Case] = [("ours", "fast", "fp32", "off"), ("ours", "state", "fp32", "off")]
    cases += [("ours", "state", "bf16", mode) for mode in MODES]
    cases += [("products", kind, "bf16", "off") for kind in SIZES]
    cases += [("ours", kind, "bf16", "max-autotune") for kind in ("fast", "image")]
    return [case for case in cases if not job.is_small or case[0] == "products"]


def throughput(job: Job, cases: list[Case]) -> None:
    """Measure windows per second and peak memory of a training step in each case."""
    for variant, subject, precision, mode in cases:
        name, (kind, *rows) = f"step {subject} {variant} {precision} {mode}", subject.split()
        if name in job.results:
            continue
        job.needs(180 if mode == "max-autotune" else 90)
        widths, batch_size = ("16,32", 4) if job.is_small else SIZES[kind]
        batch_size = ACTING[rows[0]] if rows else batch_size
        steps = ["--steps", "2", "--warm-up", "1"] if job.is_small else ["--steps", "30", "--warm-up", "10"]
        arguments = [variant, "--kind", kind, "--widths", widths, "--batch-size", str(batch_size), *steps]
        try:
            measurement = measure(
                [*arguments, "--precision", precision, "--compile", mode, "--device", job.device], job.left_s
            )
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            job.note(name, {"failed": str(error)[-1000:]})
            continue
        ms = sorted(measurement["ms"])[len(measurement["ms"]) // 2]
        rate = {"ms": round(ms, 3), "windows_per_s": round(1e3 * batch_size / ms, 1)}
        memory = {"peak_mb": round(measurement["peak_mb"]), "kernels": measurement["kernels"]}
        memory |= {"warm_up_s": round(measurement["warm_up_s"], 1)}
        job.note(name, rate | memory)


def fastest_mode(job: Job, kind: str) -> str:
    """The mode of compilation with the fastest step; `off` unless another mode was 5 % faster."""
    times = {mode: job.results.get(f"step {kind} ours bf16 {mode}", {}).get("ms") for mode in MODES}
    measured = {mode: ms for mode, ms in times.items() if ms is not None}
    best = min(measured, key=measured.__getitem__, default="off")
    return best if measured and measured[best] < 0.95 * measured.get("off", float("inf")) else "off"


def run_settings(job: Job, recipe: str) -> dict[str, Any]:
    """Settings of a recipe in this job, by path."""
    settings: dict[str, Any] = {
        "tracker.data_path": str(job.out / recipe),
        "tracker.log": [],
        "test": [],
        "train.precision": "bf16",
        "train.compile": fastest_mode(job, RECIPES[recipe]),
    }
    if job.data is not None:
        settings |= {"data.episodes.path": str(job.data)}
    else:
        settings |= {
            "data.episodes": {"type": "npz", "path": str(_scripted(job))},
            "data.obs": {"agent_pos": {"key": "state", "slice": [0, 2]}},
            "data.images": {"camera": {"key": "state", "render": {"type": "pusht"}, "size": [96, 96]}},
            "data.frame_cache": str(job.out / "frames"),
        }
    if job.is_small:
        camera = {"type": "pusht", "n_envs": 2, "max_steps": 16, "camera": [96, 96]}
        rollout = {"type": "rollout", "n_episodes": 2, "env": camera, "first_seed": 200000, "videos": 0}
        settings |= TINY | BUDGET[recipe] | {"evaluate": [rollout]}
    return settings


def _scripted(job: Job) -> Path:
    """The scripted demonstrations of this repository, for a machine without the recorded human demonstrations."""
    source = ROOT / "demonstrations/pusht.npz"
    return _first_episodes(source, job.out, 4) if job.is_small else source


def _first_episodes(source: Path, folder: Path, count: int) -> Path:
    with np.load(source, allow_pickle=False) as file:
        ends = file["episode_ends"][:count]
        arrays = {name: file[name][: ends[-1]] for name in file.files if name != "episode_ends"}
    path = folder / "first_episodes.npz"
    np.savez(path, **arrays, episode_ends=ends)
    return path


def train(job: Job, recipe: str) -> None:
    """Train until the budget is spent; a call resumes where the previous call stopped."""
    name = f"train {recipe}"
    if name in job.results:
        return
    job.needs(120)
    settings = run_settings(job, recipe)
    settings["train.max_runtime"] = max(10.0, job.left_s - 10)
    command = training.command(recipe, settings)
    begun = time.monotonic()
    with (job.out / f"{recipe}.log").open("a") as log:
        code = subprocess.run(command, cwd=ROOT, env=job.environment, stdout=log, stderr=subprocess.STDOUT).returncode
    parts = [*job.results.get(f"parts {recipe}", []), round(time.monotonic() - begun)]
    job.note(f"parts {recipe}", parts)
    if code == MORE:
        raise OutOfTimeError
    if code:
        tail = (job.out / f"{recipe}.log").read_text()[-2000:]
        raise click.ClickException(f"training {recipe} ended with code {code}; its log ends:\n{tail}")
    job.note(name, {"seconds": sum(parts), "starts": len(parts)})


def test(job: Job, recipe: str) -> None:
    """Test the best weights on 500 episodes, 50 at a time."""
    blocks, episodes = (2, 2) if job.is_small else (10, 50)
    if f"test {recipe}" in job.results:
        return
    for block in range(blocks):
        if f"test {recipe} {block}" not in job.results:
            job.needs(90)
            job.note(f"test {recipe} {block}", _episodes(job, recipe, block, episodes))
    rows = list(itertools.chain(*(job.results[f"test {recipe} {block}"] for block in range(blocks))))
    scores, solved = [row["score"] for row in rows], [row["success"] for row in rows]
    from dp_prior.evaluation.interval import mean_interval
    from dp_prior_worlds.pusht import PushTConfig

    low, high = mean_interval(np.array(scores), limits=PushTConfig.score_range)
    summary = {"episodes": len(rows), "score": sum(scores) / len(rows), "low": low, "high": high}
    job.note(f"test {recipe}", summary | {"solved": sum(map(bool, solved)) / len(rows)})


def _episodes(job: Job, recipe: str, block: int, count: int) -> list[dict[str, Any]]:
    from dp_prior import load_policy
    from dp_prior.checkpoints.clock import Progress
    from dp_prior.evaluation.rollout import RolloutConfig

    env = {"type": "pusht", "n_envs": count, "camera": [96, 96]} | ({"max_steps": 16} if job.is_small else {})
    record = RolloutConfig.model_validate(
        {"env": env, "n_episodes": count, "first_seed": 100_000 + count * block, "noise_seed": block, "videos": 0}
    )
    policy = load_policy(job.out / recipe, device=job.device)
    rows = record.create().run({"ema": policy}, None, Progress()).tables["rollout/by_seed"]
    return [{"seed": row["seed"], "score": row["score"], "success": row["success"]} for row in rows]


def report(job: Job) -> Iterator[str]:
    """Write the results as Markdown."""
    import torch

    name = torch.cuda.get_device_name() if job.device == "cuda" else "the CPU"
    yield f"# Measured on {name}, torch {torch.__version__}" + (
        ": a rehearsal, no figure means anything" * job.is_small
    )
    yield ""
    if job.data is None:
        yield "- the recorded demonstrations were not found: trained on the scripted ones of this repository"
    for peer in sorted({"lerobot", "stanford"} & job.results.keys()):
        yield f"- the step of {peer}: {job.results[peer]}"
    if check := job.results.get("check"):
        yield f"- tests that need a GPU: {'passed' if check['passed'] else 'FAILED'}, {check['summary']}"
    yield from ("", "| step | ms | windows/s | kernels | peak MB |", "|---|---:|---:|---:|---:|")
    for key, step in job.results.items():
        if key.startswith("step "):
            has_failed = "failed" in step
            columns = ("ms", "windows_per_s", "kernels", "peak_mb")
            values = ("failed", "", "", "") if has_failed else [step[column] for column in columns]
            yield f"| {key[5:]} | {' | '.join(map(str, values))} |"
    yield ""
    for recipe in RECIPES:
        trained, tested = job.results.get(f"train {recipe}"), job.results.get(f"test {recipe}")
        if trained:
            yield f"- {recipe}: trained in {trained['seconds']} s, {trained['starts']} starts"
        if tested:
            card = "; LeRobot's card: 0.957, 64.2 %" if job.data is not None else ""  # trained on the same data
            yield (
                f"- {recipe}: score {tested['score']:.3f} ({tested['low']:.3f} to {tested['high']:.3f}), "
                f"{tested['solved']:.1%} solved of {tested['episodes']} episodes{card}"
            )


@click.command(help=__doc__)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for everything.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--small", is_flag=True, help="Tiny networks and budgets: does everything run?")
@click.option("--data", type=click.Path(path_type=Path), default=Path("data/lerobot_pusht"), show_default=True)
@click.option("--limit", "limit_s", default=540.0, show_default=True, help="Seconds within which this call ends.")
def main(out: Path, device: str, small: bool, data: Path, limit_s: float) -> None:
    job = Job(out.absolute(), device, data.absolute(), small, limit_s)
    os.environ.update(job.environment)
    is_done = False
    try:
        check(job)
        throughput(job, [*first_steps(job), *acting_cases(job)])
        train(job, "pusht_image_gpu")
        test(job, "pusht_image_gpu")
        throughput(job, further_steps(job))
        train(job, "pusht_image_paper")
        test(job, "pusht_image_paper")
        is_done = True
    except OutOfTimeError:
        click.echo("call it again: something is left")
    finally:
        (job.out / "report.md").write_text("\n".join(report(job)) + "\n")
    click.echo(f"written to {job.out / 'report.md'}")
    sys.exit(0 if is_done else MORE)


if __name__ == "__main__":
    main()
