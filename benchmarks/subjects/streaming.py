"""Streamed data sets: windows per second and waiting in a step, beside the same samples in memory.

A data set of 64 tables lies in a folder, and behind HTTP on loopback. Every variant has the same samples in the same
order. A step is a pause of 20 ms, as a GPU takes for a small network.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Case, Options, Timing, per_second
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.data.samples.loader import Loader

TABLES, EPISODES, STATE, STEP_S = 64, 4, 64, 0.02


def run(options: Options) -> list[Case]:
    rows = 50 if options.quick else 800  # of an episode
    with tempfile.TemporaryDirectory(prefix="dp_prior_streaming_") as folder:
        place = Path(folder)
        size = _write(place / "set", rows)
        with _served(place / "set") as url:
            whole = _opened(str(place / "set"), place / "whole", 2 * size)
            loaders = {
                "all parts here": whole,
                "a fifth, from a folder": _opened(str(place / "set"), place / "folder", size / 5),
                "a fifth, behind HTTP": _opened(url, place / "web", size / 5),
            }
            loaders = {"memory": _in_memory(place / "set", whole)} | loaders
            note = f"{size / 1e6:.3g} MB in {TABLES} tables, batch {options.batch_size}"
            return _cases(loaders, options, whole.part_order(0), note)


def _cases(data_sets: dict[str, Any], options: Options, order: Any, note: str) -> list[Case]:
    """Rates of batches alone, and the share of a step that waits for them."""
    count = 20 if options.quick else 200
    batches = {}
    for name, data in data_sets.items():
        its_order = order if name == "memory" else data.order(0)
        loader = Loader(data.training_samples(), batch_size=options.batch_size, seed=0, order=its_order)
        batches[name] = loader.from_sample(0)

    def read(name: str) -> int:
        return sum(len(parts[0]) for parts in itertools.islice(batches[name], count))

    variants = {name: functools.partial(read, name) for name in batches}
    rates = per_second(variants, options.times(5))
    shares: dict[str, list[float]] = {name: [] for name in batches}
    for _, (name, its_batches) in itertools.product(range(options.times(3)), batches.items()):
        waited, begun = 0.0, time.perf_counter()
        for _ in range(count // 4):
            asked = time.perf_counter()
            next(its_batches)
            waited += time.perf_counter() - asked
            time.sleep(STEP_S)
        shares[name].append(100 * waited / (time.perf_counter() - begun))
    waiting = {name: Timing(values) for name, values in shares.items()}
    return [
        Case("batches of a streamed set", "windows/s", rates, more_is_better=True, note=note),
        Case("waiting for streamed samples", "% of a step of 20 ms", waiting, note=note),
    ]


def _opened(url: str, cache: Path, n_bytes: float) -> Any:
    episodes = {"type": "lerobot_stream", "url": url, "disk_gb": n_bytes / 1e9, "cache": str(cache)}
    return _config(episodes, {}).create(16, 2, 8)


def _in_memory(folder: Path, streamed: Any) -> Any:
    split = {part: streamed.split_ids[part] for part in ("train", "val")}
    return _config({"type": "lerobot", "path": str(folder)}, {"split": {"parts": split}}).create(16, 2, 8)


def _config(episodes: dict[str, Any], settings: dict[str, Any]) -> TrajectoriesConfig:
    keys = {"obs": {"state": {"key": "observation.state"}}, "action": {"key": "action"}, "device": "cpu"}
    document = {"type": "trajectories", "episodes": episodes, **keys, **settings}
    return TrajectoriesConfig.from_json(json.dumps(document), source="data")


def _write(folder: Path, rows: int) -> int:
    """A LeRobot data set of v3.0; returns the bytes of its tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {
        "observation.state": {"dtype": "float32", "shape": [STATE]},
        "action": {"dtype": "float32", "shape": [7]},
        "episode_index": {"dtype": "int64", "shape": [1]},
        "frame_index": {"dtype": "int64", "shape": [1]},
    }
    template = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info = {"codebase_version": "v3.0", "fps": 10, "features": features, "data_path": template}
    for name in ("meta/episodes/chunk-000", "data/chunk-000"):
        (folder / name).mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    numbers = np.arange(TABLES * EPISODES)
    files = numbers // EPISODES
    listing = {"episode_index": numbers, "length": np.full_like(numbers, rows)}
    listing |= {"data/chunk_index": 0 * files, "data/file_index": files}
    pq.write_table(pa.table(listing), folder / "meta/episodes/chunk-000/file-000.parquet")
    rng, size = np.random.default_rng(0), 0
    for file in range(TABLES):
        columns = {
            "observation.state": list(rng.standard_normal((EPISODES * rows, STATE)).astype("f4")),
            "action": list(rng.standard_normal((EPISODES * rows, 7)).astype("f4")),
            "episode_index": np.repeat(numbers[files == file], rows),
            "frame_index": np.tile(np.arange(rows), EPISODES),
        }
        path = folder / template.format(chunk_index=0, file_index=file)
        pq.write_table(pa.table(columns), path, compression="NONE", use_dictionary=False)
        size += path.stat().st_size
    return size


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, *line: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def _served(folder: Path) -> Iterator[str]:
    """The URL of a folder behind HTTP."""
    handler = functools.partial(_Silent, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
