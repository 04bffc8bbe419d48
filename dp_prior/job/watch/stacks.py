"""The stacks of a rank: `rank_N.txt` receives the stacks of all threads when the run hangs or fails.

Stacks are also written by a timer of the interpreter, which works even if no Python thread can run, and on SIGABRT from
another rank.
"""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import time
from pathlib import Path

from dp_prior.job.stop import LOST, Verdict

_UNFORESEEN = 1  # exit code of errors without a code of their own
_MARGIN_S = 3.0


class Stacks:
    """The file of one rank, opened at once because a crash cannot open files. `close` removes an empty file."""

    def __init__(self, path: Path):
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (closed by `close`)
            self._start = self._file.tell()  # stacks of earlier starts stay
        except OSError:
            self._file = sys.__stderr__
        faulthandler.enable(self._file)

    def arm(self, timeout_s: float) -> None:
        """Restart the timer that writes the stacks and ends the process."""
        if self._file is not sys.__stderr__:
            faulthandler.dump_traceback_later(timeout_s + _MARGIN_S, exit=True, file=self._file)

    def disarm(self) -> None:
        """Cancel the timer."""
        faulthandler.cancel_dump_traceback_later()

    def write(self, head: str, verdict: Verdict) -> None:
        """Write the stacks under a heading with time and verdict, once: only the first stacks show the cause.

        Errors with an exit code of their own, such as a wrong configuration, need no stacks.
        """
        if verdict.code not in (_UNFORESEEN, LOST):
            return
        with contextlib.suppress(OSError, ValueError):
            if self._file is sys.__stderr__ or self._file.tell() == self._start:
                if self._file is not sys.__stderr__:
                    self._file.write(f"{head}, {time.strftime('%FT%T%z')}: {verdict.message}\n".encode())
                faulthandler.dump_traceback(self._file, all_threads=True)

    def close(self) -> None:
        """Cancel the timer and close the file."""
        self.disarm()
        faulthandler.disable()
        if self._file is not sys.__stderr__:
            is_empty = self._file.tell() == 0
            self._file.close()
            if is_empty:
                with contextlib.suppress(OSError):
                    self._path.unlink()
                    self._path.parent.rmdir()  # fails while files of other ranks exist
