"""What dead processes of this machine left under temporary names; see `dp_prior.durable`."""

from __future__ import annotations

import shutil
from pathlib import Path

from dp_prior.durable import is_alive, is_temporary, owner_of


def remove_leftovers(directory: Path, name: str = "") -> None:
    """Remove temporary files and folders of dead processes whose final name ends with `name`."""
    for path in directory.iterdir():
        if is_temporary(path) and path.name.endswith(name) and is_alive(*owner_of(path)) is False:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
