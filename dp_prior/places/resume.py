"""The checkpoint that a run resumes from: its own newest checkpoint, otherwise another path or a remote place."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import MANIFEST
from dp_prior.config import Config
from dp_prior.files.printable import without_password
from dp_prior.files.regular_files import expanded


class LocalResumeConfig(Config):
    """Resumes from the run's own newest checkpoint; a run without checkpoints starts from `path`, if given."""

    type: Literal["local"] = "local"

    path: str | None = None
    """A run or checkpoint to resume from if this run has no checkpoint yet, such as `runs/a` or `runs/a@step_00000200`;
    null for none."""

    choose: Literal["latest", "best"] = "latest"
    """Which checkpoint of the run at `path`."""

    @field_validator("path")
    @classmethod
    def _is_here(cls, path: str | None) -> str | None:
        if path is not None and "://" in path:
            raise ValueError(f"{path!r} is remote; use {{'type': 'remote', 'reference': {path!r}}}")
        return path

    def recall(self, directory: Path) -> str | None:
        """The reference that the run in `directory` resumes from; None for a fresh start.

        Only looks for manifests; damage is reported when the checkpoint is read.
        """
        if _holds_checkpoints(directory):
            return f"{directory}@latest"
        if self.path is None:
            return None
        path = expanded(self.path)
        if (path / MANIFEST).is_file() or ("@" in self.path and not path.exists()):
            return str(path)
        return f"{path}@{self.choose}" if _holds_checkpoints(path) else None


class RemoteResumeConfig(Config):
    """Resumes from the run's own newest checkpoint; a run without checkpoints starts from a remote place.

    The latest and the best checkpoint of the place are copied into the run. An empty place means a fresh start. If the
    place cannot be reached the command fails, since a checkpoint may exist there.
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

    def recall(self, directory: Path) -> str:
        """See `LocalResumeConfig`; opens no socket and so does not know whether the place has a checkpoint.

        Before `config.json` exists the run has not begun, and its checkpoints may be half of an interrupted copy.
        """
        if not (directory / CONFIG).exists():
            return self.reference
        return LocalResumeConfig().recall(directory) or self.reference


def _holds_checkpoints(path: Path) -> bool:
    patterns = (f"checkpoints/step_*/{MANIFEST}", f"step_*/{MANIFEST}")
    return any(any(path.glob(pattern)) for pattern in patterns)
