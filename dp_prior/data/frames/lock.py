"""One builder per frame cache: a lock that the operating system frees when its holder dies."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from dp_prior.data.errors import DataError

_POLL_S = 0.1
_TELL_EVERY_S = 10.0


@contextlib.contextmanager
def build_lock(
    path: Path, tell: Callable[[str], None], how_far: Callable[[], str], check: Callable[[], None]
) -> Iterator[None]:
    """Hold the lock for the duration of a `with` block; wait for the process that has it, saying so at times.

    Args:
        path: the lock file, which stays.
        tell: called with a line about what is waited for.
        how_far: what the holder has done, for that line.
        check: called while waiting; what it raises ends that.

    Raises:
        DataError: the file cannot be created or locked.
    """
    next_line = time.monotonic()
    while (file := _locked(path)) is None:
        check()
        if time.monotonic() >= next_line:
            tell(f"waiting for the frame cache that {_holder(path)} builds: {how_far()}")
            next_line = time.monotonic() + _TELL_EVERY_S
        time.sleep(_POLL_S)
    with file:
        with contextlib.suppress(OSError):  # a full disk spoils only the line about who builds
            file.truncate(0)
            file.write(json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
            file.flush()
        yield


def _locked(path: Path) -> BinaryIO | None:
    """The lock file, locked; None if another process has the lock, or has just removed the file with its cache."""
    try:
        file = open(path, "a+b")  # noqa: SIM115 (the caller closes it)
    except OSError as error:
        problem = f"cannot be written ({error.strerror}); name another directory for the frame cache"
        raise DataError(str(path), [problem]) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        problem = f"cannot be locked ({error.strerror}); name a directory on a file system that supports flock"
        raise DataError(str(path), [problem]) from None
    file.close()
    return None


def _holder(path: Path) -> str:
    try:
        found = json.loads(path.read_bytes())
        return f"process {found['pid']} on host {found['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
