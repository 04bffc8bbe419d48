"""A parcel: one checkpoint to upload, and the pointers to move to it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from dp_prior.checkpoints.format import MANIFEST, FileEntry, Manifest, parse_manifest, read_manifest, verify
from dp_prior.files.json_text import unseal
from dp_prior.files.regular_files import read_small
from dp_prior.places.pointer import Pointer

INTENT = "intent.json"  # in an outbox entry: name, step, scores
CARD_FACTS = "card"  # folder with pictures for the model card


@dataclass(frozen=True)
class Parcel:
    """One checkpoint to be sent.

    Attributes:
        kinds: pointers to move to the checkpoint: any of `latest` and `best`.
        name: name of the folder at the destination, `step_00012000`.
        scores: metrics of the final test, for the model card.
        digest: SHA-256 of the manifest; the manifest holds the hashes of all other files.
    """

    directory: Path
    kinds: tuple[str, ...]
    name: str
    scores: dict[str, float | None]
    manifest: Manifest
    digest: str

    @classmethod
    def of(cls, directory: Path, kinds: tuple[str, ...], intent: dict[str, Any] | None = None) -> Self:
        """Open the parcel in a directory with a manifest; `intent` defaults to the file of the outbox entry.

        Raises:
            OSError, ValueError, CheckpointError: a file is missing, or was altered.
        """
        intent = intent or unseal(read_small(directory / INTENT))
        data = read_small(directory / MANIFEST)
        manifest, digest = parse_manifest(data, directory), hashlib.sha256(data).hexdigest()
        return cls(directory, kinds, intent["name"], intent.get("scores", {}), manifest, digest)

    def files(self) -> dict[str, FileEntry]:
        """All files to upload to the folder: the files that the manifest lists, and the manifest."""
        size = (self.directory / MANIFEST).stat().st_size
        return self.manifest.files | {MANIFEST: FileEntry(size=size, sha256=self.digest)}

    def media(self) -> dict[str, Path]:
        """Pictures and pages for the model card."""
        folder = self.directory / CARD_FACTS
        paths = sorted(folder.iterdir()) if folder.is_dir() else []
        return {path.name: path for path in paths}

    def pointer(self, folder: str) -> Pointer:
        """The content of `best.json` or `latest.json` once the parcel is in this folder."""
        manifest = self.manifest
        return Pointer(
            folder=folder,
            manifest_sha256=self.digest,
            step=manifest.step,
            samples_seen=manifest.samples_seen,
            monitor=manifest.monitor,
            mode=manifest.mode,
            value=manifest.value,
        )

    def verify(self) -> None:
        """Compare all files with the manifest before they are sent.

        Raises:
            DamagedError: a file differs.
        """
        read_manifest(self.directory)  # sizes and kinds of the files, so that none is a FIFO
        verify(self.directory, self.manifest)
