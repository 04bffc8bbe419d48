"""Waits for what a test has set going, as long as it takes: the suite's time limit ends what never comes."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object]) -> None:
    """Return once the condition holds. A limit in seconds would be the verdict of the machine's load."""
    while not condition():
        time.sleep(0.005)
