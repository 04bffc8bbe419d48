"""The plan of a robot that acts while its next chunk is predicted.

Actions are counted from the start of an episode, and a chunk is aligned with them and not with the time: its action at
index `past` is the first whose effect comes after the newest observation. Commands that the robot does not see yet are
in flight: a new chunk continues them, see `Continuation`.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np


class Continuation(NamedTuple):
    """The beginning of a chunk that is about to be predicted, and the actions before its own."""

    present: int
    """Number of the action at the chunk's index `past`."""

    prefix: np.ndarray | None
    """(n, action_dim) commands and actions of the running chunk, from the oldest observation's step on; None where the
    chunk continues nothing."""

    delay: int
    """Actions of the prefix, from the newest observation on, that will be commanded before the chunk arrives."""


class ChunkPlan:
    """The commands of a robot in an episode, and the chunk of the next ones.

    Attributes:
        commanded: actions of chunks that were commanded.
        chunk: (horizon, action_dim) the running chunk; None without one.
    """

    def __init__(self, past: int):
        """
        Args:
            past: observation steps before the newest, and as many actions of a chunk that lie behind it.
        """
        self._past = past
        self.reset()

    def reset(self) -> None:
        """Start an episode."""
        self.commanded = 0
        self._commands: deque[tuple[float, np.ndarray]] = deque()  # time and action of the newest
        self.drop()

    def drop(self) -> None:
        """Forget the running chunk."""
        self.chunk: np.ndarray | None = None
        self._first = 0  # number of the action at the chunk's index 0

    def begin(self, chunk: np.ndarray, present: int) -> None:
        """Run a new chunk (horizon, action_dim); see `Continuation.present`."""
        self.chunk, self._first = chunk, present - self._past

    @property
    def index(self) -> int:
        """Index of the next action in the running chunk."""
        return self.commanded - self._first

    @property
    def ahead(self) -> np.ndarray | None:
        """(n, action_dim) the actions of the running chunk that are still to be commanded, maybe none; None without a
        chunk."""
        return None if self.chunk is None else self.chunk[self.index :]

    def command(self, action: np.ndarray, time: float) -> None:
        """Note that an action (action_dim,) is commanded in place of the next one.

        Args:
            time: in seconds, of the clock of `continuation`.
        """
        self._commands.append((time, action))
        self.commanded += 1

    def continuation(
        self, unseen: float, expected: int, max_delay: int | None = None, is_outdated: bool = False
    ) -> Continuation:
        """The beginning of a chunk that is asked for now.

        Args:
            unseen: time in seconds that never goes back; commands after it have no effect on the newest observation.
            expected: control periods until the chunk arrives.
            max_delay: the largest delay; None without a limit.
            is_outdated: whether the running chunk ends after the delay, so that no chunk continues its other actions.
        """
        in_flight = sum(time > unseen for time, _ in self._commands)
        while len(self._commands) > in_flight + self._past:
            self._commands.popleft()
        present, ahead = self.commanded - in_flight, self.ahead
        if ahead is None or present < self._past or not in_flight + len(ahead):
            return Continuation(present, None, 0)
        before = [action for _, action in self._commands]
        longest = len(self.chunk) - self._past - 1  # so that the new chunk, too, has an action left to execute
        delay = min(in_flight + min(expected, len(ahead)), longest)
        delay = delay if max_delay is None else min(delay, max_delay)
        prefix = np.stack([*before, *ahead])
        if is_outdated:
            prefix = prefix[: self._past + delay]
        return Continuation(present, prefix if len(prefix) else None, delay)
