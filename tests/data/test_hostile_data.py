"""Hostile data end in one clear error, in bounded time and memory; what the system refuses to read is no damage."""

import errno
import json
import os
import shutil
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dp_prior.data import files as files_module
from dp_prior.data import parquet_sizes
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.formats.robomimic import RobomimicStoreConfig
from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.parquet_sizes import check_columns_fit
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
from tests import forks
from tests.data.embeddings.folders import embeddings, write_npy
from tests.data.formats.lerobot import test_dataset as test_lerobot
from tests.messages import naming, told

PROGRAM = """
import resource, sys, time
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.errors import DataError, UnreadableError
from dp_prior.data.recorded.trajectories import TrajectoriesConfig
import torch, zarr, pyarrow.parquet
from benchmarks import memory
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (3 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for line in open(sys.argv[1]):
    name, kind, text = line.split(" ", 2)
    begun, before = time.process_time(), memory.resident()
    try:
        if kind == "folder":
            FolderConfig.from_json(text).create().scan()
        else:
            TrajectoriesConfig.from_json(text).create(2, 1, 1)
        found = "nothing"
    except DataError as error:
        found = "DataError " + str(error)[:400].replace(chr(10), " ")
    except Exception as error:
        found = f"{type(error).__name__} {str(error)[:400]!r}"
    grown = (memory.peak() - before) >> 20
    print(name, f"{time.process_time() - begun:.1f}", grown, found, sep="|", flush=True)
"""


def npz(path, members=(), **change):
    arrays = {"state": np.ones((6, 2)), "action": np.ones((6, 2)), "episode_ends": np.array([3, 6])}
    np.savez(path, **{**arrays, **change})
    with zipfile.ZipFile(path, "a") as archive:
        for name, content, size in members:
            archive.writestr(name, content)
            archive.infolist()[-1].file_size = size or len(content)
    return {"type": "npz", "path": str(path)}


def npy_header(shape, dtype="<f8") -> bytes:
    from io import BytesIO

    stream = BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def zarr_set(path, version=2, **state):
    """A replay buffer whose metadata of `state` are changed afterwards."""
    import zarr

    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    group.create_array("data/state", data=np.ones((6, 2)), chunks=(3, 2))
    group.create_array("data/action", data=np.ones((6, 2)))
    group.create_array("meta/episode_ends", data=np.array([3, 6]))
    document = path / "data" / "state" / (".zarray" if version == 2 else "zarr.json")
    content = json.loads(document.read_text())
    for name, value in state.items():
        if name == "chunk_shape":
            content["chunk_grid"]["configuration"]["chunk_shape"] = value
        else:
            content[name] = value
    document.write_text(json.dumps(content))
    return {"type": "zarr", "path": str(path)}


def lerobot(path, **info):
    test_lerobot.WRITERS["v2.1"](path)
    document = path / "meta" / "info.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), **info}))
    return {"type": "lerobot", "path": str(path)}


def replace_by_fifo(path):
    path.unlink()
    os.mkfifo(path)


def cases(place) -> dict[str, tuple[str, dict, list[tuple]]]:
    """Kind, record and what the error may name, by name."""
    many = [(f"{number:09d}.npy", b"", None) for number in range(10_050)]
    keys = {f"key {number}": {"dtype": "float32", "shape": [1]} for number in range(150_000)}
    found = {
        "zarr-rows": (
            "zarr",
            zarr_set(place / "a", shape=[10**12, 2]),
            [("chunks", "missing"), ("decode",), ("declares",)],
        ),
        "zarr-rows-fill": (
            "zarr",
            zarr_set(place / "b", shape=[10**12, 2]) | {"missing_chunks": "fill"},
            [("16,000,000,000,000 bytes", "machine")],
        ),
        "zarr-chunks": ("zarr", zarr_set(place / "c", chunks=[10**12, 2]), [("16,000,000,000,000 bytes",)]),
        "zarr-chunks-v3": (
            "zarr",
            zarr_set(place / "d", version=3, chunk_shape=[10**9, 1]),
            [("decode",)],
        ),
        "zarr-tiny-chunks": (
            "zarr",
            zarr_set(place / "e", shape=[10**7, 1], chunks=[1, 1]),
            [("chunks", "missing"), ("decode",)],
        ),
        "zarr-axes": (
            "zarr",
            zarr_set(place / "f", shape=[10**12] * 200_000, chunks=[1] * 200_000),
            [("shape", "[1000000000000, ")],
        ),
        "zarr-zero": ("zarr", zarr_set(place / "g", chunks=[0, 0]), [("chunks", "(0, 0)", "1 or more")]),
        "npz-header": (
            "npz",
            npz(place / "h.npz", [("more.npy", npy_header((10**12, 2)), None)]),
            [("more.npy", "0 bytes", 16000000000000)],
        ),
        "npz-directory": (
            "npz",
            npz(place / "i.npz", [("more.npy", npy_header((10**12,)), 8 * 10**12 + 128)]),
            [("declares",), ("holds",)],
        ),
        "npz-keys": ("npz", npz(place / "j.npz", many), [("10053 arrays", "most 10000")]),
        "lerobot-width": (
            "lerobot",
            lerobot(place / "k", data_path="data/{episode_index:0999999999d}.parquet"),
            [("no such", "episode list")],
        ),
        "lerobot-outside": (
            "lerobot",
            lerobot(place / "l", data_path="data/../../{episode_index}"),
            [("leaves", "data set")],
        ),
        "lerobot-absolute": (
            "lerobot",
            lerobot(place / "m", data_path="/etc/{episode_index}"),
            [("leaves", "data set")],
        ),
        "lerobot-keys": ("lerobot", lerobot(place / "n", features=keys), [("150000 features", "at most")]),
        "lerobot-document": (
            "lerobot",
            lerobot(place / "o", note="a" * (17 << 20)),
            [("bytes", "at most")],
        ),
    }
    for name in ("zarr-fifo-chunk", "zarr-fifo-metadata"):
        record = zarr_set(place / name)
        target = ".zarray" if name.endswith("metadata") else "0.0"
        replace_by_fifo(place / name / "data" / "state" / target)
        found[name] = ("zarr", record, [("named pipe", "regular file")])
    for name, target in (("info", "meta/info.json"), ("episodes", "meta/episodes.jsonl")):
        record = lerobot(place / f"fifo {name}")
        replace_by_fifo(place / f"fifo {name}" / target)
        found[f"lerobot-fifo-{name}"] = ("lerobot", record, [("named pipe",)])
    record = lerobot(place / "fifo column")
    replace_by_fifo(next((place / "fifo column" / "data").glob("*/*.parquet")))
    found["lerobot-fifo-column"] = ("lerobot", record, [("named pipe",)])
    os.mkfifo(place / "pipe.npz")
    found["npz-fifo"] = ("npz", {"type": "npz", "path": str(place / "pipe.npz")}, [("pipe.npz", "no such")])
    folder = write_npy(place / "img", embeddings(8), [4, 4])
    replace_by_fifo(folder / "img_emb_01.npy")
    found["embeddings-fifo"] = ("folder", {"path": str(folder)}, [("img_emb_01.npy", "named pipe")])
    folder = write_npy(place / "huge", embeddings(8), [4, 4])
    (folder / "img_emb_01.npy").write_bytes(npy_header((10**12, 6), "<f4"))
    found["embeddings-header"] = ("folder", {"path": str(folder)}, [("img_emb_01.npy", "header")])
    table = pa.table({"embedding": pa.array([[1.0, 2.0]] * 4)})
    (place / "table").mkdir()
    parquet.write_table(table, place / "table" / "0.parquet")
    os.mkfifo(place / "table" / "1.parquet")
    found["parquet-fifo"] = (
        "folder",
        {"path": str(place / "table"), "format": "parquet"},
        [("1.parquet", "named pipe")],
    )
    return found


def record_of(kind: str, record: dict) -> dict:
    if kind == "folder":
        return record
    obs = "observation.state" if kind == "lerobot" else "state"
    return {"episodes": record, "obs": {"a": {"key": obs}}, "action": {"key": "action"}}


@pytest.mark.promise("K8", "K12")
def test_hostile_data_are_refused_in_bounded_time_and_memory(tmp_path):
    """All cases in one process that may take 3 GB of addresses; none may take 10 s of the CPU or 700 MB."""
    wanted = cases(tmp_path)
    lines = [f"{name} {kind} {json.dumps(record_of(kind, record))}" for name, (kind, record, _) in wanted.items()]
    (tmp_path / "cases").write_text("\n".join(lines))
    done = forks.call(["-c", PROGRAM, tmp_path / "cases"])
    results = {line.split("|", 1)[0]: line.split("|", 3)[1:] for line in done.stdout.splitlines()}
    assert list(results) == list(wanted), done.stderr[-2000:]
    problems = []
    for name, (_, _, ways) in wanted.items():
        seconds, grown, found = results[name]
        if not found.startswith("DataError") or not any(told(found, *parts) for parts in ways):
            problems.append(f"{name}: {found}")
        if float(seconds) > 10 or int(grown) > 700:
            problems.append(f"{name}: {seconds} s, {grown} MB")
    assert not problems, "\n".join(problems)


REFUSALS = [errno.EACCES, errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE]


@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", ["npz", "zarr", "lerobot", "npy folder", "parquet folder", "manifest"])
def test_what_the_system_refuses_to_read_is_no_damage(tmp_path, kind, code, monkeypatch):
    """The error names the file and keeps the number, so that a job may be tried again."""
    records = {
        "npz": lambda: npz(tmp_path / "a.npz"),
        "zarr": lambda: zarr_set(tmp_path / "a"),
        "lerobot": lambda: lerobot(tmp_path / "a"),
    }
    if kind in records:
        record = records[kind]()

        def read():
            TrajectoriesConfig.from_json(json.dumps(record_of(kind, record))).create(2, 1, 1)
    elif kind == "manifest":
        config = TrajectoriesConfig.from_json(json.dumps(record_of("npz", npz(tmp_path / "a.npz"))))
        integrity = config.integrity(tmp_path)
        integrity.note([tmp_path / "a.npz"])
        read = integrity.check
    else:
        folder = write_npy(tmp_path / "img", embeddings(8), [4, 4])
        if kind == "parquet folder":
            parquet.write_table(pa.table({"embedding": [[1.0]]}), folder / "a.parquet")

        def read():
            FolderConfig(path=str(folder), format=kind.split()[0]).create()

    read()  # before, it can be read

    def refuse(path, *arguments, **named):
        raise OSError(code, os.strerror(code), str(path))

    import io
    import zipfile as zip_module

    monkeypatch.setattr(os, "open", refuse)
    if kind == "npz":
        monkeypatch.setattr(zip_module.io, "open", refuse)
        monkeypatch.setattr(io, "open", refuse)
    with pytest.raises(UnreadableError) as caught:
        read()
    assert caught.value.errno == code and str(tmp_path) in str(caught.value)


def constant_sets(place):
    """By format a store of one key `frames`, whose bytes are a thirtieth of its values or fewer, and these values."""
    frames, ends = np.zeros((60, 48, 64, 3), np.uint8), np.array([30, 60])
    np.savez_compressed(place / "a.npz", frames=frames, action=frames[:, 0, 0], episode_ends=ends)
    yield NpzStoreConfig(path=place / "a.npz").create(), "frames", frames, place / "a.npz"
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(str(place / "a.zarr"), mode="w", zarr_format=2)
    group.create_array("data/frames", data=frames, chunks=(20, 48, 64, 3), config={"write_empty_chunks": True})
    group.create_array("meta/episode_ends", data=ends)
    yield ZarrStoreConfig(path=place / "a.zarr").create(), "frames", frames, place / "a.zarr" / "data" / "frames"
    h5py = pytest.importorskip("h5py")
    with h5py.File(place / "a.hdf5", "w") as file:
        for number in range(2):
            demonstration = file.create_group(f"data/demo_{number}")
            demonstration["actions"] = np.zeros((30, 2))
            demonstration.create_dataset("frames", data=frames[:30], compression="gzip", chunks=(30, 48, 64, 3))
    yield RobomimicStoreConfig(path=place / "a.hdf5").create(), "frames", frames, place / "a.hdf5"


@pytest.mark.promise("K12")
def test_constant_data_are_honest_and_memory_is_the_bound(tmp_path, monkeypatch):
    """A file of equal frames compresses like a bomb; it is read where it fits into memory, in every format."""
    for store, key, values, where in constant_sets(tmp_path):
        files = [where] if where.is_file() else [file for file in where.rglob("*") if file.is_file()]
        assert sum(file.stat().st_size for file in files) < values.nbytes / 30, where
        np.testing.assert_array_equal(store.read(key), values)
        with monkeypatch.context() as less:
            less.setattr(files_module, "free_memory_bytes", lambda values=values: values.nbytes - 1)
            with pytest.raises(DataError, match=naming(f"{values.nbytes:,} bytes", f"{values.nbytes - 1:,} bytes")):
                store.read(key)
            source = store.frames(key, np.array([30, 60]))  # frames are read block by block
            assert sum(len(block) for part in source.parts for block in source.read(part, 0)) == 60


LONG, ROWS = 20_000_000, 45
"""Letters of a text and its repeats: 0.9 GB, of which a file holds the text once, compressed to a kilobyte."""


def write_repeated(path, is_prefix):
    """An episode, texts, captions, tasks and labels in one table, whose one long text is in a dictionary or a prefix of
    all after it; pictures are in a dictionary."""
    chosen = pa.array([0] * ROWS, pa.int32())
    texts = pa.DictionaryArray.from_arrays(chosen, ["x" * LONG])
    picture = pa.DictionaryArray.from_arrays(chosen, pa.array([b"x" * (1 if is_prefix else LONG)]))
    pictures = pa.StructArray.from_arrays([picture, pa.nulls(ROWS, pa.string())], ["bytes", "path"])
    numbers = {"state": np.arange(ROWS) * 0.1, "action": np.arange(ROWS) * 0.2, "task_index": np.arange(ROWS)}
    table = pa.table({**numbers, "task": texts.cast(pa.string()) if is_prefix else texts, "image": pictures})
    options = {"use_dictionary": ["task", "image.bytes"]}
    if is_prefix:
        options = {"use_dictionary": False, "column_encoding": {"task": "DELTA_BYTE_ARRAY"}}
    parquet.write_table(table, path, compression="zstd", store_schema=False, **options)


def parquet_doors(place) -> dict[str, str]:
    """By name, the expression that reads texts of a parquet file: of every door, and in both encodings that repeat."""
    doors = {}
    for encoding in ("dictionary", "prefixes"):
        path = place / f"{encoding}.parquet"
        write_repeated(path, encoding == "prefixes")
        doors[f"{encoding} episodes"] = f"TableEpisode(Path({str(path)!r})).layout"
        doors[f"{encoding} texts"] = f"read_table(Path({str(path)!r}), 'task')"
        doors[f"{encoding} captions"] = f"sum(1 for _ in read_columns({str(path)!r}, ['task'], True))"
        data_set = test_lerobot.WRITERS["v3.0"](place / encoding)
        shutil.copy(path, data_set / "meta/tasks.parquet")
        doors[f"{encoding} tasks"] = f"LeRobotStoreConfig(path={str(data_set)!r}).create().meta.tasks()"
        doors[f"{encoding} labels"] = f"_labels(find_files({str(path)!r}, ('.parquet',)), 'task', None)"
    record = f"ParquetImagesConfig(path={str(place / 'dictionary.parquet')!r})"
    doors["pictures"] = f"{record}.create(labelled=False, uniform=True)"
    doors["camera"] = f"rows_without_picture(Path({str(place / 'dictionary.parquet')!r}), 'image')"
    return doors


DOORS = """
import json, resource, sys, time
from pathlib import Path
import pyarrow.parquet
from benchmarks import memory
from dp_prior.data.embeddings.metadata import read_columns, read_table
from dp_prior.data.errors import DataError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior.data.formats.lerobot.frames import rows_without_picture
from dp_prior.data.formats.table_file import TableEpisode
from dp_prior.data.found_files import find_files
from dp_prior.data.pictures.parquet import ParquetImagesConfig, _labels
limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + (3 << 30)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
for name, read in json.load(open(sys.argv[1])).items():
    begun, before = time.process_time(), memory.resident()
    try:
        answer = f"read {str(eval(read))[:40]}"
    except DataError as error:
        answer = "DataError " + str(error)[:600].replace(chr(10), " ")
    except Exception as error:
        answer = f"{type(error).__name__} {str(error)[:400]!r}"
    grown = (memory.peak() - before) >> 20
    print(name, f"{time.process_time() - begun:.1f}", grown, answer, sep="|", flush=True)
"""


@pytest.mark.slow
@pytest.mark.promise("K8", "K12")
def test_one_long_text_that_a_parquet_file_repeats_takes_no_memory_at_any_door(tmp_path):
    """Each door in one process; a camera's rows without a picture are none, and are counted a few at a time."""
    doors = parquet_doors(tmp_path)
    (tmp_path / "doors").write_text(json.dumps(doors))
    done = forks.call(["-c", DOORS, tmp_path / "doors"])
    results = {line.split("|", 1)[0]: line.split("|", 3)[1:] for line in done.stdout.splitlines()}
    assert list(results) == list(doors), done.stderr[-2000:]
    problems = []
    for name, (seconds, grown, answer) in results.items():
        if not (answer.startswith("DataError") or (name == "camera" and answer == "read []")):
            problems.append(f"{name}: {answer}")
        if float(seconds) > 10 or int(grown) > 700:
            problems.append(f"{name}: {seconds} s, {grown} MB, {answer}")
    assert not problems, "\n".join(problems)


def test_honest_texts_are_read_as_they_are_in_every_encoding(tmp_path):
    """Many texts of many lengths, some of them long and repeated: in batches the same as at once."""
    draws = np.random.default_rng(0)
    letters = "".join(map(chr, draws.integers(97, 123, 2_000_000)))
    texts = [letters[:length] for length in draws.integers(0, 40_000, 300).tolist()] * 10
    for options in ({}, {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}}):
        table = pa.table({"text": texts, "number": range(len(texts))})
        parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2000, **options)
        with open(tmp_path / "a.parquet", "rb") as stream:
            footer = check_columns_fit("a", stream, None)
            for rows_at_once in (footer.rows_at_once, 70, 10**9):
                chosen = footer._replace(rows_at_once=rows_at_once)
                assert parquet_sizes.read_table("a", parquet.ParquetFile(stream), chosen).equals(table)
