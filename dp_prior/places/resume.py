"""Where a run resumes from: its own newest checkpoint, else another path or a remote place."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from dp_prior.checkpoints.format import MANIFEST
from dp_prior.config import Config
from dp_prior.places.saver import ResumePoint
from dp_prior.redact import without_password


class LocalResumeConfig(Config):
    """A run resumes from its own newest checkpoint; before it has one, from another path if one is given."""

    type: Literal["local"] = "local"

    path: str | None = None
    """A run or checkpoint to resume from if this run has no checkpoint yet; null for none."""

    choose: Literal["latest", "best"] = "latest"
    """Which checkpoint of the run at `path`."""

    @field_validator("path")
    @classmethod
    def _is_here(cls, path: str | None) -> str | None:
        if path is not None and "://" in path:
            raise ValueError(f"{path!r} is remote; use {{'type': 'remote', 'reference': {path!r}}}")
        return path

    def create(self, directory: Path) -> LocalResume:
        """For the run in `directory`."""
        return LocalResume(**self.arguments(), directory=directory)


class RemoteResumeConfig(Config):
    """A run resumes from its own newest checkpoint; before it has one, from a remote place.

    The latest and the best checkpoint of that place are copied into the run. If the place has no checkpoint, the run
    starts fresh; if it cannot be reached, the command fails, since it may have one.
    """

    type: Literal["remote"] = "remote"

    reference: str
    """`hf://user/name`, `https://...#sha256=...`, `wandb://entity/project/name:alias`, or a URL that fsspec knows, such
    as `s3://bucket/runs/pusht`; see docs/hub.md."""

    @field_validator("reference")
    @classmethod
    def _has_a_scheme(cls, reference: str) -> str:
        if "://" not in reference:
            raise ValueError(f"{reference!r} has no scheme such as hf://; for a path use {{'type': 'local'}}")
        return without_password(reference)

    def create(self, directory: Path) -> RemoteResume:
        """For the run in `directory`."""
        return RemoteResume(self.reference, directory)


class LocalResume(ResumePoint):
    """Resumes from a path; see `LocalResumeConfig`."""

    def __init__(self, *, path: str | None, choose: str, directory: Path):
        self._path = None if path is None else Path(path).expanduser()
        self._choose = choose
        self._directory = directory

    def can_recall(self) -> bool:
        """See `ResumePoint`. Only looks for manifests; damage shows when they are read."""
        return self.recall() is not None

    def recall(self) -> str | None:
        """A path with `@latest` or `@best`, the path of one checkpoint, or None."""
        if _holds_checkpoints(self._directory):
            return f"{self._directory}@latest"
        if self._path is None:
            return None
        if (self._path / MANIFEST).is_file():
            return str(self._path)
        return f"{self._path}@{self._choose}" if _holds_checkpoints(self._path) else None


class RemoteResume(ResumePoint):
    """Resumes from a reference; see `RemoteResumeConfig`. Opens no socket."""

    def __init__(self, reference: str, directory: Path):
        self._reference = reference
        self._local = LocalResume(path=None, choose="latest", directory=directory)

    def can_recall(self) -> bool:
        """True: only the remote place knows whether it has a checkpoint."""
        return True

    def recall(self) -> str:
        """The run's own newest checkpoint, or the remote place."""
        return self._local.recall() or self._reference


def _holds_checkpoints(path: Path) -> bool:
    patterns = (f"checkpoints/step_*/{MANIFEST}", f"step_*/{MANIFEST}")
    return any(True for pattern in patterns for _ in path.glob(pattern))
