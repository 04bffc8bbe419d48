"""Processes of other ranks on this machine, held by file descriptor (pidfd) so that a reused id is never mistaken."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time


def pid_namespace() -> str:
    """Identifies the process id namespace: equal on two ranks if they can use each other's process ids."""
    try:
        return f"{socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"


def has_ended(pidfd: int | None) -> bool:
    """Whether the process is over; False for None, a process of another machine."""
    if pidfd is None:
        return False
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))


def end_with_stacks(pidfd: int | None) -> None:
    """Make a hanging or suspended process write its stacks (SIGABRT), then kill the process. Takes some seconds."""
    time.sleep(1.5)
    for number, pause_s in ((signal.SIGABRT, 0.0), (signal.SIGCONT, 2.0), (signal.SIGKILL, 0.0)):
        if pidfd is None or has_ended(pidfd):
            return
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(pidfd, number)
        time.sleep(pause_s)
