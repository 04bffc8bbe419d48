"""Processes that play episodes: they end with their parent, at once on Ctrl-C, and never leave it waiting."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context, parent_process


@contextmanager
def recorders(workers: int | None) -> Iterator[ProcessPoolExecutor]:
    """Start processes that play episodes. A `multiprocessing.Pool` would wait for ever for the episode of a killed
    process."""
    pool = ProcessPoolExecutor(workers, get_context("spawn"), _begin_recorder)
    try:
        yield pool
    except BrokenProcessPool:
        remedy = "if memory ran out, lower --workers, and repeat the command"
        raise RuntimeError(f"a process that played the expert's episodes was killed; {remedy}") from None
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Block Ctrl-C until the end of the context. A process that is started inside blocks Ctrl-C until
    `_begin_recorder`, so that its imports show no traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin_recorder() -> None:
    """Let a process end at once on Ctrl-C, which the parent reports, and end with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent, then kill this process."""
    parent_process().join()
    os.kill(os.getpid(), signal.SIGKILL)
