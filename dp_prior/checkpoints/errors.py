"""Errors of checkpoints, by how they are handled."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved, found or read."""

    is_remote: ClassVar[bool] = False
    """Whether a remote place is the cause, which may be available later."""


class UnusableError(CheckpointError):
    """One checkpoint cannot be used now; `path` is the checkpoint's directory and `problem` says why."""

    def __init__(self, path: Path | str, problem: str, message: str):
        self.path = path
        self.problem = problem
        super().__init__(message)


class DamagedError(UnusableError):
    """A checkpoint whose files differ from its manifest."""

    def __init__(self, path: Path | str, problem: str):
        super().__init__(path, problem, f"checkpoint {path} is damaged: {problem}. Use another checkpoint of the run.")


class UnreadableCheckpointError(UnusableError):
    """A checkpoint that this process cannot read at the moment; its content may be intact."""

    def __init__(self, path: Path | str, problem: str):
        remedy = "It is not known to be damaged and was left as it is; make it readable, then start the command again."
        super().__init__(path, problem, f"checkpoint {path} cannot be read: {problem}. {remedy}")


class NewerFormatError(UnreadableCheckpointError):
    """A checkpoint written by a newer version of this package."""


class GoneError(UnusableError):
    """A checkpoint that was deleted, renamed or replaced while it was read, for example by retention."""

    def __init__(self, path: Path | str):
        problem = "it was deleted, renamed or replaced while it was read"
        super().__init__(path, problem, f"checkpoint {path} cannot be used: {problem}. Look again.")
