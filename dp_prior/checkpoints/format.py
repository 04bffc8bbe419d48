"""One checkpoint is one directory of safetensors and JSON files under a manifest, and appears whole or not at all.

The protocol: write all files in a temporary directory beside the target, sync each file, write the manifest with sizes
and SHA-256 hashes, sync the manifest and the directory, rename, sync the parent. Hashing runs in parallel with writing,
over the same memory, and nothing is serialised twice. Nothing here can run code: no file is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic import Field, ValidationError
from torch import Tensor

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.direct import write_file
from dp_prior.checkpoints.documents import CONFIG, LARGEST_COUNT, LARGEST_DOCUMENT, SPEC, parse_document
from dp_prior.checkpoints.errors import CheckpointError, DamagedError, NewerFormatError
from dp_prior.checkpoints.reading import Patience, told_apart
from dp_prior.checkpoints.snapshot import (
    LARGEST_HEAD,
    HeldSnapshot,
    Snapshot,
    allocate,
    file_pieces,
    file_tensors,
    nonfinite,
    parse_head,
)
from dp_prior.config import Config
from dp_prior.files.durable import sync_directory, temporary_directory
from dp_prior.files.json_text import encode_document, seal, unseal
from dp_prior.files.regular_files import open_regular, read_small
from dp_prior.files.temporary import temporary_beside

FORMAT = 1
MANIFEST = "manifest.json"
QUARANTINE = "quarantine_"  # begins the name of a checkpoint with a tensor that is not finite
MODEL_FILES = ("model.safetensors", CONFIG, SPEC)  # enough for inference
TRAINING = "training.safetensors"  # what resuming needs besides the documents
LARGEST_MANIFEST = 4 << 20  # bytes; bounds the memory that a hostile file can take

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\.(safetensors|json)")
_BYTES_HASHED = 8 << 20  # bytes that a thread reads ahead of the hash
_READING_THREADS = 3  # mapping fresh memory takes as long as hashing, so that hashing is the bottleneck
_MOST_METRICS = 100_000
_MOST_FILES = 10_000


class FileEntry(Config):
    """The manifest's entry of one file."""

    size: int = Field(ge=0, le=LARGEST_COUNT)
    """Bytes."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the whole file."""


class Manifest(Config):
    """Makes a directory a checkpoint: lists the files, and what retention and resume need to know."""

    format: int = Field(default=FORMAT, ge=1)
    """Version of the layout."""

    sequence: int = Field(ge=1, le=LARGEST_COUNT)
    """Number of the save within the run; the newest checkpoint has the largest."""

    step: int = Field(ge=0, le=LARGEST_COUNT)
    """Optimizer steps taken."""

    samples_seen: int = Field(ge=0, le=LARGEST_COUNT)
    """Training samples consumed over all ranks."""

    world_size: int = Field(ge=1, le=LARGEST_COUNT)
    """Ranks that trained."""

    config_hash: str | None = None
    """SHA-256 of the resolved configuration; null if the checkpoint holds none."""

    metrics: dict[str, float | None] = Field(default={}, max_length=_MOST_METRICS)
    """Metrics at this step; null where a value was not a finite number."""

    monitor: str | None = None
    """Name of the metric that selects the best checkpoint."""

    mode: Literal["min", "max"] = "min"
    """Whether small or large values of `monitor` are good."""

    nonfinite: list[str] = []
    """Tensors that hold NaN or infinity, as file:name. A checkpoint with such a tensor is never latest or best."""

    saved_at: str
    """UTC time of the save, ISO 8601."""

    files: dict[str, FileEntry] = Field(default={}, max_length=_MOST_FILES)
    """Every file of the checkpoint except the manifest."""

    @property
    def folder(self) -> str:
        """Name of the checkpoint's directory; where the name is taken, one of `numbered`."""
        return f"step_{self.step:08d}"

    @property
    def progress(self) -> Progress:
        """The clock at the save."""
        return Progress(self.samples_seen, self.step)

    @property
    def value(self) -> float | None:
        """The monitored metric; None if it was not measured."""
        return None if self.monitor is None else self.metrics.get(self.monitor)

    @property
    def can_be_resumed(self) -> bool:
        """Whether the checkpoint holds a training state, and not only the files for inference."""
        return TRAINING in self.files

    def only(self, names: Container[str] | None) -> Manifest:
        """The manifest of a copy that holds only the files in `names`; None for all files."""
        entries = {name: entry for name, entry in self.files.items() if names is None or name in names}
        return self.model_copy(update={"files": entries})

    def encode(self) -> bytes:
        """The content of `manifest.json`."""
        return seal(self.model_dump(mode="json"))


def write_checkpoint(directory: Path, snapshot: Snapshot, manifest: Manifest) -> tuple[Path, Manifest]:
    """Write a checkpoint durably; when this returns it survives a power cut.

    The snapshot must not change during the call; a `HeldSnapshot` is written without a copy. A checkpoint with a tensor
    that is not finite is written for inspection only, as `quarantine_NAME`.

    Args:
        directory: final name, which must not exist.
        manifest: everything but `files` and `nonfinite`, which are filled in.

    Returns:
        The final directory and the manifest in it.

    Raises:
        OSError: the disk is full, read-only or failing. Nothing is left behind; older checkpoints are unchanged.
        ValueError: a name or dtype in the snapshot cannot be written.
        CheckpointError: a document is too large.
    """
    for name in [*snapshot.tensors, *snapshot.documents]:
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise ValueError(f"{name!r} cannot name a file of a checkpoint; expected plain NAME.safetensors or .json")
    held = snapshot if isinstance(snapshot, HeldSnapshot) else snapshot.copy()
    with temporary_directory(directory) as temporary:
        manifest = _write_files(temporary, held, manifest)
        write_file(temporary / MANIFEST, [memoryview(manifest.encode())])
        sync_directory(temporary)
        if manifest.nonfinite:
            directory = unused(directory.with_name(f"{QUARANTINE}{directory.name}"))
        os.rename(temporary, directory)
    sync_directory(directory.parent)
    return directory, manifest


def delete_checkpoint(directory: Path) -> None:
    """Rename to a temporary name, delete the manifest, then the rest: a partial checkpoint never looks complete."""
    doomed = temporary_beside(directory)
    os.rename(directory, doomed)
    sync_directory(directory.parent)
    (doomed / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(doomed)


def _write_files(directory: Path, snapshot: HeldSnapshot, manifest: Manifest) -> Manifest:
    """Write while two other threads hash and look for NaN; the largest file is hashed first as it takes longest."""
    contents: dict[str, list[memoryview]] = {
        name: [memoryview(encode_document(content))] for name, content in snapshot.documents.items()
    }
    for name, [data] in contents.items():
        if len(data) > LARGEST_DOCUMENT:
            limit = f"a document of a checkpoint has at most {LARGEST_DOCUMENT}"
            raise CheckpointError(f"cannot save {directory / name}: it would have {len(data)} bytes; {limit}")
    contents |= {name: list(file_pieces(image)) for name, image in snapshot.images.items()}
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
        nonfinite_keys = [f"{file}:{key}" for file, search in bad.items() for key in search.result()]
    return manifest.model_copy(update={"files": files, "nonfinite": nonfinite_keys})


def _sha256(pieces: Iterable[memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def numbered(name: str) -> Iterator[str]:
    """The names of checkpoints of one step: `name`, `name_2`, `name_3`, ..."""
    yield name
    for number in itertools.count(2):
        yield f"{name}_{number}"


def unused(path: Path) -> Path:
    """`path`, or the first of `path_2`, `path_3`, ... that does not exist."""
    return next(candidate for candidate in map(path.with_name, numbered(path.name)) if not os.path.lexists(candidate))


def read_manifest(directory: Path) -> Manifest:
    """Read the manifest of a checkpoint and compare the sizes of its files; cheap, since no tensor is touched.

    Raises:
        DamagedError: the manifest is missing or altered, or a file is missing or of another size.
        UnreadableCheckpointError: the checkpoint cannot be read at the moment.
        GoneError: the directory was deleted or replaced meanwhile.
    """
    return Patience()(lambda: try_manifest(directory))


def try_manifest(directory: Path) -> Manifest:
    """Read a manifest like `read_manifest`, without retries."""
    with told_apart(directory, MANIFEST):
        manifest = parse_manifest(read_small(directory / MANIFEST, LARGEST_MANIFEST), directory)
    for name, entry in manifest.files.items():
        with told_apart(directory, name):
            status = os.stat(directory / name)
            if not stat.S_ISREG(status.st_mode) or status.st_size != entry.size:
                raise DamagedError(directory, f"{name} has {status.st_size} bytes, expected {entry.size}")
    return manifest


def parse_manifest(data: bytes, directory: Path | str) -> Manifest:
    """Parse a manifest, which may list only plain names of safetensors and JSON files.

    Args:
        directory: the checkpoint's, for messages.

    Raises:
        DamagedError: the manifest is invalid or was altered.
        NewerFormatError: a newer version wrote it.
    """
    try:
        content = unseal(data)
    except ValueError as error:
        raise DamagedError(directory, f"{MANIFEST} cannot be used: {error}") from None
    version = content.get("format")
    if isinstance(version, int) and version > FORMAT:
        problem = f"it has format {version}, but this dp_prior reads up to {FORMAT}; install a newer one"
        raise NewerFormatError(directory, problem)
    if unknown := content.keys() - Manifest.model_fields.keys():  # cheaper than a validation error for each key
        raise DamagedError(directory, f"{MANIFEST} has an unknown key {min(unknown)!r}")
    files = content.get("files")
    if isinstance(files, dict) and len(files) > _MOST_FILES:
        raise DamagedError(directory, f"{MANIFEST} lists {len(files)} files, expected at most {_MOST_FILES}")
    try:
        manifest = Manifest.model_validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DamagedError(directory, f"{MANIFEST} is not a manifest: {place}: {first['msg']}") from None
    for name in manifest.files:
        if not _FILE_NAME.fullmatch(name) or name == MANIFEST:
            raise DamagedError(directory, f"{MANIFEST} lists {name!r}, which is no file name of a checkpoint")
    return manifest


def verify(directory: Path, manifest: Manifest, patience: Patience | None = None) -> None:
    """Compare the hashes of all files, and check that each is a valid file of its type, safetensors or JSON.

    Raises:
        DamagedError, UnreadableCheckpointError, GoneError: see `read_manifest`.
    """

    def compare(name: str, entry: FileEntry) -> None:
        if name.endswith(".json"):
            _read_file(directory, name, entry)
        else:  # without keeping the content
            with _opened(directory, name, entry) as file:
                _compare(directory, name, entry, hashlib.file_digest(file, "sha256").hexdigest())

    _each(directory, manifest.files, compare, patience or Patience())


def read_checkpoint(directory: Path, files: Iterable[str] | None = None) -> Snapshot:
    """Read a checkpoint, or only some of its files, after comparing sizes and hashes. The tensors own their memory.

    Raises:
        DamagedError, UnreadableCheckpointError, GoneError: see `read_manifest`.
        FileNotFoundError: the directory does not exist, or the manifest does not list one of `files`.
    """
    directory, patience = Path(directory), Patience()
    if not directory.is_dir():
        raise FileNotFoundError(f"no checkpoint at {directory}: there is no such directory")
    manifest = patience(lambda: try_manifest(directory))
    names = list(manifest.files if files is None else files)
    for name in names:
        if name not in manifest.files:
            listed = ", ".join(manifest.files)
            raise FileNotFoundError(f"checkpoint {directory} has no {name}; it holds {listed}")
    snapshot = Snapshot({name: {} for name in names if name.endswith(".safetensors")})

    def read(name: str, entry: FileEntry) -> None:
        into = snapshot.tensors if name in snapshot.tensors else snapshot.documents
        into[name] = _read_file(directory, name, entry)

    _each(directory, {name: manifest.files[name] for name in names}, read, patience)
    return snapshot


def _each(
    directory: Path, files: dict[str, FileEntry], task: Callable[[str, FileEntry], None], patience: Patience
) -> None:
    """Run a task for each file in two threads, the largest first."""
    names = sorted(files, key=lambda name: -files[name].size)
    with told_apart(directory, "a file"), ThreadPoolExecutor(2, thread_name_prefix="checkpoint-verify") as pool:
        for _ in pool.map(lambda name: patience(lambda: task(name, files[name])), names):
            pass


def _read_file(directory: Path, name: str, entry: FileEntry) -> Any:
    """Tensors by name, or the content of a document. Sizes in the file are checked before memory is allocated."""
    with _opened(directory, name, entry) as file:
        image = allocate(entry.size)
        _compare(directory, name, entry, _read_and_hash(file.fileno(), image))
        return file_tensors(image) if name.endswith(".safetensors") else parse_document(name, image.numpy().tobytes())


@contextlib.contextmanager
def _opened(directory: Path, name: str, entry: FileEntry) -> Iterator[BinaryIO]:
    """A file whose size, and for tensors also its header, agrees with the manifest.

    Converts errors inside as `told_apart` does, and a ValueError, of a file of another type, to `DamagedError`.
    """
    with told_apart(directory, name), open_regular(directory / name) as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        if size != entry.size:
            raise DamagedError(directory, f"{name} has {size} bytes, expected {entry.size}")
        try:
            if name.endswith(".safetensors"):
                length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
                parse_head(os.pread(descriptor, 8 + (length if length <= LARGEST_HEAD else 0), 0), size)
            elif size > LARGEST_DOCUMENT:
                raise ValueError(f"it has {size} bytes, at most {LARGEST_DOCUMENT} are read")
            yield file
        except ValueError as error:
            kind = "a safetensors file" if name.endswith(".safetensors") else "a valid JSON document"
            raise DamagedError(directory, f"{name} is not {kind}: {error}") from None


def _compare(directory: Path, name: str, entry: FileEntry, digest: str) -> None:
    if digest != entry.sha256:
        raise DamagedError(directory, f"{name} does not have the SHA-256 of the manifest")


def _read_and_hash(descriptor: int, image: Tensor) -> str:
    """Fill `image`, (size,) uint8, from the start of a file; a few threads read ahead while this one hashes."""
    memory = memoryview(image.numpy())

    def read(start: int) -> memoryview:
        piece, count = memory[start : start + _BYTES_HASHED], 0
        while count < len(piece) and (received := os.preadv(descriptor, [piece[count:]], start + count)):
            count += received
        return piece[:count]

    starts = range(0, len(memory), _BYTES_HASHED)
    if len(starts) <= 1:
        return hashlib.sha256(read(0)).hexdigest()
    digest = hashlib.sha256()
    with ThreadPoolExecutor(_READING_THREADS, thread_name_prefix="checkpoint-read") as pool:
        for piece in pool.map(read, starts):
            digest.update(piece)
    return digest.hexdigest()
