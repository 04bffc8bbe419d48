"""The time limit of a run, and the latest time to begin the last save."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

_SECONDS_OF = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_UNKNOWN_SAVE_S = 30.0  # assumed until a save was timed; at most a tenth of the whole time


def parse_duration(value: Any) -> float:
    """Seconds from a number, or from a text such as "47h", "1d12h" or "90m".

    Raises:
        ValueError: `value` is neither a number nor a duration, or is not above 0.
    """
    if isinstance(value, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            raise ValueError(f"{value!r} is not a duration; write seconds as a number, or a text like '47h' or '1d12h'")
        value = sum(float(number) * _SECONDS_OF[unit] for number, unit in parts)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e10:
        raise ValueError(f"{value!r} is not a duration; expected more than 0 seconds, or a text such as '47h'")
    return float(value)


_SCHEMA = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
Duration = Annotated[float, BeforeValidator(parse_duration), WithJsonSchema(_SCHEMA)]
"""Seconds; a configuration may also say "47h", "1d12h", "90m" or "30s"."""


class Deadline:
    """Decides from measured durations of saves and steps when a run must stop to save before its end.

    Saving must begin two longest saves, two longest steps and one second before the end. The first step of a process
    does not count, because this step compiles and selects kernels.
    """

    def __init__(self, end: float, clock: Callable[[], float] = time.time):
        """
        Args:
            end: when the run will be killed, in seconds since the epoch on `clock`.
        """
        self.end = end
        self._clock = clock
        self._assumed = min(_UNKNOWN_SAVE_S, max(0.0, end - clock()) / 10)
        self._longest_save: float | None = None
        self._longest_step = 0.0
        self._last_step: float | None = None
        self._is_warm = False

    @property
    def margin_s(self) -> float:
        """Seconds before the end at which saving must begin."""
        save = self._assumed if self._longest_save is None else self._longest_save
        return 2 * save + 2 * self._longest_step + 1.0

    def is_near(self) -> bool:
        """Whether saving must begin now."""
        return self._clock() + self.margin_s >= self.end

    def stepped(self) -> None:
        """A step is over. Call `rests` first if other work was done since the last step."""
        now = self._clock()
        if self._last_step is not None:
            if self._is_warm:
                self._longest_step = max(self._longest_step, now - self._last_step)
            self._is_warm = True
        self._last_step = now

    def rests(self) -> None:
        """Exclude the time until the next `stepped`, for example an evaluation, which a stop request can interrupt."""
        self._last_step = None

    def saved(self, seconds: float) -> None:
        """A save took `seconds` until the checkpoint was durable. Called from the writer thread."""
        self._longest_save = max(self._longest_save or 0.0, seconds)
