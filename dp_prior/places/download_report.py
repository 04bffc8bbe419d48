"""Reports the progress of a slow download, from the sizes of the files so far."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

FIRST_S, NEXT_S = 5.0, 60.0

log = logging.getLogger(__name__)


@contextlib.contextmanager
def reported(text: str, folder: Path, size: int, first_s: float = FIRST_S, next_s: float = NEXT_S) -> Iterator[None]:
    """Inside, files of `size` bytes in all arrive in `folder`; logs after `first_s` and every `next_s` from then on.

    Args:
        text: the reference, for the message.
    """
    is_over = threading.Event()

    def tell() -> None:
        wait_s = first_s
        while not is_over.wait(wait_s):
            log.warning("%s: %.1f of %.1f MB have arrived; Ctrl-C ends the download", text, arrived(folder), size / 1e6)
            wait_s = next_s

    thread = threading.Thread(target=tell, name="download report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def arrived(folder: Path) -> float:
    """MB of all files in a folder; a file that is renamed meanwhile is not counted."""
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total / 1e6
