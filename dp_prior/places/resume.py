"""Where a run goes on from on a machine that has never seen it: a remote place that its savers sent checkpoints to."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import field_validator

from dp_prior.config import Config
from dp_prior.places.local import LocalLoader
from dp_prior.redact import without_password


class RemoteLoaderConfig(Config):
    """A run goes on from its own newest checkpoint; before it has one, from a remote place, as if it were there.

    The latest and the best checkpoint of that place are brought into the run. A place without any is that of a run that
    has not saved yet; one that cannot be reached ends the command, since a fresh start would not be what was meant.
    """

    type: Literal["remote"] = "remote"

    reference: str
    """`hf://user/name`, `https://...#sha256=...`, `wandb://entity/project/name:alias`, or a URL that fsspec knows, such
    as `s3://bucket/runs/pusht`; see docs/hub.md."""

    @field_validator("reference")
    @classmethod
    def _has_a_scheme(cls, reference: str) -> str:
        if "://" not in reference:
            raise ValueError(f"{reference!r} has no scheme such as hf://; for a path use the local loader")
        return without_password(reference)

    def create(self, directory: Path) -> RemoteLoader:
        """A loader for the run in `directory`."""
        return RemoteLoader(self.reference, directory)


class RemoteLoader:
    """Answers with references; see `RemoteLoaderConfig`. Opens no socket."""

    def __init__(self, reference: str, directory: Path):
        self._reference = reference
        self._local = LocalLoader(path=None, choose="latest", directory=directory)

    def can_recall(self) -> bool:
        """True: whether a remote place has a checkpoint shows when it is asked."""
        return True

    def recall(self) -> str:
        """The run's own newest checkpoint, or the remote place."""
        return self._local.recall() or self._reference
