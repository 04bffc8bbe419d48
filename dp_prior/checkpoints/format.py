"""One checkpoint is one directory of safetensors and JSON files under a manifest; it exists whole or not at all.

The protocol: write all files in a temporary directory beside the final one, sync each, write the manifest with sizes
and SHA-256 hashes, sync it and the directory, rename, sync the parent. Hashing runs beside the writing, over the same
memory, and nothing is serialised a second time. Nothing here can run code: there is no pickle on any path.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Container, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError
from torch import Tensor

from dp_prior.checkpoints.direct import write_file
from dp_prior.checkpoints.snapshot import Snapshot, allocate, file_pieces, file_tensors, nonfinite
from dp_prior.config import Config
from dp_prior.durable import encode_document, seal, sync_directory, temporary_beside, unseal

FORMAT = 1
MANIFEST = "manifest.json"
MODEL_FILES = ("model.safetensors", "config.json", "spec.json")  # what is needed to act
MOST_FILES = 1000  # of one checkpoint
LARGEST_MANIFEST = 16 << 20  # bytes

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\.(safetensors|json)")
_HASHED_AT_ONCE = 1 << 20  # bytes; still in the cache when they are hashed
_READ_AT_ONCE = 8 << 20  # bytes that a thread reads ahead of the hash
_READING_THREADS = 3  # mapping fresh memory takes as long as hashing does, so the hash is what remains


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, found or read."""


class DamagedError(CheckpointError):
    """A checkpoint whose files are not what its manifest says."""

    def __init__(self, path: Path | str, problem: str):
        self.path = path
        self.problem = problem
        super().__init__(f"checkpoint {path} is damaged: {problem}. Use another checkpoint of the run.")


class FileEntry(Config):
    """What the manifest says of one file."""

    size: int = Field(ge=0)
    """Bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the whole file."""


class Manifest(Config):
    """What makes a directory a checkpoint: its files, and what the run's bookkeeping is rebuilt from."""

    format: int = FORMAT
    """Version of the layout."""

    sequence: int = Field(ge=1)
    """Number of the save within the run; the newest checkpoint is the one with the largest."""

    step: int = Field(ge=0)
    """Optimizer steps taken."""

    samples_seen: int = Field(ge=0)
    """Training samples consumed over all ranks."""

    world_size: int = Field(ge=1)
    """Ranks that trained."""

    config_hash: str | None = None
    """SHA-256 of the resolved configuration; null if the checkpoint holds none."""

    metrics: dict[str, float | None] = {}
    """Metrics at this step; null where a value was not a finite number."""

    monitor: str | None = None
    """Name of the metric that selects the best checkpoint."""

    mode: Literal["min", "max"] = "min"
    """Whether small or large values of it are good."""

    nonfinite: list[str] = []
    """Tensors that hold NaN or infinity, as file:name. If there are any, this checkpoint is never latest or best."""

    saved_at: str
    """UTC time of the save, ISO 8601."""

    files: dict[str, FileEntry] = {}
    """Every file of the checkpoint but this one."""

    def only(self, names: Container[str]) -> Manifest:
        """The manifest of a copy that holds only those files."""
        return self.model_copy(update={"files": {name: one for name, one in self.files.items() if name in names}})

    def encode(self) -> bytes:
        """The content of `manifest.json`."""
        return seal(self.model_dump(mode="json"))


def write_checkpoint(directory: Path, snapshot: Snapshot, manifest: Manifest) -> tuple[Path, Manifest]:
    """Write a checkpoint durably; when this returns it survives a power cut.

    The snapshot must not change meanwhile. A checkpoint with a tensor that is not finite is written for inspection
    only, as `quarantine_NAME`.

    Args:
        directory: final name; it must not exist.
        manifest: everything but `files` and `nonfinite`, which are filled in.

    Returns:
        The final directory and the manifest in it.

    Raises:
        OSError: the disk is full, read-only, failing; nothing is left behind and older checkpoints are as they were.
    """
    for name in [*snapshot.tensors, *snapshot.documents]:
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise ValueError(f"{name!r} cannot name a file of a checkpoint; expected plain NAME.safetensors or .json")
    temporary = temporary_beside(directory)
    temporary.mkdir()
    try:
        manifest = _write_files(temporary, snapshot, manifest)
        write_file(temporary / MANIFEST, [memoryview(manifest.encode())])
        sync_directory(temporary)
        if manifest.nonfinite:
            directory = unused(directory.with_name(f"quarantine_{directory.name}"))
        os.rename(temporary, directory)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_directory(directory.parent)
    return directory, manifest


def _write_files(directory: Path, snapshot: Snapshot, manifest: Manifest) -> Manifest:
    """Write while two other threads hash and look for NaN; the largest file is hashed first as it takes longest."""
    contents: dict[str, list[memoryview]] = {
        name: [memoryview(encode_document(content))] for name, content in snapshot.documents.items()
    }
    contents |= {name: list(file_pieces(tensors)) for name, tensors in snapshot.tensors.items()}
    sizes = {name: sum(piece.nbytes for piece in pieces) for name, pieces in contents.items()}
    with ThreadPoolExecutor(2, thread_name_prefix="checkpoint-hash") as pool:
        hashes = {name: pool.submit(_sha256, contents[name]) for name in sorted(sizes, key=sizes.get, reverse=True)}
        bad = {name: pool.submit(nonfinite, tensors) for name, tensors in snapshot.tensors.items()}
        try:
            for name, pieces in contents.items():
                write_file(directory / name, pieces)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        files = {name: FileEntry(size=sizes[name], sha256=hashes[name].result()) for name in sorted(sizes)}
        named = [f"{file}:{key}" for file, found in bad.items() for key in found.result()]
    return manifest.model_copy(update={"files": files, "nonfinite": named})


def _sha256(pieces: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def unused(path: Path) -> Path:
    """`path`, or the first of `path_2`, `path_3`, ... that does not exist."""
    candidates = [path]
    while os.path.lexists(candidates[-1]):
        candidates.append(path.with_name(f"{path.name}_{len(candidates) + 1}"))
    return candidates[-1]


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a checkpoint and compare the sizes of its files; cheap, since no tensor is touched.

    Raises:
        DamagedError: there is none, it was altered, or a file is missing or of another size.
    """
    try:
        data = read_small(directory / MANIFEST)
    except (OSError, ValueError) as error:
        raise DamagedError(directory, f"{MANIFEST} cannot be used: {error}") from None
    manifest = parse_manifest(data, directory)
    for name, entry in manifest.files.items():
        try:
            status = os.stat(directory / name)
        except OSError as error:
            raise DamagedError(directory, f"{name} cannot be read: {error.strerror}") from None
        if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
            raise DamagedError(directory, f"{name} has {status.st_size} bytes, expected {entry.size}")
    return manifest


def parse_manifest(data: bytes, directory: Path | str) -> Manifest:
    """The manifest in these bytes; it lists only plain names of safetensors and JSON files.

    Args:
        directory: where it comes from, for messages.

    Raises:
        DamagedError: it is none, or it was altered.
        CheckpointError: it is of a newer version.
    """
    try:
        content = unseal(data)
    except ValueError as error:
        raise DamagedError(directory, f"{MANIFEST} cannot be used: {error}") from None
    version = content.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise CheckpointError(
            f"checkpoint {directory} has format {version}, but this dp_prior reads up to {FORMAT}; install a newer one"
        )
    listed = content.get("files")
    if isinstance(listed, dict) and len(listed) > MOST_FILES:
        raise DamagedError(directory, f"{MANIFEST} lists {len(listed)} files, expected at most {MOST_FILES}")
    unknown = next((key for key in content if key not in Manifest.model_fields), None)
    if unknown is not None:  # before pydantic, which collects an error for each
        raise DamagedError(directory, f"{MANIFEST} has the unknown key {unknown[:40]!r}")
    try:
        manifest = Manifest.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        raise DamagedError(directory, f"{MANIFEST} is not a manifest: {error.errors()[0]['msg']}") from None
    for name in manifest.files:
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise DamagedError(directory, f"{MANIFEST} lists {name!r}, which is no file name of a checkpoint")
    return manifest


def verify(directory: Path, manifest: Manifest, files: Iterable[str] | None = None) -> None:
    """Compare hashes, of all files or those named.

    Raises:
        DamagedError: a file is not what the manifest says.
    """
    names = sorted(manifest.files if files is None else files, key=lambda name: -manifest.files[name].size)
    _each(lambda name: _compare(directory, name, manifest.files[name], _hash_of_file), names)


def _each(task: Callable[[str], None], names: list[str]) -> None:
    if len(names) == 1:
        task(names[0])
        return
    with ThreadPoolExecutor(2, thread_name_prefix="checkpoint-verify") as pool:
        for _ in pool.map(task, names):
            pass


def read_checkpoint(directory: Path, files: Iterable[str] | None = None) -> Snapshot:
    """Read a checkpoint, or only some of its files, after comparing sizes and hashes. The tensors own their memory.

    Raises:
        DamagedError: a file is missing or is not what the manifest says.
        FileNotFoundError: there is no such directory, or the manifest lists no such file.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"no checkpoint at {directory}: there is no such directory")
    manifest = read_manifest(directory)
    wanted = list(manifest.files if files is None else files)
    for name in wanted:
        if name not in manifest.files:
            known = ", ".join(manifest.files)
            raise FileNotFoundError(f"checkpoint {directory} has no {name}; it holds {known}")
    snapshot = Snapshot({name: {} for name in wanted if name.endswith(".safetensors")})

    def read(name: str) -> None:
        size = manifest.files[name].size
        try:
            image = allocate(size)
        except (OSError, MemoryError, OverflowError) as error:
            raise CheckpointError(
                f"checkpoint {directory}: no memory for the {size} bytes of {name}: {error}"
            ) from None
        _compare(directory, name, manifest.files[name], lambda descriptor, size: _read_and_hash(descriptor, image))
        try:
            if name in snapshot.tensors:
                snapshot.tensors[name] = file_tensors(image)
            else:
                snapshot.documents[name] = json.loads(image.numpy().tobytes())
        except (ValueError, RecursionError) as error:
            kind = "a safetensors file" if name in snapshot.tensors else "JSON"
            raise DamagedError(directory, f"{name} is not {kind}: {error}") from None

    _each(read, sorted(wanted, key=lambda name: -manifest.files[name].size))
    return snapshot


def _compare(directory: Path, name: str, entry: FileEntry, hash_of: Callable[[int, int], str]) -> None:
    """Compare the hash of a file, that `hash_of` makes of its descriptor and size, with that of the manifest."""
    try:
        descriptor = os.open(directory / name, os.O_RDONLY)
        try:
            found = hash_of(descriptor, entry.size)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DamagedError(directory, f"{name} cannot be read: {error.strerror}") from None
    if found != entry.sha256:
        raise DamagedError(directory, f"{name} does not have the SHA-256 of the manifest")


def _hash_of_file(descriptor: int, size: int) -> str:
    digest, memory = hashlib.sha256(), memoryview(bytearray(min(size, _HASHED_AT_ONCE)))
    while count := os.readv(descriptor, [memory]):
        digest.update(memory[:count])
    return digest.hexdigest()


def _read_and_hash(descriptor: int, image: Tensor) -> str:
    """Fill `image`, (size,) uint8, from the start of a file; a few threads read ahead of the one that hashes."""
    memory = memoryview(image.numpy())

    def read(start: int) -> memoryview:
        piece, count = memory[start : start + _READ_AT_ONCE], 0
        while count < len(piece) and (more := os.preadv(descriptor, [piece[count:]], start + count)):
            count += more
        return piece[:count]

    starts = range(0, len(memory), _READ_AT_ONCE)
    if len(starts) <= 1:
        return hashlib.sha256(read(0)).hexdigest()
    digest = hashlib.sha256()
    with ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="checkpoint-read") as pool:
        for piece in pool.map(read, starts):
            digest.update(piece)
    return digest.hexdigest()


def read_small(path: Path, most: int = LARGEST_MANIFEST) -> bytes:
    """The content of a small regular file; never blocks, whatever lies there.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or larger than `most` bytes.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening a FIFO would block
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not a regular file")
        data = b""
        while len(data) <= most and (piece := os.read(descriptor, most + 1 - len(data))):
            data += piece
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise ValueError(f"larger than {most} bytes")
    return data
