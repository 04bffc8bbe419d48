"""Saving everything that is needed to continue: how long training stands, and how long until it is safe."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks import baseline, setting
from benchmarks.measure import Case, Options, Timing
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.clock import Progress
from dp_prior.training.state import take_snapshot


def run(options: Options) -> list[Case]:
    with tempfile.TemporaryDirectory() as folder:
        return _run(options, Path(folder))


def _run(options: Options, folder: Path) -> list[Case]:
    data = baseline.WindowDataset(setting.arrays(), setting.HORIZON, setting.N_OBS_STEPS, setting.N_ACTION_STEPS)
    training, trainer = setting.baseline(options), setting.trainer(options)
    training.step(next(baseline.batches(data, 8)))
    trainer.step(next(trainer.loader.from_sample(0)))
    store = CheckpointStore(folder / "ours" / "checkpoints", RetentionConfig())
    (folder / "ours").mkdir()
    lock, writer = store.lock(), CheckpointWriter(store)
    stalls: dict[str, list[float]] = {"baseline": [], "dp_prior": []}
    safe: dict[str, list[float]] = {"baseline": [], "dp_prior": []}
    steps = itertools.count(1)
    for _ in range(1 + options.times(7)):
        start = time.perf_counter()
        training.save(folder / "theirs.pt")
        stalls["baseline"].append(time.perf_counter() - start)
        safe["baseline"].append(stalls["baseline"][-1])
        step = next(steps)
        start = time.perf_counter()
        writer.submit(take_snapshot(trainer, {}), Progress(step, step), {})
        stalls["dp_prior"].append(time.perf_counter() - start)
        writer.wait()
        safe["dp_prior"].append(time.perf_counter() - start)
    writer.close()
    newest = store.latest()
    loads: dict[str, list[float]] = {"baseline": [], "dp_prior": []}
    for _ in range(options.times(5)):
        start = time.perf_counter()
        training.load(folder / "theirs.pt")
        loads["baseline"].append(time.perf_counter() - start)
        start = time.perf_counter()
        trainer.restore(read_checkpoint(newest))
        loads["dp_prior"].append(time.perf_counter() - start)
    lock.release()
    size = sum(path.stat().st_size for path in newest.iterdir()) / 1e6
    shutil.rmtree(folder / "ours")

    def timings(values: dict[str, list[float]], skip: int) -> dict[str, Timing]:
        return {name: Timing([1e3 * value for value in found[skip:]]) for name, found in values.items()}

    note = f"{size:.0f} MB"
    return [
        Case("saving stops training for", "ms", timings(stalls, 1), note=note),
        Case(
            "until the checkpoint is on disk",
            "ms",
            timings(safe, 1),
            note="dp_prior: hashed, synced and verified beside training; baseline: neither synced nor hashed",
        ),
        Case("loading", "ms", timings(loads, 0), note="dp_prior: verified against its hashes"),
    ]
