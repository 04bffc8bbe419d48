"""Ends a process whose launcher, or whose parent, is gone.

torchrun and `accelerate launch` leave their workers running when they are killed; `accelerate launch` with one process
does so on SIGTERM too. A worker that notices saves and exits instead of holding its GPU and its run directory.

That the parent is gone means nothing by itself: a run in the background outlives the shell that started it. Only a
launcher counts, and whatever lies between the launcher and this process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

_INTERVAL_S = 0.5
GRACE_S = 30.0  # of a rank for the current step and the save, as torchrun gives it; then the process is killed
GRACE_ALONE_S = 600.0  # of the only process, for which no other one waits

MARKS = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID", "ACCELERATE_MIXED_PRECISION")
"""Variables that torchrun, `accelerate launch` and `notebook_launcher` set for the processes which they start."""

LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    *("accelerate", "accelerate-launch", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
)
"""Scripts and modules."""


def lineage(environment: Mapping[str, str]) -> list[int]:
    """Process ids of the ancestors up to the launcher, the parent first; empty for a process without a launcher.

    The launcher is the nearest ancestor that runs a known launcher or has set one of `MARKS` itself, as a Python
    program. A shell that exports such a variable is no launcher, nor is the parent of a program that sets the variable
    for itself. A process that `setsid` or `nohup` detached from a launcher has none.

    Args:
        environment: variables of this process; those in `MARKS` are enough.
    """
    marks = {name for name in MARKS if name in environment}
    if not marks:
        return []
    import psutil

    with contextlib.suppress(psutil.Error, OSError, RuntimeError):  # a sandbox whose /proc tells too little
        process = psutil.Process()
        if not marks <= process.environ().keys() and multiprocessing.parent_process() is None:
            return []  # a child of multiprocessing has the variables of its program
        ids = []
        for ancestor in process.parents():
            ids.append(ancestor.pid)
            command = ancestor.cmdline()
            is_known = program_of(command) in LAUNCHERS
            if is_known or not marks <= ancestor.environ().keys():
                is_launcher = is_known or _is_python(command)
                may_begin_sessions = is_known or "TORCHELASTIC_RUN_ID" in marks
                return ids if is_launcher and not _is_detached(ids, may_begin_sessions) else []
    return []


def _is_detached(ancestors: Sequence[int], may_begin_sessions: bool) -> bool:
    """Whether this process has left the session of its ancestors, or ignores the SIGHUP that the launcher heeds.

    Args:
        may_begin_sessions: the launcher gives each worker a session, as torchrun does.
    """
    session, members = os.getsid(0), ancestors[:-1] if may_begin_sessions else ancestors
    if any(os.getsid(pid) != session for pid in members):
        return True
    return _ignores_hangup(os.getpid()) and not _ignores_hangup(ancestors[-1])


def _ignores_hangup(pid: int) -> bool:
    """Whether a process ignores SIGHUP; False where the system has no /proc."""
    try:
        ignored = re.search(r"^SigIgn:\s*([0-9a-f]+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except OSError:
        return False
    return ignored is not None and bool(int(ignored[1], 16) >> (signal.SIGHUP - 1) & 1)


def _is_python(command: Sequence[str]) -> bool:
    return bool(command) and PurePath(command[0]).name.lower().startswith("python")


def program_of(command: Sequence[str]) -> str:
    """The name of the script or the module that a command line runs by Python; "" for another one."""
    words = iter(command[1:] if _is_python(command) else ())
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in ("-W", "-X"):
            next(words, None)
        elif word == "-c":
            return ""
        elif not word.startswith("-"):
            return PurePath(word).name
    return ""


@contextlib.contextmanager
def end_with_launcher(ask: Callable[[], None], environment: Mapping[str, str]) -> Iterator[None]:
    """Inside, call `ask` when the launcher of this process is gone, and kill this process after a time of grace.

    Does nothing without a launcher.

    Args:
        environment: see `lineage`.
    """
    ancestors = lineage(environment)
    grace_s = GRACE_S if "LOCAL_RANK" in environment else GRACE_ALONE_S
    watch = _end_when(lambda: not _is_whole(ancestors), ask, grace_s)
    with watch if ancestors else contextlib.nullcontext():
        yield


def _is_whole(ancestors: Sequence[int]) -> bool:
    """Whether each process still has the parent that it had. The system gives the children of a dead one another."""
    if os.getppid() != ancestors[0]:
        return False
    import psutil

    try:
        return all(psutil.Process(child).ppid() == parent for child, parent in pairwise(ancestors))
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, OSError, RuntimeError):  # the process is there and does not tell its parent
        return True


@contextlib.contextmanager
def end_with_parent(ask: Callable[[], None], grace_s: float, parent: int) -> Iterator[None]:
    """Inside, call `ask` when the parent of this process is no longer the one of an id, and kill this process
    `grace_s` later."""
    with _end_when(lambda: os.getppid() != parent, ask, grace_s):
        yield


@contextlib.contextmanager
def _end_when(is_gone: Callable[[], bool], ask: Callable[[], None], grace_s: float) -> Iterator[None]:
    """Inside, call `ask` once `is_gone`, and kill this process `grace_s` later.

    Looks twice a second. PR_SET_PDEATHSIG is not used, since this signal also fires when only the launcher's thread
    that started this worker ends, and exists on Linux alone.
    """
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_INTERVAL_S):
            if is_gone():
                ask()
                if not is_over.wait(grace_s):
                    os.kill(os.getpid(), signal.SIGKILL)
                return

    threading.Thread(target=look, name="launcher-watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
