"""Everything that is to be measured on a GPU, by one command that is called again until it says that all is done:

    python -m benchmarks.gpu --out runs/gpu

A call ends by itself within `--limit` (9 minutes), with code 75 while something is left; the next one goes on from
there. In this order: the tests that need a GPU; the step of the published image policy and of `pusht_image_gpu.json` as
they are by default and without compilation, beside those of LeRobot and Stanford, with kernels and peak memory; a chunk
drawn for 1 and 56 rows, by default and without compilation; the policy of `pusht_image_gpu.json` with 500 test
episodes; the other steps; the published recipe. What fails, or takes longer than its bound, becomes a line of the
results, and the next measurement begins; delete the line to measure it again. Results are in OUT/results.jsonl as soon
as they are measured, and in OUT/report.md. `--device cpu --small` rehearses all of it in minutes, with tiny networks.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from benchmarks import bounded, peers, training
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

CHECK_S, TEST_S, TRAINING_S = 200.0, 90.0, 120.0
"""Seconds within which the tests end, a block of test episodes ends, and a start of a training pays."""

STEP_S = {"off": 90.0, "max-autotune": 300.0}
COMPILED_STEP_S = 180.0
"""Seconds within which a step is measured, its process and the compiler included."""

PYTEST = """
import os, sys, pytest
from dp_prior.job.launcher import end_with_parent
with end_with_parent(lambda: None, 0.0, os.getppid()):
    sys.exit(pytest.main(sys.argv[1:]))
"""

LATE_S = 30.0
"""Seconds that a training may take to stop after its time limit."""

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
        self._running = out / "running"
        if self._running.exists():  # the last call was killed, perhaps while something was compiled
            self.forget_compiled()
        self._running.touch()

    def end(self) -> None:
        """Note that nothing of this call was cut off."""
        self._running.unlink(missing_ok=True)

    def forget_compiled(self) -> None:
        """Delete compiled code: torch fails each time on a file that a killed compiler has not finished."""
        shutil.rmtree(self.out / "compiled", ignore_errors=True)

    def run(self, command: list[str], timeout_s: float, **options: Any) -> subprocess.CompletedProcess[str]:
        """See `bounded.run`."""
        try:
            return bounded.run(command, timeout_s, **options)
        except subprocess.TimeoutExpired:
            self.forget_compiled()
            raise

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def needs(self, seconds: float) -> None:
        if self.left_s < seconds:
            raise OutOfTimeError

    @property
    def environment(self) -> dict[str, str]:
        is_cpu = self.device == "cpu"
        threads = {"OMP_NUM_THREADS": "1"} if self.is_small else {}  # tiny networks lose by more
        compiled = {"TORCHINDUCTOR_CACHE_DIR": str(self.out / "compiled")}
        device = {"ACCELERATE_USE_CPU": str(is_cpu).lower(), "DP_PRIOR_TEST_DEVICE": self.device}
        return os.environ | threads | compiled | device


def check(job: Job) -> None:
    """The tests that need a GPU, side by side: most of their time is compilation on the processor."""
    if "check" in job.results:
        return
    job.needs(CHECK_S)
    workers = str(min(8, os.cpu_count() or 1))
    command = [sys.executable, "-c", PYTEST, "-v", "-p", "no:cacheprovider", "-m", "gpu", "tests/test_gpu.py"]
    if importlib.util.find_spec("xdist"):
        command += ["-n", workers]
    try:
        done = job.run(command, CHECK_S, cwd=ROOT, env=job.environment)
        summary = (done.stdout or done.stderr).strip().rpartition("\n")[2].strip("= ")
    except subprocess.TimeoutExpired as error:
        done = subprocess.CompletedProcess(command, 1, error.output, error.stderr)
        summary = f"did not end within {CHECK_S:.0f} s"
    (job.out / "check.log").write_text(done.stdout + done.stderr)
    is_checked = done.returncode == 0 and re.search(r"\d passed", summary) is not None  # none if all were skipped
    failures = sorted(set(re.findall(r"(?:FAILED|ERROR) (tests/\S+)", done.stdout)))
    job.note("check", {"passed": is_checked, "summary": summary, "failures": failures})


def first_steps(job: Job) -> list[Case]:
    """The default beside no compilation, and the steps of others with the same network."""
    subjects = (("image", "fp32"), ("fast", "bf16"), ("image", "bf16"))
    cases: list[Case] = [("ours", *subject, mode) for subject in subjects for mode in ("auto", "off")]
    lacking = {"lerobot": peers.missing(), "stanford": peers.missing("diffusion_policy", "packages/robomimic")}
    for peer, absent in lacking.items():
        if absent is None:
            cases += [(peer, "image", precision, mode) for precision in ("fp32", "bf16") for mode in PEER_MODES]
        elif peer not in job.results:
            job.note(peer, f"NOT MEASURED: {absent}")
    return [case for case in cases if not job.is_small or case[3] != "default"]  # which is the same code


def acting_cases(job: Job) -> list[Case]:
    """A chunk in ten steps of DDIM, by number of rows."""
    return [("acting", f"image {rows}", "fp32", mode) for rows in ACTING for mode in ("auto", "off")]


def further_steps(job: Job) -> list[Case]:
    """The other modes, the steps of the policy of states and of arithmetic alone, and what compiles for minutes."""
    modes = ("default", "reduce-overhead")
    cases: list[Case] = [("ours", kind, "bf16", mode) for kind, mode in itertools.product(("fast", "image"), modes)]
    cases += [("acting", f"image {rows}", "fp32", "reduce-overhead") for rows in ACTING]
    cases += [("ours", "fast", "fp32", "off"), ("ours", "state", "fp32", "off")]
    cases += [("products", kind, "bf16", "off") for kind in SIZES]
    cases += [("ours", "state", "bf16", mode) for mode in MODES]
    cases += [("ours", kind, "bf16", "max-autotune") for kind in ("fast", "image")]
    return [case for case in cases if not job.is_small or case[0] == "products"]


def throughput(job: Job, cases: list[Case]) -> None:
    """Measure windows per second and peak memory of a step in each case, or say why a case has none."""
    for variant, subject, precision, mode in cases:
        name, (kind, *rows) = f"step {subject} {variant} {precision} {mode}", subject.split()
        if name in job.results:
            continue
        bound_s = STEP_S.get(mode, COMPILED_STEP_S)
        job.needs(bound_s)
        widths, batch_size = ("16,32", 4) if job.is_small else SIZES[kind]
        batch_size = ACTING[rows[0]] if rows else batch_size
        steps = ["--steps", "2", "--warm-up", "1"] if job.is_small else ["--steps", "30", "--warm-up", "10"]
        arguments = [variant, "--kind", kind, "--widths", widths, "--batch-size", str(batch_size), *steps]
        try:
            measurement = measure(
                [*arguments, "--precision", precision, "--compile", mode, "--device", job.device], bound_s
            )
        except RuntimeError as error:
            job.note(name, {"failed": str(error)[-1000:]})
            continue
        except subprocess.TimeoutExpired as error:
            job.forget_compiled()
            job.note(name, {"failed": f"not measured within {bound_s:.0f} s: {error.stderr[-900:]}"})
            continue
        ms = sorted(measurement["ms"])[len(measurement["ms"]) // 2]
        rate = {"ms": round(ms, 3), "windows_per_s": round(1e3 * batch_size / ms, 1)}
        memory = {"peak_mb": round(measurement["peak_mb"]), "kernels": measurement["kernels"]}
        memory |= {"warm_up_s": round(measurement["warm_up_s"], 1), "choice": measurement["choice"]}
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
    """Train until the budget is spent, without the compiler where a start with it failed; a call resumes where the
    previous call stopped."""
    name = f"train {recipe}"
    while name not in job.results:
        job.needs(TRAINING_S)
        mode = "off" if f"{name}, compiled" in job.results else fastest_mode(job, RECIPES[recipe])
        problem = _start(job, recipe, mode)
        parts = job.results[f"parts {recipe}"]
        if not problem:
            job.note(name, {"seconds": sum(parts), "starts": len(parts), "compile": mode})
        elif mode == "off":
            job.note(name, {"failed": problem})
        else:
            job.note(f"{name}, compiled", {"failed": problem})


def _start(job: Job, recipe: str, mode: str) -> str:
    """Start a training, or resume it, and note its seconds. Returns the end of its log if it failed.

    Raises:
        OutOfTimeError: the time limit has stopped it.
    """
    settings = run_settings(job, recipe) | {"train.compile": mode}
    limit_s = max(10.0, job.left_s - LATE_S)
    settings["train.max_runtime"] = limit_s
    environment = job.environment | {"TORCHELASTIC_RUN_ID": "benchmarks.gpu"}  # a launcher: it ends with this process
    begun, log_file = time.monotonic(), job.out / f"{recipe}.log"
    with log_file.open("a") as log:
        try:
            command = training.command(recipe, settings)
            code = job.run(command, limit_s + LATE_S, log=log, cwd=ROOT, env=environment).returncode
        except subprocess.TimeoutExpired:
            code = None
            log.write(f"the training did not stop within {LATE_S:.0f} s after its time limit\n")
    job.note(f"parts {recipe}", [*job.results.get(f"parts {recipe}", []), round(time.monotonic() - begun)])
    if code == MORE:
        raise OutOfTimeError
    return "" if code == 0 else f"code {code}; the log ends: {log_file.read_text()[-1500:]}"


def test(job: Job, recipe: str) -> None:
    """Test the best weights on 500 episodes, 50 at a time."""
    blocks, episodes = (2, 2) if job.is_small else (10, 50)
    if f"test {recipe}" in job.results or "failed" in job.results[f"train {recipe}"]:
        return
    for block in range(blocks):
        if f"test {recipe} {block}" not in job.results:
            job.needs(TEST_S)
            try:
                job.note(f"test {recipe} {block}", _episodes(job, recipe, block, episodes))
            except Exception as error:  # of a driver or a simulator: the next measurements do not need it
                job.note(f"test {recipe}", {"failed": f"{type(error).__name__}: {error}"[:1000]})
                return
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
    name = torch.cuda.get_device_name() if job.device == "cuda" and torch.cuda.is_available() else "the CPU"
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
        yield from (f"  - {failure}" for failure in check.get("failures", ()))
    yield from ("", "| step | ms | windows/s | kernels | peak MB |", "|---|---:|---:|---:|---:|")
    steps = {key[5:]: step for key, step in job.results.items() if key.startswith("step ")}
    for key, step in steps.items():
        columns = ("ms", "windows_per_s", "kernels", "peak_mb")
        values = ("failed", "", "", "") if "failed" in step else [step.get(column) for column in columns]
        yield f"| {key} | {' | '.join(map(str, values))} |"
    yield ""
    for key, step in steps.items():
        if remark := step.get("failed") or step.get("choice"):
            yield f"- {key}: {_line(remark)}"
    for recipe in RECIPES:
        for name in (f"train {recipe}, compiled", f"train {recipe}", f"test {recipe}"):
            if problem := job.results.get(name, {}).get("failed"):
                yield f"- {name}: failed, {_line(problem)}"
        trained, tested = job.results.get(f"train {recipe}", {}), job.results.get(f"test {recipe}", {})
        if "seconds" in trained:
            yield f"- {recipe}: trained in {trained['seconds']} s, {trained['starts']} starts"
        if "score" in tested:
            card = "; LeRobot's card: 0.957, 64.2 %" if job.data is not None else ""  # trained on the same data
            yield (
                f"- {recipe}: score {tested['score']:.3f} ({tested['low']:.3f} to {tested['high']:.3f}), "
                f"{tested['solved']:.1%} solved of {tested['episodes']} episodes{card}"
            )


def _line(text: str) -> str:
    """The end of a message, on one line."""
    return " ".join(text.split())[-400:]


@click.command(help=__doc__)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for everything.")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--small", is_flag=True, help="Tiny networks and budgets: does everything run?")
@click.option("--data", type=click.Path(path_type=Path), default=Path("data/lerobot_pusht"), show_default=True)
@click.option("--limit", "limit_s", default=540.0, show_default=True, help="Seconds within which this call ends.")
def main(out: Path, device: str, small: bool, data: Path, limit_s: float) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        raise click.ClickException(f"torch {torch.__version__} finds no GPU here; --device cpu --small rehearses")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that measurements end as well
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
    job.end()
    click.echo(f"written to {job.out / 'report.md'}")
    sys.exit(0 if is_done else MORE)


if __name__ == "__main__":
    main()
