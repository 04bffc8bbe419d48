"""`Destination`, the protocol of a remote place that checkpoints are uploaded to.

All files of a checkpoint go to a folder that never changes again, `checkpoints/step_00012000`; they are compared with
the manifest; then one small, atomic write moves the pointer `best.json` or `latest.json`. A reader of a pointer
therefore finds a complete checkpoint at any moment, the old one or the new one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from dp_prior.places.parcel import Parcel


@dataclass(frozen=True)
class Delivery:
    """What an upload has done.

    Attributes:
        where: the folder or version that holds the checkpoint.
        kinds: the pointers that were moved to it.
        remark: why the best checkpoint there was not replaced, None if it was or need not be.
    """

    where: str
    kinds: tuple[str, ...]
    remark: str | None = None

    def __str__(self) -> str:
        return f"{self.where} is uploaded" + (f" as {' and '.join(self.kinds)}" if self.kinds else "")


class Destination(Protocol):
    """A place that checkpoints are sent to. Lives in the worker process. Every failure is a RemoteError."""

    def check(self) -> str:
        """A line that says that the place can be written to."""

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> Delivery:
        """Upload a checkpoint; skips steps that an earlier attempt completed.

        Args:
            spend: called just before each commit or similar, since those are limited per hour.
        """


def folders(name: str) -> Iterator[str]:
    """Folders to try for a checkpoint, since another run may have used its name: `checkpoints/NAME`, `..._2`, ..."""
    yield f"checkpoints/{name}"
    for number in itertools.count(2):
        yield f"checkpoints/{name}_{number}"
