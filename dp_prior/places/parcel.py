"""A parcel: one checkpoint to upload, and the pointers to move to it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dp_prior.checkpoints.format import (
    MANIFEST,
    MODEL_FILES,
    FileEntry,
    Manifest,
    parse_manifest,
    read_manifest,
    verify,
)
from dp_prior.config import Config
from dp_prior.durable import seal, unseal
from dp_prior.places.pointer import Pointer
from dp_prior.regular_files import read_small

INTENT = "intent.json"
CARD = "card"  # folder with pictures for the model card


class Intent(Config):
    """The job description of an upload; `intent.json` beside the checkpoint's files."""

    name: str
    """Name of its folder at the destination, `step_00012000`."""

    step: int
    """Optimizer steps taken."""

    scores: dict[str, float | None] = {}
    """Metrics of the final test, for the model card."""

    @classmethod
    def read(cls, directory: Path) -> Self:
        """The intent of an entry.

        Raises:
            OSError, ValueError: there is none, or it was altered.
        """
        return cls.model_validate(unseal(read_small(directory / INTENT)))

    def encode(self) -> bytes:
        """The content of the file."""
        return seal(self.model_dump(mode="json"))


@dataclass(frozen=True)
class Parcel:
    """One checkpoint to be sent.

    Attributes:
        kinds: the pointers to move to it, of `latest` and `best`.
        digest: SHA-256 of the manifest, which holds those of all other files.
    """

    directory: Path
    kinds: tuple[str, ...]
    intent: Intent
    manifest: Manifest
    digest: str

    @classmethod
    def of(cls, directory: Path, kinds: tuple[str, ...], intent: Intent | None = None) -> Parcel:
        """The parcel in a directory with a manifest; `intent` defaults to the file of the outbox entry."""
        data = read_small(directory / MANIFEST)
        manifest, digest = parse_manifest(data, directory), hashlib.sha256(data).hexdigest()
        return cls(directory, kinds, intent or Intent.read(directory), manifest, digest)

    def files(self) -> dict[str, FileEntry]:
        """All files to upload to the folder: those of the manifest and the manifest itself."""
        size = (self.directory / MANIFEST).stat().st_size
        return self.manifest.files | {MANIFEST: FileEntry(size=size, sha256=self.digest)}

    def media(self) -> dict[str, Path]:
        """Pictures for the model card."""
        folder = self.directory / CARD
        return {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}

    def document(self, name: str) -> dict[str, Any]:
        """A JSON file of the checkpoint, {} if it is not sent."""
        return json.loads(read_small(self.directory / name)) if name in self.manifest.files else {}

    def model_manifest(self) -> bytes:
        """The manifest of the files for inference."""
        return self.manifest.only(MODEL_FILES).encode()

    def pointer(self, folder: str) -> Pointer:
        """The content of `best.json` or `latest.json` once the parcel is in this folder."""
        return Pointer.to(folder, self.manifest, self.digest)

    def verify(self) -> None:
        """Compare all files with the manifest before they are sent.

        Raises:
            DamagedError: one differs.
        """
        read_manifest(self.directory)  # sizes and kinds of the files, so that none is a FIFO
        verify(self.directory, self.manifest)
