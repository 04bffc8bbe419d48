"""Reading that neither blocks nor fills the memory: only regular files are opened, and reads are bounded. Paths that
users give have their `~` and `$NAME` replaced here.

A named pipe would block its reader forever, and opening a device can have effects of its own.
"""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

SMALL = 16 << 20
"""Most bytes that `read_small` reads by default; parsing this much JSON takes seconds and ten times its size."""

_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}", re.ASCII)


class UnfitError(ValueError):
    """A file that is not regular or too large. Attributes: problem: the finding, without the path."""

    def __init__(self, path: Path | str, problem: str):
        self.problem = problem
        super().__init__(f"{path} {problem}")


def check_regular(path: Path | str, mode: int) -> None:
    """Raises UnfitError unless the file at `path` is regular. Args: mode: `st_mode` of the file."""
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a named pipe, socket or device"
        raise UnfitError(path, f"is {kind}; expected a regular file")


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading, without blocking.

    Raises:
        UnfitError: the path is no regular file.
        OSError: as `open`.
    """
    check_regular(path, os.stat(path).st_mode)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_small(path: Path | str, largest: int = SMALL) -> bytes:
    """Read a regular file of at most `largest` bytes.

    Raises:
        UnfitError: the file is larger, or no regular file.
        OSError: as `open`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(largest + 1) if size <= largest else b""
        if max(size, len(data)) > largest:
            raise UnfitError(path, f"has {max(size, len(data))} bytes; expected at most {largest}")
        return data


def read_object(path: Path, largest: int = SMALL) -> dict[str, Any]:
    """Read the JSON object in a small file; {} for a missing or unreadable file, or other JSON."""
    try:
        content = json.loads(read_small(path, largest))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def expanded(path: str | Path) -> Path:
    """Replace `~` by the home directory, `~user` by the user's, and `$NAME` or `${NAME}` by an environment variable; an
    unknown user's path stays, as in a shell, and so does a name with `$` that exists.

    Raises:
        FileNotFoundError: the path begins with `~`, and the user has no home directory; or a variable is not set.
    """
    path = Path(path)
    try:
        path = path.expanduser()
    except RuntimeError:
        if path.parts[0] == "~":
            why = "~ is no directory, since HOME is not set; set it, or give the path"
            raise FileNotFoundError(f"{path}: {why}") from None
    return _with_variables(path) if "$" in str(path) else path


def _with_variables(path: Path) -> Path:
    """Replace variables in the parts of a path that are no names of files."""
    whole = Path()
    for part in path.parts:
        if "$" in part and not os.path.lexists(whole / part):
            unset = [name for name in _VARIABLE.findall(part) if os.path.expandvars(name) == name]
            if unset:
                remedy = "set it, or give the path (a folder of this name is taken where it exists)"
                raise FileNotFoundError(f"{path}: the environment variable {unset[0]} is not set; {remedy}")
            part = os.path.expandvars(part)
        whole = Path(f"{whole}/{part}") if whole.parts else Path(part)
    return whole
