"""The errors of remote places."""

from __future__ import annotations

from typing import Literal

from dp_prior.checkpoints.errors import CheckpointError

Trouble = Literal["refused", "unavailable", "damaged", "offline"]
"""Refused: needs a change by the user. Unavailable: retry later. Damaged: the files differ from their
manifest; never retry. Offline: the client is in offline mode."""


class RemoteError(CheckpointError):
    """A remote place cannot be reached, refuses access, or has unexpected content.

    Attributes:
        trouble: class of the error, which decides about a retry; see `Trouble`.
        retry_after: seconds that the place asks to wait before the next attempt.
    """

    is_remote = True

    def __init__(self, message: str, trouble: Trouble = "unavailable", retry_after: float | None = None):
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.retry_after = retry_after


class NoPlaceError(FileNotFoundError):
    """The whole remote place does not exist, rather than one file in it.

    Attributes:
        may_be_hidden: the request had no token; a private place may exist, since the Hub hides it.
    """

    def __init__(self, message: str, *, may_be_hidden: bool = False):
        super().__init__(message)
        self.may_be_hidden = may_be_hidden


class BrokenError(OSError):
    """A temporary failure. Attributes: retry_after: seconds that the place asks to wait; None without such a demand."""

    def __init__(self, message: str, retry_after: float | None = None):
        super().__init__(message)
        self.retry_after = retry_after
