"""The tie of a worker to its launcher: when the launcher is killed, the worker saves and ends instead of training on.

torchrun, killed or sent a signal that it does not handle, leaves its workers running; they would hold the GPUs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from dp_prior.job.stop import LAUNCHER_GONE, Stop

_INTERVAL_S = 0.5
GRACE_S = 30.0  # for the step at hand and the save; then the process is killed


@contextlib.contextmanager
def end_with_parent(stop: Stop, grace_s: float = GRACE_S) -> Iterator[None]:
    """While inside, ask for a stop when this process's parent is gone, and kill the process if it is slow to follow.

    The parent's id is looked at twice a second. The system's own signal for a dead parent (PR_SET_PDEATHSIG) is not
    used: it also comes when the launcher's thread that has started the worker ends, and nothing may come of that.
    """
    parent, is_over = os.getppid(), threading.Event()

    def look() -> None:
        while not is_over.wait(_INTERVAL_S):
            if os.getppid() != parent:
                stop.ask(LAUNCHER_GONE)
                if not is_over.wait(grace_s):
                    os.kill(os.getpid(), signal.SIGKILL)
                return

    thread = threading.Thread(target=look, name="lifeline", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
