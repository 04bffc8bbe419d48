"""Files that this process holds open in a folder of a test; others may open and close files of their own meanwhile."""

import contextlib
import os
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """Every descriptor's file in the folder, one that was deleted meanwhile included."""
    paths = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # another thread has closed it, or it was that of this list
            paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return sorted(path for path in paths if path.startswith(f"{folder}/"))
