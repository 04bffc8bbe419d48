"""`Destination`, the protocol of a remote place that checkpoints are uploaded to, and the report of an attempt.

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
from dp_prior.places.source import Trouble


@dataclass(frozen=True)
class Report:
    """How an attempt to upload ended; without a message, that it is under way.

    Attributes:
        trouble: None on success.
        retry_after: seconds that the place asks to wait.
        commits: made, or at least begun.
        remark: why the best checkpoint there was not replaced, None if it was.
    """

    message: str
    trouble: Trouble | None = None
    retry_after: float | None = None
    commits: int = 0
    remark: str | None = None


def delivered(where: str, kinds: tuple[str, ...], remark: str | None) -> Report:
    """The report of a success: the folder or version that holds the checkpoint, and the pointers moved to it."""
    return Report(f"{where} is uploaded" + (f" as {' and '.join(kinds)}" if kinds else ""), remark=remark)


class Destination(Protocol):
    """A place that checkpoints are sent to. Lives in the worker process. Every failure is a RemoteError."""

    def check(self) -> str:
        """A line that says that the place can be written to."""

    def deliver(self, parcel: Parcel, spend: Callable[[], None]) -> Report:
        """Upload a checkpoint; skips steps that an earlier attempt completed.

        Args:
            spend: called just before each commit or similar, since those are limited per hour.
        """


def folders(name: str) -> Iterator[str]:
    """Folders to try for a checkpoint, since another run may have used its name: `checkpoints/NAME`, `..._2`, ..."""
    yield f"checkpoints/{name}"
    for number in itertools.count(2):
        yield f"checkpoints/{name}_{number}"
