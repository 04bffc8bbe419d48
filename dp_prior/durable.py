"""Files that appear whole or not at all, whatever is killed or unplugged meanwhile.

The way is always the same: write under a temporary name, sync the data, rename, sync the directory. A temporary name
carries host and process id of its owner, so that what a dead process left behind can be told from work in progress.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import re
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TEMPORARY = re.compile(r"\.tmp_(?P<host>[A-Za-z0-9.-]+)_(?P<pid>\d+)_[0-9a-f]{8}_")


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, durably; a reader sees the old content or the new one."""
    temporary = temporary_beside(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for a library to write to. It replaces `path` durably on success and is deleted on error."""
    temporary = temporary_beside(path)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one file system, so that `other` is never missing where the system can do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        at_cwd, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of linux/fs.h
        if libc.renameat2(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), swap) == 0:
            return
    spare = temporary_beside(other)
    os.rename(other, spare)
    os.rename(one, other)
    os.rename(spare, one)


def temporary_beside(path: Path) -> Path:
    """A name in the directory of `path` that nobody uses and that tells whose it is."""
    return path.with_name(f".tmp_{_host()}_{os.getpid()}_{uuid.uuid4().hex[:8]}_{path.name}")


def is_temporary(path: Path) -> bool:
    """Whether a name was made by `temporary_beside`."""
    return _TEMPORARY.match(path.name) is not None


def owner_of(path: Path) -> tuple[str, int]:
    """Host and process id of the owner of a temporary name."""
    found = _TEMPORARY.match(path.name)
    assert found is not None, path
    return found["host"], int(found["pid"])


def is_alive(host: str, pid: int) -> bool | None:
    """Whether a process lives; None if it belongs to another host."""
    if host != _host():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def encode_document(content: Any) -> bytes:
    """JSON text of a document; numbers that are not finite become null, since JSON has none."""
    return (json.dumps(_finite(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def seal(content: dict[str, Any]) -> bytes:
    """JSON text of a document that ends with its own SHA-256."""
    return encode_document({**content, "sha256": hashlib.sha256(encode_document(content)).hexdigest()})


def unseal(data: bytes) -> dict[str, Any]:
    """The document in a text made by `seal`.

    Raises:
        ValueError: it is not such a text, or was altered.
    """
    try:
        content = json.loads(data)
        del content["sha256"]
        is_sound = seal(content) == data
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ValueError(f"not a sealed JSON document ({error!r})") from None
    if not is_sound:
        raise ValueError("its content does not have the hash it states")
    return content


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    if isinstance(content, float) and not math.isfinite(content):
        return None
    return content


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "-", socket.gethostname()) or "unknown"
