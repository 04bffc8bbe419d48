"""`Destination`, the protocol of a remote place that checkpoints are uploaded to, and the errors of a delivery.

All files of a checkpoint go to a folder that never changes again, `checkpoints/step_00012000`; they are compared with
the manifest; then one small, atomic write moves the pointer `best.json` or `latest.json`. A reader of a pointer
therefore finds a complete checkpoint at any moment, the old one or the new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal, Protocol

from dp_prior.places.parcel import Parcel

Trouble = Literal["refused", "unavailable", "damaged", "offline"]
"""Refused: needs a change by the user. Unavailable: retry later. Damaged: the files differ from their
manifest; never retry. Offline: the client is in offline mode."""


class DeliveryError(Exception):
    """A checkpoint was not delivered.

    Attributes:
        retry_after: seconds that the place asks to wait before the next attempt.
    """

    def __init__(self, trouble: Trouble, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.retry_after = retry_after


class Destination(Protocol):
    """A place that checkpoints are sent to. Lives in the worker process."""

    def check(self) -> str:
        """Whether it can be written to; raises DeliveryError if not."""

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> tuple[str, str | None]:
        """Upload a checkpoint; skips steps that an earlier attempt completed.

        Args:
            spend: called just before each commit or similar, since those are limited per hour.

        Returns:
            What was done, and why the best checkpoint there was not replaced, None if it was.
        """


def folders(name: str) -> Iterator[str]:
    """Folders to try for a checkpoint, since another run may have used its name: `checkpoints/NAME`, `..._2`, ..."""
    yield f"checkpoints/{name}"
    for number in itertools.count(2):
        yield f"checkpoints/{name}_{number}"
