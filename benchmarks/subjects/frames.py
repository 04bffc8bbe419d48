"""Camera frames: windows per second from the cache, the build of a cache, waiting in a training step, and memory.

Recorded videos in `../shared/data` are read too where they are there. The row of LeRobot's own data set needs them, and
the folder of `benchmarks/peers.py`; without them it is left out with a line that says so.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import numpy as np
import torch

from benchmarks import peers
from benchmarks.measure import Case, Options, Timing, per_second
from dp_prior.data.frames import FramePart
from dp_prior.data.frames.encodings import RAW
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.data.frames.frame_column import ImageColumn
from dp_prior.data.frames.layout import CacheIndex
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from dp_prior.files.json_text import seal
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.run.assembly import Assembly
from dp_prior.run.config import TrainConfig
from dp_prior.tensors.crop import crop_each
from dp_prior.tensors.pixels.resize import Fit

BATCH, STEPS, SIDE, CROP = 256, 2, 96, 84
RECORDED = Path(__file__).parents[3] / "shared" / "data"
SETS = {  # videos of recorded sets
    "AV1 96 x 96": "pusht/lerobot_v30/videos/observation.image",
    "AV1 640 x 480": "cr5_banana_plate/lerobot/videos",
    "H.264 256 x 256": "gr00t_gr1_picknplace/lerobot/videos/chunk-000/observation.images.ego_view",
    "MPEG-4 640 x 480": "lingzu_open50_v30/lerobot/videos",
}
PUSHT = RECORDED / "pusht" / "lerobot_v30"


def run(options: Options) -> list[Case]:
    with tempfile.TemporaryDirectory(prefix="dp_prior_frames_") as place:
        cases = [*_reading(options, Path(place)), *_building(options, Path(place))]
        cases += [*_waiting(options, Path(place)), *_memory(options, Path(place))]
        return cases + _lerobot(options, Path(place))


class _Noise:
    """A `FrameSource` of random pixels."""

    def __init__(self, root: Path, n: int):
        self.root, self.size, self.ends = root, (SIDE, SIDE), np.array([n])
        self.parts = [FramePart("noise", (0,))]

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng(0)
        for first in range(0, int(self.ends[0]), 250):
            count = min(250, int(self.ends[0]) - first)
            yield rng.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8)

    def files(self) -> list[Path]:
        return []

    def describe(self) -> dict[str, Any]:
        return {"format": "noise"}


def _reading(options: Options, place: Path) -> list[Case]:
    cache = FrameCache(_Noise(place, 1_000 if options.quick else 20_000), Fit(size=(SIDE, SIDE)), place / "noise")
    cache.build()
    path = cache.directory / "frames.u8"
    column = ImageColumn(cache, "sizes").runs(STEPS)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(0, len(column), (BATCH,), generator=generator) for _ in range(4 if options.quick else 20)]
    top, left = (torch.randint(0, SIDE - CROP + 1, (BATCH,), generator=generator) for _ in range(2))

    def every(rows: Callable[[torch.Tensor], torch.Tensor], is_cropped: bool = False) -> Callable[[], int]:
        def read() -> int:
            for ids in batches:
                frames = rows(ids)
                if is_cropped:
                    crop_each(frames, top, left, (CROP, CROP))
            return BATCH * len(batches)

        return read

    def compare(is_cropped: bool) -> dict[str, Timing]:
        """The map lives only here: mapped pages cannot be dropped from the page cache, as is done below."""
        mapped = torch.from_numpy(np.memmap(path, np.uint8, mode="c", shape=(cache.n_frames, SIDE, SIDE, 3)))
        view = mapped.as_strided((len(column), STEPS, SIDE, SIDE, 3), (mapped.stride(0), *mapped.stride()))
        variants = {"memory map": every(lambda ids: view.index_select(0, ids), is_cropped)}
        return per_second(variants | {"dp_prior": every(column.rows, is_cropped)}, repeats)

    repeats = options.times(9)
    with _one_thread():
        warm, cropped = compare(False), compare(True)
    from_disk = _from_disk(path, every, column, repeats)
    shape = f"batches of {BATCH} windows of {STEPS} frames of {SIDE} x {SIDE}, one thread"
    return [
        Case("frames from the page cache", "windows/s", warm, more_is_better=True, note=shape),
        Case("frames from the page cache, cropped", "windows/s", cropped, more_is_better=True),
        Case("frames from the disk", "windows/s", from_disk, more_is_better=True, note="out of the page cache before"),
    ]


def _from_disk(
    path: Path, every: Callable[[Callable[[torch.Tensor], Any]], Callable[[], int]], column: ImageColumn, repeats: int
) -> dict[str, Timing]:
    """Windows per second out of a file that is not in the page cache.

    Args:
        every: makes a function that gives all batches to another one, and returns how many windows they had.
    """
    with open(path, "rb", buffering=0) as file:

        def one_by_one(ids: torch.Tensor) -> None:
            into = [memoryview(bytearray(STEPS * SIDE * SIDE * 3))]
            for row in ids.tolist():
                os.preadv(file.fileno(), into, row * SIDE * SIDE * 3)

        def cold(rows: Callable[[torch.Tensor], Any]) -> Callable[[], int]:
            def read() -> int:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                return every(rows)()

            return read

        os.fsync(file.fileno())
        return per_second({"one after another": cold(one_by_one), "dp_prior": cold(column.rows)}, repeats)


def _building(options: Options, place: Path) -> list[Case]:
    """One thread each: decoding alone; with conversion to RGB and resizing, which every cache needs; a whole build. And
    a build of one file on two threads."""
    from av.video.reformatter import VideoReformatter

    cases = []
    enough = 60 if options.quick else 1_500  # or the start and the end of a build would count for too much
    for number, (name, video) in enumerate(_videos(options, place).items()):

        def decode(video: Path = video, convert: Callable[[av.VideoFrame], Any] = lambda frame: None) -> int:
            with av.open(str(video)) as container:
                container.streams.video[0].codec_context.thread_count = 1
                return sum(1 for frame in container.decode(video=0) if convert(frame) is None)

        def decode_and_fit(video: Path = video) -> int:
            reformatter = VideoReformatter()

            def convert(frame: av.VideoFrame) -> None:
                pixels = reformatter.reformat(frame, format="rgb24", threads=1).to_ndarray()
                Fit(size=(SIDE, SIDE)).apply(torch.from_numpy(pixels)[None])

            return decode(video, convert)

        count = decode()
        folder = place / f"video_{number}"
        folder.mkdir()
        copies = -(-enough // count)
        for copy in range(copies):
            (folder / f"{copy}{video.suffix}").symlink_to(video.resolve())
        source = FolderFrames(folder, count * np.arange(1, copies + 1))

        lone = place / f"one_{number}"
        lone.mkdir()
        (lone / f"0{video.suffix}").symlink_to(video.resolve())
        one_file = FolderFrames(lone, np.array([count]))

        def build(source: FolderFrames = source, workers: int = 1) -> int:
            with tempfile.TemporaryDirectory(dir=place) as root:
                FrameCache(source, Fit(size=(SIDE, SIDE)), Path(root)).build(workers)
            return int(source.ends[-1])

        with _one_thread():
            variants = {"decoder alone": decode, "decoder, RGB, resize": decode_and_fit, "dp_prior": build}
            variants["dp_prior, two threads for a file"] = partial(build, one_file, 2)
            timings = per_second(variants, options.times(5))
        cases.append(Case(f"frame cache of {name}", "frames/s", timings, more_is_better=True))
    return cases


def _videos(options: Options, place: Path) -> dict[str, Path]:
    """A video made here, and the smallest one of every recorded set."""
    made = place / "made.mp4"
    _write_video(made, 60 if options.quick else 600)
    videos_by_name = {"H.264 320 x 240, made here": made}
    for name, folder in SETS.items():
        videos = sorted((RECORDED / folder).rglob("*.mp4"), key=lambda path: path.stat().st_size)
        if not videos:
            print(f"frames: {RECORDED / folder} is not there, so no cache of {name} is built")
        elif not options.quick:
            videos_by_name[name] = videos[0]
    return videos_by_name


def _write_video(path: Path, count: int) -> None:
    """A moving gradient with noise."""
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(240), np.arange(320))[..., None] + np.array([0, 60, 120])
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "fast", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for number in range(count):
            pixels = (ramp + 3 * number + rng.integers(0, 12, ramp.shape)) % 256
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels.astype(np.uint8), format="rgb24")))
        container.mux(stream.encode())


def _small_policy(place: Path, count: int, size: int) -> Assembly:
    """A run of the policy of configs/policy/pusht_image.json on `count` frames of noise, `size` windows in a batch."""
    rng = np.random.default_rng(0)
    arrays = {
        "camera": rng.integers(0, 256, (count, SIDE, SIDE, 3), np.uint8),
        "action": rng.normal(size=(count, 2)).astype(np.float32).cumsum(0),
        "episode_ends": np.array([count]),
    }
    np.savez(place / "images.npz", **arrays)
    encoder = {"type": "resnet", "width": 32, "blocks": [1, 1, 1], "stem": "patch", "crop": [CROP, CROP]}
    config = {
        "task": {"encoders": {"camera": encoder}, "backbone": {"type": "unet1d", "down_dims": [32, 64, 128]}},
        "data": {
            "episodes": {"type": "npz", "path": str(place / "images.npz")},
            "images": {"camera": {"key": "camera", "size": [SIDE, SIDE]}},
            "action": {"key": "action"},
            "split": {"train": 1.0, "val": 0.0},
            "batch_size": size,
        },
        "train": {"steps": 1_000_000},
        "evaluate": [],
        "tracker": {"data_path": str(place / "run"), "log": []},
    }
    return Assembly(
        TrainConfig.from_json(json.dumps(config)), Ranks(make_accelerator("fp32")), report=lambda line: None
    )


def _waiting(options: Options, place: Path) -> list[Case]:
    """Steps of a small image policy, its batches read in the loop or ahead."""
    count, size = (60, 8) if options.quick else (2_000, 64)
    parts = _small_policy(place, count, size)
    sink = SimpleNamespace(log=lambda *_: None, log_images=lambda *_: None, submit=lambda *_: None)
    trainer = parts.trainer(sink, sink)
    ahead = parts.loader.from_sample(0)
    in_turn = map(parts.loader.global_batch, range(0, 1 << 40, parts.loader.global_batch_size))
    steps, variants = 2 if options.quick else 4, (("read in the loop", in_turn), ("read ahead", ahead))
    shares: dict[str, list[float]] = {name: [] for name, _ in variants}
    times: dict[str, list[float]] = {name: [] for name, _ in variants}
    for turn in range(options.times(5) + 1):
        for name, batches in variants:
            waited, begun = 0.0, time.perf_counter()
            for _ in range(steps):
                asked = time.perf_counter()
                micro_batches = next(batches)
                waited += time.perf_counter() - asked
                trainer.step(micro_batches)
            took = time.perf_counter() - begun
            if turn:
                shares[name].append(100 * waited / took)
                times[name].append(1e3 * took / steps)
    note = f"batch {size}, the network of configs/policy/pusht_image.json"
    waiting = {name: Timing(values) for name, values in shares.items()}
    stepping = {name: Timing(values) for name, values in times.items()}
    return [
        Case("waiting for camera frames", "% of a step", waiting, note=note),
        Case("training step with camera frames", "ms", stepping, note=note),
    ]


MEMORY = """
import sys
from pathlib import Path
import numpy as np, torch
from benchmarks import memory
from dp_prior.data.frames.frame_rows import FrameRows
torch.set_num_threads(1)
place, is_ours, batches = Path(sys.argv[1]), sys.argv[2] == "dp_prior", int(sys.argv[3])
rows = FrameRows(place)
mapped = torch.from_numpy(np.memmap(place / "frames.u8", np.uint8, mode="c", shape=(len(rows), *rows.shape)))
generator = torch.Generator().manual_seed(0)
for _ in range(batches):
    first = torch.randint(0, len(rows) - 1, (256,), generator=generator)
    ids = torch.stack([first, first + 1], 1).flatten()
    rows.rows(ids) if is_ours else mapped.index_select(0, ids)
print(memory.peak() / 1e6)
"""


def _memory(options: Options, place: Path) -> list[Case]:
    """Peak of a process that reads a sparse cache, torch included."""
    count, batches = (2_000, 10) if options.quick else (100_000, 200)
    sparse = place / "sparse"
    sparse.mkdir()
    size = count * SIDE * SIDE * 3
    with open(sparse / "frames.u8", "wb") as file:
        file.truncate(size)
    index = CacheIndex(
        source="none",
        fit=Fit(size=(SIDE, SIDE)),
        encoding=RAW,
        ends=[count],
        sizes={"frames.u8": size},
        digests=["0" * 64],
    )
    (sparse / "cache.json").write_bytes(seal(index.model_dump(mode="json")))
    variants = {}
    for name in ("memory map", "dp_prior"):
        command = [sys.executable, "-c", MEMORY, str(sparse), name, str(batches)]
        output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        variants[name] = Timing([float(output.stdout)])
    read = batches * BATCH * STEPS * SIDE * SIDE * 3
    note = f"each in a process of its own; {read / 1e9:.1f} GB read from a cache of {size / 1e9:.1f} GB"
    return [Case("memory to read frames", "MB", variants, note=note)]


LEROBOT = """
import sys, time
import av, torch
from benchmarks import memory, peers
root, camera, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
peers.enter()
import torchvision

class VideoReader:
    "What torchvision had until 0.25, which LeRobot 0.4.4 calls: frames by PyAV from the key frame before a time."

    def __init__(self, path, stream):
        self.container = av.open(path)

    def seek(self, seconds, keyframes_only):
        self.container.seek(int(seconds * 1e6), any_frame=False, backward=True)
        self.frames = self.container.decode(video=0)

    def __iter__(self):
        for frame in self.frames:
            pixels = torch.from_numpy(frame.to_rgb().to_ndarray()).permute(2, 0, 1)
            yield {"data": pixels, "pts": float(frame.pts * frame.time_base)}

torchvision.io.VideoReader = VideoReader
torchvision.set_video_backend = lambda name: None
torch.set_num_threads(1)
from lerobot.datasets.lerobot_dataset import LeRobotDataset
data = LeRobotDataset("local/set", root=root, video_backend="pyav")
times = {camera: [-1 / data.fps, 0.0], "action": [step / data.fps for step in range(-1, 15)]}
data = LeRobotDataset("local/set", root=root, video_backend="pyav", delta_timestamps=times)
rows = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:count].tolist()
data[rows[0]]
begun = time.perf_counter()
for row in rows:
    data[row]
print(count / (time.perf_counter() - begun), memory.peak() / 1e6)
"""


def _lerobot(options: Options, place: Path) -> list[Case]:
    """The same windows of recorded video by LeRobot's data set, one at a time as its loader has them, and by ours."""
    absent = peers.missing("packages/lerobot", "packages/torchvision")
    if absent is not None or not PUSHT.is_dir():
        print(f"frames: LeRobot is left out. {absent or f'{PUSHT} is not there'}")
        return []
    count = 20 if options.quick else 300
    command = [sys.executable, "-c", LEROBOT, str(PUSHT), "observation.image", str(count)]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(place / "datasets")}
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    rate, memory = map(float, output.stdout.split()[-2:])
    record = {
        "episodes": {"type": "lerobot", "path": str(PUSHT)},
        "obs": {"state": {"key": "observation.state"}},
        "images": {"camera": {"key": "observation.image", "size": [SIDE, SIDE]}},
        "action": {"key": "action"},
        "frame_cache": str(place / "pusht"),
        "split": {"train": 1.0, "val": 0.0},
    }
    data = TrajectoriesConfig.from_json(json.dumps(record)).create(16, STEPS, 8)
    begun = time.perf_counter()
    data.build_caches(lambda line: None)
    built = time.perf_counter() - begun
    loader = data.loader(seed=0, batch_size=BATCH, accumulation=1, rank=0, world_size=1)
    starts = itertools.count(0, 10 * BATCH)

    def read() -> int:
        begin = next(starts)
        return sum(len(loader.global_batch(begin + BATCH * number)[0]) for number in range(10))

    with _one_thread():
        timings = per_second({"dp_prior": read}, options.times(5))
    note = (
        f"with states and actions; one pass of LeRobot 0.4.4 first, in one process and by PyAV from the key frame on, "
        f"not by its default torchcodec; it took {memory:.0f} MB in all, our cache {built:.0f} s once"
    )
    variants = {"LeRobot": Timing([rate]), **timings}
    return [Case("windows of recorded video", "windows/s", variants, more_is_better=True, note=note)]


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
