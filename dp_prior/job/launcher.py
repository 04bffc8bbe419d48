"""Ends a process whose parent was killed.

Needed because torchrun leaves its workers running when torchrun is killed, or receives a signal without a handler. A
rank then saves and exits instead of holding its GPU, and no upload outlives the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from dp_prior.job.stop import LAUNCHER_GONE, Stop

_INTERVAL_S = 0.5
GRACE_S = 30.0  # for the current step and the save; then the process is killed


@contextlib.contextmanager
def end_with_parent(stop: Stop, grace_s: float = GRACE_S, parent: int | None = None) -> Iterator[None]:
    """Inside, request a stop when the parent process is gone, and kill this process `grace_s` later.

    Polls the parent's id twice a second. PR_SET_PDEATHSIG is not used, since this signal also fires when only the
    launcher's thread that started this worker ends.

    Args:
        parent: id of the parent process, if the parent may be gone already; None for the present parent.
    """
    parent, is_over = parent or os.getppid(), threading.Event()

    def look() -> None:
        while not is_over.wait(_INTERVAL_S):
            if os.getppid() != parent:
                stop.ask(LAUNCHER_GONE)
                if not is_over.wait(grace_s):
                    os.kill(os.getpid(), signal.SIGKILL)
                return

    thread = threading.Thread(target=look, name="launcher-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
