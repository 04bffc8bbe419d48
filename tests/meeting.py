"""Where ranks that are threads of a test wait for each other: as long as it takes, but for none that has ended."""

import threading


class AbsentRankError(Exception):
    """A rank has ended, with its own error or too early, and will not come to this collective."""


class Meeting:
    """A barrier that no slow machine breaks, and that tells at once which rank does not come."""

    def __init__(self, size: int):
        self._changed = threading.Condition()
        self._arrivals, self._has_ended = [0] * size, [False] * size

    def wait(self, rank: int) -> None:
        """Wait until every rank has called this as often as `rank`.

        Raises:
            AbsentRankError: a rank has ended before it did.
        """
        with self._changed:
            self._arrivals[rank] += 1
            number = self._arrivals[rank]
            self._changed.notify_all()
            while absent := [other for other, count in enumerate(self._arrivals) if count < number]:
                if ended := [other for other in absent if self._has_ended[other]]:
                    raise AbsentRankError(f"rank {ended[0]} ended before meeting {number}, where rank {rank} waits")
                self._changed.wait()

    def end(self, rank: int) -> None:
        """Say that a rank comes to no meeting any more."""
        with self._changed:
            self._has_ended[rank] = True
            self._changed.notify_all()
