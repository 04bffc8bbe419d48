"""What is expensive to make and only read is made once a session, by the worker that asks first, and shared by all."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder that `make` has filled, in this worker or another one.

    Args:
        make: receives the folder, which exists; its exception leaves the folder to whoever asks next.
    """
    base = factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared" / name
    place.mkdir(parents=True, exist_ok=True)
    is_made = place.with_name(f"{name}.made")
    with place.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            make(place)
            is_made.touch()
    return place
