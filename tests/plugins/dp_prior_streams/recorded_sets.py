"""LeRobot data sets of several files, for tests of streaming."""

from __future__ import annotations

import json

import numpy as np

from dp_prior.tensors.pixels import video_writer

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


TYPES = ("?", "i1", "u1", "<i2", ">u2", "<i4", ">u4", "<i8", "<u8", "<f2", "<f4", "<f8", ">f8")


def extreme_numbers(dtype, rows, random):
    """(rows, 3) of a type: its limits, zeros of both signs, and numbers that float32 rounds."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return random.random((rows, 3)) < 0.5
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, (rows, 3), dtype.newbyteorder("="), endpoint=True)
        values[:2] = [[limits.min], [limits.max]]
        return values.astype(dtype)
    largest = min(float(np.finfo(dtype).max), float(np.finfo(np.float32).max))
    values = random.standard_normal((rows, 3)) * 10.0 ** random.integers(-9, 4, (rows, 3))
    values[:6] = [[largest], [-largest], [-0.0], [float(np.finfo(dtype).smallest_subnormal)], [1e-42], [0.1]]
    return values.astype(dtype)


def add_types(path, types=TYPES, seed=0):
    """Give a set a column `of0`, `of1`, ... of each type, whose numbers reach its limits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    info, random = json.loads((path / "meta/info.json").read_text()), np.random.default_rng(seed)
    native = [np.dtype(dtype).newbyteorder("=") for dtype in types]
    for number, dtype in enumerate(native):
        info["features"][f"of{number}"] = {"dtype": dtype.name, "shape": [3], "names": None}
    (path / "meta/info.json").write_text(json.dumps(info))
    for file in (path / "data").rglob("*.parquet"):
        table = pq.read_table(file)
        for number, dtype in enumerate(native):
            values = extreme_numbers(dtype, len(table), random)
            column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 3)
            table = table.append_column(f"of{number}", column)
        pq.write_table(table, file, compression="NONE", use_dictionary=False)
    return path


def config_of(kind, folder, rows=600, width=3, **settings):
    """Data of episodes of 30 steps, as an `.npz` file or a replay buffer."""
    import pytest

    from dp_prior.data.recorded.trajectories import TrajectoriesConfig

    random = np.random.default_rng(0)
    numbers = random.standard_normal((rows, width), np.float32)
    arrays = {"state": numbers, "action": numbers[:, :2].astype(np.float64)}
    ends = np.arange(30, rows + 1, 30)
    if kind == "npz":
        np.savez(folder / "set.npz", **arrays, episode_ends=ends)
    else:
        zarr = pytest.importorskip("zarr", reason="NOT CHECKED: the extra dp_prior[zarr] is not installed")
        root = zarr.open_group(folder / "set.zarr", mode="w")
        for name, values in arrays.items():
            root.create_array(f"data/{name}", data=values, chunks=(1000, values.shape[1]))
        root.create_array("meta/episode_ends", data=ends)
    keys = {"obs": {"state": {"key": "state"}}, "action": {"key": "action"}}
    episodes = {"type": kind, "path": str(folder / f"set.{kind}")}
    document = {"type": "trajectories", "episodes": episodes, "batch_size": 16, "device": "cpu", **keys, **settings}
    return TrajectoriesConfig.from_json(json.dumps(document), source="data")


def created(config, data_set=None):
    """The data; of a class for whatever size if one is given."""
    if data_set is None:
        return config.create(8, 2, 4)
    return data_set(config, config.episodes.create(), 8, 2, 4, all_obs=False)


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


CAMERA = "observation.images.front"
CODECS = {
    "h264 as LeRobot": {"codec": "libx264", "pix_fmt": "yuv420p", "options": {"g": "2", "crf": "30"}},
    "key frames apart": {"codec": "libx264", "pix_fmt": "yuv420p", "options": {"g": "12", "bf": "2", "crf": "20"}},
    "open groups": {
        "codec": "libx264",
        "pix_fmt": "yuv420p",
        "options": {"g": "9", "bf": "3", "crf": "20", "x264-params": "open-gop=1:scenecut=0"},
    },
    "as LeRobot": {
        "codec": "libsvtav1",
        "pix_fmt": "yuv420p",
        "options": {"g": "2", "crf": "30", "preset": "12"},
    },
}


def moving_pictures(count, height=64, width=80, seed=0):
    """(count, height, width, 3) uint8: smooth, moving, and no two alike."""
    rows, columns = np.mgrid[0:height, 0:width] / 16
    phase = np.arange(count)[:, None, None] / 7
    channels = [np.sin(rows + phase * speed + seed) * np.cos(columns - phase) for speed in (1, 1.7, 0.6)]
    return ((np.stack(channels, -1) + 1) * 127).astype(np.uint8)


def write_encoded(path, frames, codec, pix_fmt, options, fps=10):
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    # as root, SVT-AV1 gives this thread real-time priority, which other tests would inherit
    with video_writer._scheduled_as_before(), av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options=options)
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], pix_fmt
        for pixels in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())


def add_videos(path, episodes_per_file=7, seed=0, codec="h264 as LeRobot"):
    """Give a set a camera, whose videos do not end where its tables do."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = json.loads((path / "meta/info.json").read_text())
    info["features"][CAMERA] = {"dtype": "video", "shape": [64, 80, 3], "names": None}
    (path / "meta/info.json").write_text(json.dumps(info))
    listing = path / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(listing)
    lengths = np.array(table.column("length").to_pylist())
    numbers = np.arange(len(lengths))
    starts = np.cumsum(lengths) - lengths
    files = numbers // episodes_per_file
    for file in np.unique(files):
        count = int(lengths[files == file].sum())
        name = path / f"videos/{CAMERA}/chunk-000/file-{file:03d}.mp4"
        how = CODECS[codec]
        write_encoded(name, moving_pictures(count, seed=seed + int(file)), **how)
    begins = (starts - starts[files * episodes_per_file]) / info["fps"]
    for column, values in (("chunk_index", files * 0), ("file_index", files), ("from_timestamp", begins)):
        table = table.append_column(f"videos/{CAMERA}/{column}", pa.array(values))
    pq.write_table(table, listing)
    return path


FRONT = {"images": {"front": {"key": CAMERA, "size": [24, 32]}}}
