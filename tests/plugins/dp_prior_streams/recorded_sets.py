"""LeRobot data sets of several files, for tests of streaming."""

from __future__ import annotations

import json

import numpy as np

WIDTH = 64


def lengths_of(count, seed=0):
    return np.random.default_rng(seed).integers(20, 60, count).tolist()


def write_v3(path, files=24, episodes_per_file=4, seed=0, tasks=2):
    """A set of format v3.0 with a table for every few episodes: numbers, and the number of an instruction."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng, lengths = np.random.default_rng(seed), lengths_of(files * episodes_per_file, seed)
    vector = {"dtype": "float32", "names": None}
    features = {
        "observation.state": {**vector, "shape": [WIDTH]},
        "action": {**vector, "shape": [3]},
        **{name: {"dtype": "int64", "shape": [1]} for name in ("episode_index", "frame_index", "task_index")},
    }
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "features": features,
        "total_episodes": len(lengths),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    for folder in ("meta/episodes/chunk-000", "data/chunk-000"):
        (path / folder).mkdir(parents=True)
    (path / "meta/info.json").write_text(json.dumps(info))
    texts = [f"do {number}" for number in range(tasks)]
    pq.write_table(pa.table({"task_index": range(tasks), "task": texts}), path / "meta/tasks.parquet")
    file_of = np.repeat(np.arange(files), episodes_per_file)
    listing = {"episode_index": np.arange(len(lengths)), "length": lengths}
    listing |= {"data/chunk_index": np.zeros_like(file_of), "data/file_index": file_of}
    pq.write_table(pa.table(listing), path / "meta/episodes/chunk-000/file-000.parquet")
    for file in range(files):
        numbers = np.flatnonzero(file_of == file)
        counts = [lengths[number] for number in numbers]
        rows = sum(counts)
        columns = {
            "observation.state": list(rng.standard_normal((rows, WIDTH)).astype("f4")),
            "action": list(rng.standard_normal((rows, 3)).astype("f4").cumsum(0)),
            "episode_index": np.repeat(numbers, counts),
            "frame_index": np.concatenate([np.arange(count) for count in counts]),
            "task_index": np.repeat(numbers % tasks, counts),
        }
        name = path / f"data/chunk-000/file-{file:03d}.parquet"
        pq.write_table(pa.table(columns), name, compression="NONE", use_dictionary=False)
    return path


def tables_of(path):
    """Bytes of all tables of numbers."""
    return sum(file.stat().st_size for file in (path / "data").rglob("*.parquet"))


def data_config(episodes, **settings):
    from dp_prior.data.recorded.trajectories import TrajectoriesConfig

    keys = {"obs": {"state": {"key": "observation.state"}}, "action": {"key": "action"}}
    document = {"type": "trajectories", "episodes": episodes, "batch_size": 16, "device": "cpu", **keys, **settings}
    return TrajectoriesConfig.from_json(json.dumps(document), source="data")


def opened(episodes, **settings):
    return data_config(episodes, **settings).create(8, 2, 4)


def streamed(url, cache, disk_gb=1.0, **settings):
    return opened({"type": "lerobot_stream", "url": str(url), "disk_gb": disk_gb, "cache": str(cache)}, **settings)


def like_streamed(path, data, **settings):
    """The same set in memory, in the parts of a streamed one."""
    split = {part: data.split_ids[part] for part in ("train", "val", "test")}
    return opened({"type": "lerobot", "path": str(path)}, split={"parts": split}, **settings)


def batches_of(data, order, count=None, start=0, rank=0, ranks=1, batch=32):
    """Digests of the global batches of a rank."""
    import hashlib

    from dp_prior.data.samples.loader import Loader

    samples = data.training_samples()
    loader = Loader(samples, batch_size=batch // ranks, seed=0, rank=rank, world_size=ranks, order=order)
    batches, digests = loader.from_sample(start), []
    for _ in range(len(loader) // batch if count is None else count):
        digest = hashlib.sha256()
        for one_batch in next(batches):
            digest.update(one_batch.x.numpy().tobytes())
            for key in sorted(one_batch.cond):
                digest.update(one_batch.cond[key].numpy().tobytes())
        digests.append(digest.hexdigest())
    batches.close()
    return digests
