"""A disk that nobody waits for: a killed process loses nothing that it has written, so only a power cut could tell.

A tiny run syncs 21 files. What is synced when is tested on its own, by watching the calls.
"""

import os


def not_waited_for(descriptor: int) -> None:
    """In place of `os.fsync`, which refuses a descriptor that is not open, too."""
    os.fstat(descriptor)


def quicken_disk() -> None:
    """Let this process and its forks sync nothing."""
    os.fsync = not_waited_for
