"""What sends checkpoints away and what it sends: the words that the queue, the worker and the destinations share.

Every destination keeps one protocol: all files of a checkpoint go to a folder of their own that never changes again,
`checkpoints/step_00012000`; they are compared with the manifest; then one small, atomic change moves the pointer
`best.json` or `latest.json`. So a reader of a pointer finds a whole checkpoint at any moment, the old one or the new.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from dp_prior.durable import encode_document, seal, unseal
from dp_prior.places.local import MODEL_FILES
from dp_prior.places.outbox import CARD, INTENT, MANIFEST

Trouble = Literal["refused", "unavailable", "damaged", "offline"]
"""Refused: it would be again, until a person does something. Unavailable: later it may work. Damaged: never."""


class DeliveryError(Exception):
    """A checkpoint did not arrive.

    Attributes:
        retry_after: seconds that the destination asks to be left alone.
    """

    def __init__(self, trouble: Trouble, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.retry_after = retry_after


@dataclass(frozen=True)
class Parcel:
    """One checkpoint on its way.

    Attributes:
        directory: an entry of the outbox.
        kinds: the pointers that are to be moved to it, of `latest` and `best`.
    """

    directory: Path
    kinds: tuple[str, ...]

    @cached_property
    def intent(self) -> dict[str, Any]:
        """Name of its folder, step, and scores of the final test."""
        return unseal((self.directory / INTENT).read_bytes())

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Of the files that are sent."""
        return unseal((self.directory / MANIFEST).read_bytes())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the manifest, which holds those of all other files."""
        return hashlib.sha256((self.directory / MANIFEST).read_bytes()).hexdigest()

    def files(self) -> dict[str, tuple[int, str]]:
        """(size, SHA-256) by name of everything that goes to the folder: the manifest's files and the manifest."""
        named = {name: (entry["size"], entry["sha256"]) for name, entry in self.manifest["files"].items()}
        return named | {MANIFEST: ((self.directory / MANIFEST).stat().st_size, self.digest)}

    def media(self) -> dict[str, Path]:
        """Pictures for the model card."""
        folder = self.directory / CARD
        return {path.name: path for path in sorted(folder.iterdir())} if folder.is_dir() else {}

    def document(self, name: str) -> dict[str, Any]:
        """A JSON file of the checkpoint, {} if it is not sent."""
        if name not in self.manifest["files"]:
            return {}
        return json.loads((self.directory / name).read_bytes())

    def model_manifest(self) -> bytes:
        """The manifest of those files that are needed to act."""
        files = {name: entry for name, entry in self.manifest["files"].items() if name in MODEL_FILES}
        return seal({**self.manifest, "files": files})

    def pointer(self, folder: str) -> bytes:
        """What `best.json` or `latest.json` says."""
        monitor = self.manifest["monitor"]
        return encode_document(
            {
                "folder": folder,
                "manifest_sha256": self.digest,
                "step": self.manifest["step"],
                "samples_seen": self.manifest["samples_seen"],
                "monitor": monitor,
                "mode": self.manifest["mode"],
                "value": self.manifest["metrics"].get(monitor) if monitor else None,
            }
        )

    def verify(self) -> None:
        """Compare all files with the manifest before they leave.

        Raises:
            DeliveryError: one is damaged.
        """
        for name, (size, sha256) in self.files().items():
            if file_hash(self.directory / name) != (size, sha256):
                raise DeliveryError("damaged", f"{name} of {self.intent['name']} is not what its manifest says")


class Destination(Protocol):
    """Where checkpoints go. Lives in the worker process; `spend` is called just before each commit or the like.

    `deliver` answers with what was done, and why the best that was there stayed, None if it did not.
    """

    def check(self) -> str: ...

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> tuple[str, str | None]: ...


def file_hash(path: Path) -> tuple[int, str]:
    """(size, SHA-256) of a file."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
            size += len(piece)
    return size, digest.hexdigest()


def stays(pointer: bytes | None, parcel: Parcel) -> str | None:
    """Why a pointer that is already there must not be moved to this checkpoint; None if it may.

    A best is never replaced by a worse one: another run may use the same place.
    """
    try:
        there = json.loads(pointer) if pointer else {}
        value, monitor, mode = there.get("value"), there.get("monitor"), there.get("mode")
    except (ValueError, AttributeError):
        return None
    ours = parcel.manifest["metrics"].get(monitor) if isinstance(monitor, str) else None
    if (monitor, mode) != (parcel.manifest["monitor"], parcel.manifest["mode"]) or ours is None:
        return None
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    is_better = value < ours if mode == "min" else value > ours
    return f"the best there is better: {monitor} {value:g}, here {ours:g}; it stays" if is_better else None
