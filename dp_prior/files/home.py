"""`~` in the paths that users give."""

from __future__ import annotations

from pathlib import Path


def expanded(path: str | Path) -> Path:
    """A path with the home directory for `~`, and that of a user for `~user`; the same path for a name that no user
    has, as in a shell.

    Raises:
        FileNotFoundError: it begins with `~`, and the user has no home directory.
    """
    path = Path(path)
    try:
        return path.expanduser()
    except RuntimeError:
        if path.parts[0] != "~":
            return path
        raise FileNotFoundError(f"{path}: ~ is no directory, since HOME is not set; set it, or give the path") from None
