"""Errors of reading a data set: they tell damage from a system that would not read. And bounds on what is read."""

from __future__ import annotations

import contextlib
import errno
import io
import math
import os
import threading
import tokenize
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy_format

from dp_prior.data.errors import DataError, MissingError, UnreadableError, UnwritableError
from dp_prior.files.regular_files import UnfitError

SYSTEM_REFUSALS = {
    *(errno.EACCES, errno.EPERM, errno.EIO, errno.EREMOTEIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN),
    *(errno.EBUSY, errno.EINTR, errno.ENODEV, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH),
    *(errno.ENETDOWN, errno.ENETUNREACH, errno.ECONNREFUSED, errno.ECONNRESET),
}
"""Errors that say nothing about the content of a file."""

VIDEOS = (".mp4", ".mkv", ".webm", ".avi", ".mov")
"""Endings of videos."""

Verify = Literal["sizes", "hashes"]
"""How files are compared with the manifest: by their sizes, or also by the hash of every byte."""

MOST_KEYS = 10_000
"""Most arrays or columns of a data set."""

MOST_ROW_BYTES = 1 << 25
"""Most bytes of one step of an array: a picture of 4096 x 2160 has 27 million."""

MOST_CHUNK_BYTES = 1 << 30
"""Most bytes that are decompressed at once for a smaller array."""

DEFLATE_RATIO, LARGEST_RATIO = 1100, 50_000
"""Bounds on what a byte decodes to: deflate reaches 1032; bzip2, the worst, about 45,000."""

GROUPS_OF_PROCESS, CONTROL_GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Where Linux lists the control groups of a process, and keeps their limits."""

GROUP_LIMITS = {"": "memory.max", "memory": "memory.limit_in_bytes"}
"""The file of a limit by the controller of its group, which version 2 leaves out."""

_POINTER = b"version https://git-lfs.github.com/spec/"

SLACK = 64 << 20
"""Bytes that an array may declare whatever is stored; few enough to do no harm."""


def raise_refusal(path: Path | str, error: Exception) -> None:
    """Raises UnreadableError if the system refused to read, memory included, rather than read something wrong; an
    UnwritableError, of a file that is made of what is read, is raised again."""
    if isinstance(error, (UnreadableError, UnwritableError)):
        raise error
    code = errno.ENOMEM if isinstance(error, MemoryError) else isinstance(error, OSError) and error.errno
    if code in SYSTEM_REFUSALS:
        lock = "; another process holds its lock, as HDF5 does while it writes" if code == errno.EAGAIN else ""
        raise UnreadableError(code, f"cannot be read now: {os.strerror(code)}{lock}", str(path)) from error


@contextlib.contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Report errors of the operating system while a file is read.

    Raises:
        UnreadableError: the system refused to read it.
        DataError: there is no such file, it is not regular, or too large.
    """
    try:
        yield
    except UnfitError as error:
        raise DataError(str(path), [error.problem]) from None
    except (OSError, MemoryError) as error:
        raise_refusal(path, error)
        raise DataError(str(path), [f"cannot be read: {error.strerror or error}"]) from None


@contextlib.contextmanager
def decoding(where: Path | str, problem: str = "cannot be read") -> Iterator[None]:
    """Report errors of a library while it decodes a file; on damaged ones libraries raise all kinds.

    Raises:
        UnreadableError: the system refused to read it.
        DataError: it is damaged.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise_refusal(where, error)
        if is_pointer(where):
            remedy = "run git lfs pull, or download it with hf download"
            raise DataError(str(where), [f"is a pointer of Git LFS, not the file itself: {remedy}"]) from None
        text = str(error) or type(error).__name__
        if "filter" in text or "lib/plugin" in text:
            text = f"{text}; for a filter of HDF5 install hdf5plugin and give --import hdf5plugin"
        raise DataError(str(where), [f"{problem}: {text}"]) from None


def is_pointer(path: Path | str) -> bool:
    """Whether a file is the text that Git LFS leaves in place of a file that was not downloaded."""
    if not os.path.isfile(path):  # a pipe without a writer would be waited for
        return False
    with contextlib.suppress(OSError), open(path, "rb") as stream:
        return stream.read(len(_POINTER)) == _POINTER
    return False


_LARGEST_HEADER = 1 << 20  # bytes; numpy refuses far smaller ones
_PIECE_BYTES = 1 << 20
_PARSING = threading.Lock()
"""numpy parses a header with `ast`, which raises SystemError in CPython 3.11 if threads do so at the same time."""


def npy_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether it is in Fortran order, and dtype of an array in .npy format; the stream is then at its values.

    Raises:
        ValueError: it is no such array.
    """
    version = npy_format.read_magic(stream)
    length, read = 2, npy_format.read_array_header_1_0
    if version != (1, 0):
        length, read = 4, npy_format.read_array_header_2_0
    field = stream.read(length)
    header = stream.read(min(int.from_bytes(field, "little"), _LARGEST_HEADER))
    with _PARSING:
        try:
            return read(io.BytesIO(field + header))
        except (SyntaxError, tokenize.TokenError, TypeError, RecursionError) as error:
            raise ValueError(f"its header cannot be parsed: {error}") from None


def map_npy(path: Path) -> np.ndarray:
    """The array of an `.npy` file, mapped into memory. Unlike `np.load`, it may be called by several threads.

    Raises:
        ValueError: it is no such file, or holds Python objects.
    """
    with open(path, "rb") as stream:
        shape, is_fortran, dtype = _numeric_header(stream)
        return np.memmap(path, dtype, "r", stream.tell(), shape, "F" if is_fortran else "C")


def load_npy(stream: BinaryIO) -> np.ndarray:
    """The array that a stream holds in .npy format. Unlike `np.load`, it may be called by several threads.

    Raises:
        ValueError: it is no such array, is cut off, or holds Python objects.
    """
    shape, is_fortran, dtype = _numeric_header(stream)
    values = np.empty(shape, dtype, "F" if is_fortran else "C")
    if values.nbytes:
        content, count = memoryview(values.reshape(-1, order="A").view(np.uint8)), 0
        while count < values.nbytes:  # in pieces: a member of an archive is read as bytes and then copied
            if not (read := stream.readinto(content[count : count + _PIECE_BYTES])):
                raise ValueError(f"it ends after {count:,} of {values.nbytes:,} bytes; copy it again")
            count += read
    return values


def load_npz(path: Path | BinaryIO, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by their names, all unless some are named. Unlike `np.load`, it may be called by
    several threads.

    Raises:
        BadZipFile, ValueError: the file is no archive of arrays, is damaged, or holds Python objects.
        KeyError: it lacks a named array.
    """
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        for name in _names(archive) if names is None else names:
            with archive.open(f"{name}.npy") as stream:
                arrays[name] = load_npy(stream)
    return arrays


def _names(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def _numeric_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype]:
    shape, is_fortran, dtype = npy_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never decoded; save a plain numeric array")
    return shape, is_fortran, dtype


def check_is_file(path: Path, ending: str) -> None:
    """Raises DataError unless a data set that is one file is there."""
    if path.is_dir():
        raise DataError(str(path.absolute()), [f"is a folder; expected one {ending} file; check data.episodes.path"])
    if not path.is_file():
        raise MissingError(str(path.absolute()), ["no such file; check data.episodes.path"])


def check_count(where: Path | str, count: int, noun: str) -> None:
    """Raises DataError if a data set has more keys than any sane one."""
    if count > MOST_KEYS:
        raise DataError(str(where), [f"has {count} {noun}; expected at most {MOST_KEYS}"])


def memory_bytes() -> int:
    """Memory of this machine, which its processes share; less where a container or a scheduler's job is limited."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_group_limits()])


def _group_limits() -> Iterator[int]:
    """The limits of memory of the control groups around this process; strings, since every read of data asks."""
    top = str(CONTROL_GROUPS)
    with contextlib.suppress(OSError), open(GROUPS_OF_PROCESS) as lines:
        for _, controller, place in (line.rstrip("\n").split(":", 2) for line in lines):
            group = os.path.join(top, controller, place.strip("/")).rstrip("/")
            while controller in GROUP_LIMITS and len(group) >= len(top):
                with contextlib.suppress(OSError, ValueError), open(f"{group}/{GROUP_LIMITS[controller]}") as limit:
                    yield int(limit.read())  # ValueError where a group has no limit: "max"
                group = os.path.dirname(group)


def free_memory_bytes() -> int:
    """Memory that processes of this machine can still take; where the system does not say, all of it."""
    with contextlib.suppress(OSError, StopIteration, ValueError), open("/proc/meminfo") as lines:
        line = next(line for line in lines if line.startswith("MemAvailable"))
        return min(memory_bytes(), 1024 * int(line.split()[1]))
    return memory_bytes()


def check_array(
    where: str, shape: Sequence[int], dtype: np.dtype, *, stored: int | None = None, ratio: int = 1, chunk: int = 0
) -> None:
    """Refuse an array that no honest file holds, by its metadata: the one rule of sizes, of every format.

    A thousand equal pictures take a thousandth of their bytes, so compression alone is no sign of an attack. The bounds
    are what a stored byte can decode to, and the size of one step; `check_memory` adds the memory there is.

    Args:
        shape: (N, *feature_shape), with one row per step.
        stored: bytes of it on disk, and `ratio`, the most that its compression can achieve; None if unknown.
        chunk: bytes that are decompressed at once.

    Raises:
        DataError: the stored bytes cannot decode to the array, or a row or a chunk is too large.
    """
    total, row = math.prod(shape) * dtype.itemsize, math.prod(shape[1:]) * dtype.itemsize
    if stored is not None and max(total, chunk) > stored * ratio + SLACK:
        finding = f"declares {max(total, chunk):,} bytes, but only {stored:,} bytes are stored, which cannot decode to"
        raise DataError(where, [f"{finding} that; the metadata are damaged or the copy is incomplete"])
    if row > MOST_ROW_BYTES:
        raise DataError(where, [f"declares {row:,} bytes for each row; expected at most {MOST_ROW_BYTES:,}"])
    if chunk > max(total, MOST_CHUNK_BYTES):
        raise DataError(where, [f"is compressed in chunks of {chunk:,} bytes; expected at most {MOST_CHUNK_BYTES:,}"])
    if chunk:
        check_memory(where, chunk)


def check_memory(where: str, n_bytes: int) -> None:
    """Raises DataError for bytes that this machine has no memory for, before it is taken."""
    memory = free_memory_bytes()
    if n_bytes > memory:
        finding = f"declares {n_bytes:,} bytes, but this machine has {memory:,} bytes of memory free"
        raise DataError(where, [f"{finding}; the metadata are damaged, or the data set is too large to be held"])
