"""Durable writes: a file appears whole or not at all, even if the process is killed or the power fails.

Always in this order: write under a temporary name, sync the data, rename, sync the directory. A temporary name carries
host and process id of its owner, so that leftovers of a dead process can be told from work in progress.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import io
import json
import logging
import math
import os
import re
import shutil
import socket
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dp_prior.files.home import expanded

_TEMPORARY = re.compile(r"\.tmp_(?P<host>[A-Za-z0-9.-]+)_(?P<pid>[0-9]+)_[0-9a-f]{8}_")
_LONGEST_NAME = 255  # bytes; NAME_MAX of every common file system
_LARGEST_PID = 2**31 - 1
_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # network and user-space file systems
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)  # file systems and kernels without RENAME_EXCHANGE
_SEAL = re.compile(rb'(,?)\n  "sha256": "([0-9a-f]{64})"\n}\n\Z')
_SEAL_SIZE = 84  # bytes that the pattern matches at most

log = logging.getLogger(__name__)


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, durably; a reader sees the old content or the new one.

    A symbolic link at `path` is replaced; the link's target is not touched.

    Raises:
        OSError: names `path`. The old content is still there, unless only the sync of the directory failed.
    """
    try:
        with replacing(path) as temporary, open(temporary, "xb") as file:
            file.write(data)
    except OSError as error:
        raise _naming(path, error) from error


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet; see `creating`."""
    try:
        with creating(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _naming(path, error) from None


def _naming(path: Path, error: OSError) -> OSError:
    """The same error with the path that the user knows; an error of a write to a descriptor names no file."""
    return error if error.errno is None else OSError(error.errno, error.strerror, str(path))


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably. An existing directory is left unchanged."""
    missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def try_writing(path: Path) -> None:
    """Try to create a file in a directory, or in the nearest parent that exists; leaves nothing behind.

    Raises:
        OSError: names the existing directory that cannot be written.
    """
    place = next(one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one))
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise _naming(place, error) from error


def append(file: io.FileIO, data: bytes, what: str) -> None:
    """Append to an unbuffered file, all or nothing: a partial write on a full disk is truncated again.

    Args:
        what: names the data in the error.
    """
    start = os.fstat(file.fileno()).st_size
    try:
        if file.write(data) != len(data):
            raise OSError(f"{what} was written in part; the disk is full")
    except OSError:
        os.ftruncate(file.fileno(), start)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for a library to write to. Replaces `path` durably on success; deleted on error."""
    temporary = temporary_beside(path)
    try:
        yield temporary
        sync_file(temporary)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error matters, not an error of the cleanup
            temporary.unlink()
        raise
    sync_directory(path.parent)


@contextmanager
def creating(path: Path) -> Iterator[Path]:
    """A temporary path for a library to write to. Becomes `path`, which must be new, durably on success; deleted on
    error. Missing folders above are created, temporary files of killed processes for the same `path` deleted.

    Raises:
        FileExistsError: there is such a file, or a file where a folder should be; with the remedy.
    """
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, f"_{path.name}")
    temporary = temporary_beside(path)
    try:
        yield temporary
        sync_file(temporary)
        try:
            os.link(temporary, path)  # fails if another process was faster, as a rename would not
        except FileExistsError:
            raise _existing(path) from None
        except OSError:  # the file system has no hard links
            refuse_existing(path)
            os.rename(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # the first error matters, not an error of the cleanup
            temporary.unlink()
    sync_directory(path.parent)


def refuse_existing(path: Path) -> None:
    """Raises FileExistsError with the remedy if something has this name, be it a link that leads nowhere, or if a
    folder above would have to be where a file is."""
    found = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if found == path or not os.path.isdir(found):
        raise _existing(found)


def _existing(path: Path | str) -> FileExistsError:
    return FileExistsError(f"{path} exists, and nothing is overwritten; name another file, or another folder")


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """A new directory beside `path`, to fill and rename to `path`; deleted at the end if still under this name.

    Deletes those of killed processes for the same `path`.
    """
    remove_leftovers(path.parent, f"_{path.name}")
    temporary = temporary_beside(path)
    temporary.mkdir()
    try:
        yield temporary
    finally:
        if temporary.exists():
            shutil.rmtree(temporary, ignore_errors=True)


def vacant(directory: str | Path) -> Path:
    """Prepare a path for a new directory: remove an empty one, create the parents.

    Raises:
        FileExistsError: the path exists and is not an empty directory, or one that cannot be replaced.
    """
    directory = expanded(directory)
    if directory.is_dir() and not any(directory.iterdir()):
        try:
            directory.rmdir()
        except OSError as error:  # the working directory, a link, a mount point
            found = f"{directory} is an empty folder that cannot be replaced ({error.strerror})"
            raise FileExistsError(f"{found}; name a new folder, perhaps inside it") from None
    if directory.exists():
        raise FileExistsError(f"{directory} exists and is not empty; choose another folder")
    refuse_existing(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    return directory


def publish(temporary: Path, path: Path) -> None:
    """Make a directory with all its files durable and give it its name.

    Raises:
        FileExistsError: something else has this name meanwhile.
    """
    for folder, _, files in os.walk(temporary, topdown=False):
        for file in files:
            sync_file(Path(folder, file))
        sync_directory(Path(folder))
    try:
        os.rename(temporary, path)
    except OSError:
        refuse_existing(path)
        raise
    sync_directory(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file; if that fails, as across file systems, copy the file durably."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, where the file system can sync directories."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise _naming(path, error) from error
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one file system: atomically where supported, else with a moment without `other`.

    Raises:
        OSError: the swap failed, and both names are unchanged.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        at_cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fs.h
        if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap) == 0:
            return
        code = ctypes.get_errno()
        if code not in _NO_EXCHANGE:
            raise OSError(code, os.strerror(code), str(one), None, str(other))
    spare = temporary_beside(other)
    os.rename(other, spare)
    try:
        os.rename(one, other)
    except OSError:
        os.rename(spare, other)
        raise
    os.rename(spare, one)


def temporary_beside(path: Path) -> Path:
    """An unused name in the directory of `path` that carries host and process id of its owner.

    Ends with the name of `path`, cut at the front if the result would be longer than a file system allows.
    """
    prefix = f".tmp_{_host()}_{os.getpid()}_{uuid.uuid4().hex[:8]}_"
    room = _LONGEST_NAME - len(prefix)
    return path.with_name(prefix + os.fsdecode(os.fsencode(path.name)[-room:]))


def remove_leftovers(directory: Path, name: str = "", is_stale: Callable[[str, int], bool] | None = None) -> None:
    """Delete files and folders under temporary names; logs entries that cannot be deleted.

    Args:
        name: only delete entries whose final name ends with `name`.
        is_stale: whether to delete entries of an owner, given host and process id; None for dead local processes.
    """
    for path in sorted(directory.iterdir()):
        if not is_temporary(path) or not path.name.endswith(name):
            continue
        host, pid = owner_of(path)
        if not (is_alive(host, pid) is False if is_stale is None else is_stale(host, pid)):
            continue
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            log.info("deleted %s, which process %s on host %s left", path, pid, host)
        except FileNotFoundError:  # another process was faster
            pass
        except OSError as error:
            log.warning("%s was left by process %s on host %s and cannot be deleted: %s", path, pid, host, error)


def is_temporary(path: Path) -> bool:
    """Whether a name was made by `temporary_beside`."""
    return _TEMPORARY.match(path.name) is not None


def owner_of(path: Path) -> tuple[str, int]:
    """Host and process id of the owner of a temporary name."""
    found = _TEMPORARY.match(path.name)
    assert found is not None, path
    return found["host"], int(found["pid"])


def is_alive(host: str, pid: int) -> bool | None:
    """Whether a process lives; None for another host's process. An impossible process id counts as dead."""
    if _plain(host) != _host():
        return None
    if not 0 < pid <= _LARGEST_PID:  # 0 and negative numbers mean groups of processes
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def encode_document(content: Any) -> bytes:
    """JSON text of a document in UTF-8; NaN and infinity, which JSON lacks, become null.

    Paths may hold bytes that are not UTF-8; Python keeps such bytes as lone surrogates, written here as escapes.
    """
    text = json.dumps(finite(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    return text.encode("utf-8", errors="backslashreplace")


def seal(content: dict[str, Any]) -> bytes:
    """JSON text of a document that ends with its own SHA-256."""
    return encode_document({**content, "sha256": hashlib.sha256(encode_document(content)).hexdigest()})


def unseal(data: bytes) -> dict[str, Any]:
    """The document in a text made by `seal`.

    Raises:
        ValueError: the text is not sealed, or was altered.
    """
    found = _SEAL.search(data, max(0, len(data) - _SEAL_SIZE))
    if found is None:
        raise ValueError("not a sealed JSON document: it does not end with a SHA-256")
    head = data[: found.start()]
    body = head + b"\n}\n" if found[1] else head + b"}\n"
    if hashlib.sha256(body).hexdigest().encode() != found[2]:
        raise ValueError("its content does not have the SHA-256 it states")
    try:  # only after the comparison, so that damaged text is never parsed
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a sealed JSON document ({error!r})") from None
    return content


def finite(content: Any) -> Any:
    """The content of a document with None in place of numbers that are not finite."""
    if isinstance(content, dict):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def _host() -> str:
    return _plain(socket.gethostname()) or "unknown"


def _plain(host: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", host)
