"""One attempt to upload a checkpoint, in a separate process that can be killed at a deadline.

The clients of remote places may block for ever, so no thread of the trainer calls them. The parent writes a job to the
worker's standard input; the worker answers with lines of JSON: {"commit": 1} before each commit, the outcome last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dp_prior.checkpoints.format import DamagedError
from dp_prior.places.destination import Destination
from dp_prior.places.parcel import Parcel
from dp_prior.places.source import RemoteError, Trouble


@dataclass
class Report:
    """How an attempt ended.

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


class Sender(Protocol):
    """Makes one attempt at a time."""

    def attempt(self, entry: Path | None, kinds: tuple[str, ...], deadline_s: float) -> Report:
        """Send an entry of the outbox as these kinds; None only checks whether that would be allowed."""

    def kill(self) -> None:
        """Abort the attempt under way, and every later one."""


class Worker:
    """Attempts in a process that ends by itself, at its deadline, or when this process dies."""

    def __init__(self, saver: dict[str, Any]):
        """Args: saver: the record of the saver, as JSON values."""
        self._saver = saver
        self._process: subprocess.Popen | None = None
        self._is_over = False

    def attempt(self, entry: Path | None, kinds: tuple[str, ...], deadline_s: float) -> Report:
        """See `Sender`."""
        job = {
            "saver": self._saver,
            "entry": None if entry is None else str(entry.absolute()),
            "kinds": kinds,
            "parent": os.getpid(),
        }
        with subprocess.Popen(
            [sys.executable, "-m", "dp_prior.places"],
            cwd=Path(__file__).parents[2],  # finds the package even if it is not installed
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # only the trainer receives Ctrl-C
        ) as process:
            self._process = process
            if self._is_over:
                process.kill()
            try:
                output, _ = process.communicate(json.dumps(job).encode(), timeout=deadline_s)
                late = ""
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
                late = f"no success within {deadline_s:.0f} s"
            finally:
                process.kill()
                self._process = None
        if self._is_over:
            late = "it was not done when the run ended"
        return _report(_lines(output), late or f"the worker ended with code {process.returncode}")

    def kill(self) -> None:
        """See `Sender`."""
        self._is_over = True
        process = self._process
        if process is not None:
            process.kill()


class InProcess:
    """Attempts in the calling thread, for places that exist in this process only."""

    def __init__(self, destination: Callable[[], Destination]):
        self._destination = destination

    def attempt(self, entry: Path | None, kinds: tuple[str, ...], deadline_s: float) -> Report:
        """See `Sender`; without a deadline."""
        lines: list[dict[str, Any]] = []
        perform(self._destination, entry, kinds, lines.append)
        return _report(lines, "")

    def kill(self) -> None:
        """No attempt can be aborted."""


def perform(
    destination: Callable[[], Destination],
    entry: Path | None,
    kinds: tuple[str, ...],
    tell: Callable[[dict[str, Any]], None],
) -> None:
    """Make one attempt; the last line printed reports the outcome, exceptions included."""
    outcome: dict[str, Any] = {"trouble": None, "retry_after": None, "remark": None}
    try:
        place = destination()
        if entry is None:
            outcome["message"] = place.check()
        else:
            parcel = Parcel.of(entry, kinds)
            parcel.verify()
            delivery = place.deliver(parcel, lambda: tell({"commit": 1}))
            outcome |= {"message": str(delivery), "remark": delivery.remark}
    except RemoteError as error:
        outcome |= {"message": str(error), "trouble": error.trouble, "retry_after": error.retry_after}
    except DamagedError as error:
        outcome |= {"message": f"the checkpoint is damaged: {error.problem}", "trouble": "damaged"}
    except ImportError as error:
        outcome |= {"message": str(error), "trouble": "refused"}
    except Exception as error:  # report only its type: the text may contain a secret
        outcome |= {"message": f"{type(error).__name__} in the uploader", "trouble": "unavailable"}
    tell(outcome)


def _lines(output: bytes) -> Iterable[Any]:
    for text in output.splitlines():
        try:
            yield json.loads(text)
        except ValueError:
            continue


def _report(lines: Iterable[Any], otherwise: str) -> Report:
    """The outcome in the worker's output; `otherwise` is the error message if there is none."""
    commits, outcome = 0, None
    for line in lines:
        if isinstance(line, dict):
            commits += "commit" in line
            outcome = line if "message" in line else outcome
    if outcome is None:
        return Report(otherwise, "unavailable", commits=commits)
    return Report(outcome["message"], outcome["trouble"], outcome["retry_after"], commits, outcome["remark"])
