"""The end of the time a run was given, and when saving must begin to be done by then."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_UNKNOWN_SAVE_S = 30.0  # assumed before the first save was timed; a tenth of the whole time if that is less


def parse_duration(value: Any) -> float:
    """Seconds from a number of them, or from a text such as "47h", "1d12h" or "90m".

    Raises:
        ValueError: it is neither, or not above 0.
    """
    if isinstance(value, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(f"{value!r} is not a duration; write seconds as a number, or a text like '47h' or '1d12h'")
        value = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e10:
        raise ValueError(f"{value!r} is not a duration; expected more than 0 seconds, or a text such as '47h'")
    return float(value)


_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(_SCHEMA)]
"""Seconds; a configuration may also say "47h", "1d12h", "90m" or "30s"."""


class Deadline:
    """An end, and the time that a save and a step take, measured as they happen.

    The save must begin two of the longest saves, two of the longest steps and a second before the end. The first step
    of a process does not count, since it compiles and finds its kernels.
    """

    def __init__(self, end: float, clock: Callable[[], float] = time.time):
        """
        Args:
            end: when the run will be killed, as `clock` tells it; seconds since the epoch.
        """
        self.end = end
        self._clock = clock
        self._assumed = min(_UNKNOWN_SAVE_S, max(0.0, end - clock()) / 10)
        self._longest_save: float | None = None
        self._longest_step = 0.0
        self._last_step: float | None = None
        self._is_warm = False
        self._began: float | None = None
        self._lock = threading.Lock()

    @property
    def margin_s(self) -> float:
        """Seconds before the end at which saving must begin."""
        save = self._assumed if self._longest_save is None else self._longest_save
        return 2 * save + 2 * self._longest_step + 1.0

    def is_near(self) -> bool:
        """Whether saving must begin now."""
        return self._clock() + self.margin_s >= self.end

    def stepped(self) -> None:
        """A step is over; call `rests` when something else was done since the last one."""
        now = self._clock()
        if self._last_step is not None and self._is_warm:
            self._longest_step = max(self._longest_step, now - self._last_step)
        self._is_warm = self._last_step is not None
        self._last_step = now

    def rests(self) -> None:
        """What follows is no step, and can be cut short: an evaluation, say."""
        self._last_step = None

    def save_begins(self) -> None:
        """A snapshot is about to be taken."""
        with self._lock:
            self._began = self._clock()

    def save_ends(self) -> None:
        """It is durable and delivered; called from the writing thread."""
        with self._lock:
            if self._began is not None:
                self._longest_save = max(self._longest_save or 0.0, self._clock() - self._began)
                self._began = None
