"""A directory held open, so that a run notices when its path leads elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from dp_prior.checkpoints.errors import CheckpointError


class HeldDirectory:
    """A directory; between `open` and `close` also a descriptor, which still refers to a directory that was moved."""

    def __init__(self, path: Path):
        self.path = path
        self._descriptor: int | None = None

    def open(self) -> None:
        """Hold the directory, which must exist."""
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        """Release the directory."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def check(self) -> None:
        """
        Raises:
            CheckpointError: the path no longer leads to this directory.
        """
        if self._is_lost():
            raise CheckpointError(
                f"the run directory {self.path} was moved or deleted during the run, so nothing can be "
                f"saved; put it back, then start the same command again"
            )

    def current(self) -> Path | None:
        """A path that reaches the directory, also after a move; None if the directory was deleted."""
        if not self._is_lost():
            return self.path
        held = Path(f"/proc/self/fd/{self._descriptor}")  # Linux only
        return held if held.is_dir() and os.fstat(self._descriptor).st_nlink else None

    def _is_lost(self) -> bool:
        if self._descriptor is None:
            return False
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a network disk that stalls is not a directory that is gone
            return False
