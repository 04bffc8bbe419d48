"""Damages small files of every format, and reads them under limits: `python -m tests.fuzzing COUNT [KIND...]`.

A reader answers with the content or with one error of its own. It starts no program, opens no other file, and ends in
time and memory; a crash of a library ends the process, which the caller sees.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from tests import structures

ABSURD = "absurd "
"""Before the name of a format, whose files are then changed by `tests.structures`."""

MEMORY, SECONDS = 2 << 30, 20
"""Bytes beyond those of the process with its libraries, and seconds for one file."""

NEEDED = {
    "robomimic": "h5py", "zarr": "zarr", "lerobot": "pyarrow", "parquet images": "pyarrow", "pictures": "PIL",
    "videos": "av", "embeddings": "pyarrow", "onnx": "onnx",
    "bags": "mcap_ros2",
}  # fmt: skip


def npz(place: Path) -> Callable[[], object]:
    from dp_prior.data.formats.npz import NpzStoreConfig

    rows = np.random.default_rng(0).normal(size=(20, 3))
    np.savez_compressed(place / "a.npz", state=rows, action=rows, episode_ends=np.array([8, 20]))
    return lambda: read_store(NpzStoreConfig(path=place / "a.npz"))


def robomimic(place: Path) -> Callable[[], object]:
    import h5py

    from dp_prior.data.formats.robomimic import RobomimicStoreConfig

    with h5py.File(place / "a.hdf5", "w") as file:
        for number in range(2):
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = 9
            group["actions"] = np.ones((9, 2))
            group.create_dataset("obs/state", data=np.ones((9, 3), "f4"), chunks=(4, 3), compression="gzip")
            group["same"] = h5py.SoftLink("obs/state")
    return lambda: read_store(RobomimicStoreConfig(path=place / "a.hdf5"))


def zarr(version: int, place: Path) -> Callable[[], object]:
    from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
    from tests.data.formats.zarr import test_replay_buffer

    test_replay_buffer.write(place / "a.zarr", version)
    return lambda: read_store(ZarrStoreConfig(path=place / "a.zarr"))


def lerobot(version: str, place: Path) -> Callable[[], object]:
    from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
    from tests.data.formats.lerobot import test_dataset

    path = test_dataset.WRITERS[version](place / "a")
    return lambda: read_store(LeRobotStoreConfig(path=path))


def pictures(place: Path) -> Callable[[], object]:
    from PIL import Image

    from dp_prior.data.pictures.decode import decode_image
    from dp_prior.tensors.pixels.picture_files import FORMATS
    from dp_prior_foreign.embed import read_rgb

    pixels = np.random.default_rng(0).integers(0, 256, (12, 10, 3), np.uint8)
    for format in FORMATS:
        Image.fromarray(pixels).save(place / f"a.{format}", format)
    Image.fromarray(pixels).convert("P").save(
        place / "b.GIF", "GIF", save_all=True, append_images=[Image.new("P", (10, 12))]
    )
    files = sorted(place.iterdir())

    def read() -> None:
        for file in files:
            each_answers(lambda file=file: read_rgb(file), lambda file=file: decode_image(file.read_bytes(), str(file)))

    return read


def videos(place: Path) -> Callable[[], object]:
    import av

    from dp_prior.data.frames.video_frames import read_video, size_of

    files = [place / f"a.{ending}" for ending in ("mp4", "mkv", "avi", "mov")]
    for file in files:
        with av.open(str(file), "w") as container:
            stream = container.add_stream("mpeg4", rate=5)
            stream.width, stream.height, stream.pix_fmt = 32, 24, "yuv420p"
            for value in range(6):
                picture = av.VideoFrame.from_ndarray(np.full((24, 32, 3), 40 * value, np.uint8), format="rgb24")
                container.mux(stream.encode(picture))
            container.mux(stream.encode())

    def read() -> None:
        for file in files:
            each_answers(lambda file=file: list(read_video(file, size_of(file), {"0": 6})))

    return read


def npz_images(place: Path) -> Callable[[], object]:
    from dp_prior.data.pictures.npz import NpzImagesConfig

    np.savez_compressed(place / "a.npz", images=np.zeros((9, 4, 5, 3), np.uint8), labels=np.arange(9) % 2)
    return lambda: read_images(NpzImagesConfig(path=place / "a.npz"))


def parquet_images(place: Path) -> Callable[[], object]:
    import pyarrow as pa
    from PIL import Image
    from pyarrow import parquet

    from dp_prior.data.pictures.parquet import ParquetImagesConfig

    stream = io.BytesIO()
    Image.new("RGB", (5, 4), (1, 2, 3)).save(stream, "PNG")
    rows = [{"bytes": stream.getvalue(), "path": None}] * 6
    parquet.write_table(pa.table({"image": rows, "label": [0, 1] * 3}), place / "a.parquet")
    return lambda: read_images(ParquetImagesConfig(path=place / "a.parquet"))


def embeddings(place: Path) -> Callable[[], object]:
    import pyarrow as pa
    from pyarrow import parquet

    from dp_prior.data.embeddings.folder import FolderConfig

    rows = np.random.default_rng(0).normal(size=(20, 4)).astype("f4")
    for name in ("npy", "parquet"):
        (place / name).mkdir()
    np.save(place / "npy" / "a.npy", rows)
    parquet.write_table(pa.table({"embedding": list(rows)}), place / "parquet" / "a.parquet", row_group_size=7)

    def read() -> None:
        for format in ("npy", "parquet"):
            each_answers(lambda format=format: FolderConfig(path=str(place / format), format=format).create().scan())

    return read


def safetensors(place: Path) -> Callable[[], object]:
    import torch

    from dp_prior.checkpoints.format import Manifest, write_checkpoint
    from dp_prior.checkpoints.snapshot import Snapshot, file_tensors

    snapshot = Snapshot({"model.safetensors": {"w": torch.arange(12.0).reshape(3, 4), "n": torch.tensor(3)}}, {})
    plain = {"sequence": 1, "step": 7, "samples_seen": 70, "world_size": 1, "saved_at": "2026-01-01"}
    path, _ = write_checkpoint(place / "step_00000007", snapshot, Manifest(**plain))
    file = place / "a.safetensors"
    shutil.move(path / "model.safetensors", file)
    shutil.rmtree(path)
    return lambda: file_tensors(torch.frombuffer(bytearray(file.read_bytes() or b"\0"), dtype=torch.uint8))


def onnx(place: Path) -> Callable[[], object]:
    from dp_prior_robot.export.onnx_files import check_self_contained
    from tests.plugins.dp_prior_robot.export.test_onnx_files import models

    files = []
    for number, model in enumerate(models(False)):
        files.append(place / f"{number}.onnx")
        files[-1].write_bytes(model.SerializeToString())
    return lambda: [check_self_contained(file.read_bytes()) for file in files]


def bags(place: Path) -> Callable[[], object]:
    from dp_prior_robot.ros2.bags import bags_at
    from tests.plugins.dp_prior_robot.ros2.ros2_recordings import by_time, joints, write_split

    folder = write_split(place / "take", by_time(joints(20, 1, ["j0"])), 2)
    return lambda: [message.decode() for bag in bags_at(folder) for message in bag.messages()]


READERS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "npz": npz,
    "robomimic": robomimic,
    "zarr v2": partial(zarr, 2),
    "zarr v3": partial(zarr, 3),
    "lerobot v2.1": partial(lerobot, "v2.1"),
    "lerobot v3.0": partial(lerobot, "v3.0"),
    "pictures": pictures,
    "videos": videos,
    "npz images": npz_images,
    "parquet images": parquet_images,
    "embeddings": embeddings,
    "safetensors": safetensors,
    "bags": bags,
    "onnx": onnx,
}


def needed(kind: str) -> str:
    """The package that reads a format; numpy for those that need no other."""
    return NEEDED.get(kind.partition(" v")[0], "numpy")


def read_store(record: object) -> None:
    """What training reads of an episode store."""
    store = record.create()
    store.checked_ends()
    for key in list(store.keys()):
        each_answers(lambda key=key: store.read(key))


def read_images(record: object) -> None:
    """What training reads of a set of images."""
    source = record.create(labelled=True, uniform=True)
    for part in source.parts:
        for _ in source.read(part, 0):
            pass


def each_answers(*reads: Callable[[], object]) -> None:
    """Call all; an error that is an answer stops none of the others."""
    from dp_prior.data.errors import DataError, UnreadableError

    for read in reads:
        try:
            read()
        except (DataError, UnreadableError) as error:
            assert str(error)


def damaged(data: bytes, generator: np.random.Generator) -> bytes:
    """`data` after bytes were changed, cut out, put in or repeated."""
    data = bytearray(data)
    for _ in range(generator.integers(1, 5)):
        place, kind = int(generator.integers(0, len(data) + 1)), generator.integers(8)
        if kind < 4 and place < len(data):
            data[place] = int(generator.choice([0, 1, 127, 128, 255, generator.integers(256)]))
        elif kind == 4:
            del data[place : place + int(generator.integers(1, 40))]
        elif kind == 5:
            data[place:place] = generator.bytes(int(generator.integers(1, 20)))
        elif kind == 6:
            data[place : place + 8] = b"\xff" * int(generator.integers(1, 9))
        else:
            del data[place if generator.integers(4) == 0 else len(data) :]
    return bytes(data)


STARTS = {
    *("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "pty.spawn"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "urllib.Request", "webbrowser.open"),
}


def watch(place: Path, seen: list[str]) -> None:
    """Note what starts a program, speaks to a network or opens a file elsewhere."""
    allowed = (
        str(place),
        sys.prefix,
        sys.base_prefix,
        str(Path(__file__).parent.parent),
        "/proc/",
        "/dev/null",
        "/sys/",
    )

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in STARTS:
            seen.append(f"{event}{arguments!r}"[:200])
        elif event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.path.abspath(os.fsdecode(arguments[0]))
            writes = "w" in str(arguments[1]) and not path.startswith(str(place))
            if writes or not path.startswith(allowed):
                seen.append(f"open {path}")

    sys.addaudithook(hook)


def fuzz(kind: str, count: int, seed: int, place: Path) -> dict[str, int]:
    """Damage and read the files of a format; how many readings gave content, and how many an error.

    Args:
        kind: a format, or one with `ABSURD` before it, whose files stay well-formed and say absurd things.
    """
    from dp_prior.data.errors import DataError, UnreadableError

    place.mkdir(parents=True)
    is_absurd, kind = kind.startswith(ABSURD), kind.removeprefix(ABSURD)
    read, generator = READERS[kind](place), np.random.default_rng(seed)
    sound = {file: file.read_bytes() for file in sorted(place.rglob("*")) if file.is_file()}
    read()  # and import all that reading needs
    refusals = (DataError, UnreadableError, *((ValueError,) if kind in ("safetensors", "onnx") else ()))
    told = {"read": 0, "refused": 0}
    for number in range(count):
        file, change = list(sound)[generator.integers(len(sound))], ""
        try:
            if is_absurd:
                file, change = structures.CHANGES[kind](place, generator)
            else:
                file.write_bytes(damaged(sound[file], generator))
        except (structures.Unchanged, RecursionError):
            pass
        signal.alarm(SECONDS)
        try:
            read()
            told["read"] += 1
        except refusals as error:
            assert str(error)
            told["refused"] += 1
        except BaseException:
            kept = Path(tempfile.gettempdir()) / f"fuzz_{kind.replace(' ', '_')}_{seed}_{number}{file.suffix}"
            shutil.copy(file, kept)
            print(f"{kind}: mutation {number} of {file.relative_to(place)} {change}, kept as {kept}", file=sys.stderr)
            raise
        finally:
            signal.alarm(0)
            for changed in [*sound] if is_absurd else [file]:
                changed.write_bytes(sound[changed])
    return told


def run(count: int, kinds: list[str], seed: int = 0) -> None:
    """Print, for each format, what became of its files; fails on the first wrong answer."""
    warnings.simplefilter("ignore")

    def late(*_: object) -> None:
        raise TimeoutError(f"no answer in {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    with tempfile.TemporaryDirectory() as place:
        kinds = [kind for kind in kinds or READERS if importlib.util.find_spec(needed(kind.removeprefix(ABSURD)))]
        for kind in kinds:
            fuzz(kind, 0, seed, Path(place, f"warm {kind}"))
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        seen: list[str] = []
        watch(Path(place), seen)
        told = {kind: fuzz(kind, count, seed, Path(place, kind)) for kind in kinds}
        assert not seen, seen[:10]
    print(json.dumps(told))


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2:], int(os.environ.get("FUZZ_SEED", "0")))
