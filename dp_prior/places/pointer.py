"""`best.json` and `latest.json`: pointers to the folder of the best or latest checkpoint of a remote place.

A checkpoint folder `checkpoints/step_00012000` never changes once it is complete; only the pointer moves.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, ValidationError

from dp_prior.config import Config
from dp_prior.files.json_text import encode_document

LARGEST_POINTER = 64 << 10  # bytes; ours have about 300


class Pointer(Config, extra="ignore"):
    """The document. Readers need `folder` and `manifest_sha256`; the other fields compare two best checkpoints."""

    folder: str = Field(pattern=r"^(checkpoints/)?step_\d{8,20}(_\d{1,9})?$")
    """Folder of the checkpoint, relative to the pointer; for an artifact of W&B its alias."""

    manifest_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the manifest in `folder`."""

    step: int | None = Field(default=None, ge=0, lt=1 << 63)
    """Optimizer steps taken."""

    samples_seen: int | None = Field(default=None, ge=0, lt=1 << 63)
    """Training samples consumed over all ranks."""

    monitor: str | None = None
    """Name of the metric that selects the best checkpoint."""

    mode: Literal["min", "max"] | None = None
    """Whether small or large values of `monitor` are good."""

    value: float | None = None
    """Value of `monitor`; null if not measured."""

    @classmethod
    def parse(cls, data: bytes) -> Self | None:
        """Parse a pointer; None if the bytes are not a valid pointer."""
        if len(data) > LARGEST_POINTER:
            return None
        try:
            return cls.model_validate_json(data, strict=True)
        except ValidationError:
            return None

    def encode(self) -> bytes:
        """The content of the file."""
        return encode_document(self.model_dump())


def movable(kinds: tuple[str, ...], there: Pointer | None, ours: Pointer) -> tuple[tuple[str, ...], str | None]:
    """The pointers that may be moved to our checkpoint, and why `best` may not; None if nothing keeps `best`.

    Two runs may share a place. Only values of the same monitored metric are compared.
    """
    is_comparable = there is not None and (there.monitor, there.mode) == (ours.monitor, ours.mode)
    if "best" not in kinds or not is_comparable or there.value is None or ours.value is None:
        return kinds, None
    is_better = there.value < ours.value if ours.mode == "min" else there.value > ours.value
    if not is_better:
        return kinds, None
    why = f"the best there is better: {there.monitor} {there.value:g}, here {ours.value:g}; it stays"
    return tuple(kind for kind in kinds if kind != "best"), why
