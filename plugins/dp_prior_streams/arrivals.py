"""Parts arrive ahead of training, in the order in which it needs them, in a thread."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np

from dp_prior_streams.part_cache import NoRoomError
from dp_prior_streams.part_order import PartOrder
from dp_prior_streams.parts import Parts

log = logging.getLogger(__name__)

EXIT_WAIT_S = 10.0
"""Longest time for which the exit of the process waits for work on a part."""


class ProcessEndsError(Exception):
    """The process ends, so no part is waited for."""


class Arrivals:
    """Brings parts while training goes on. An error is logged here, and raised where the part is read.

    The thread ends before the interpreter does: an interpreter that ends under a thread in C++ code, such as a table
    being read, aborts the process.
    """

    def __init__(self, parts: Parts):
        self._parts = parts
        self._changed = threading.Condition()
        self._plan: tuple[list[int], list[int]] = [], []
        self._number = 0
        self._process = 0
        self._is_ending = False

    def check(self) -> None:
        """Raise `ProcessEndsError` where the process ends; called while the thread waits for a place."""
        if self._is_ending:
            raise ProcessEndsError

    def expect(self, needed: Sequence[int], later: Sequence[int]) -> None:
        """Say which parts training needs now, and which parts it needs next, in order."""
        plan = list(needed), [part for part in later if part not in needed]
        if plan == self._plan and self._process == os.getpid():
            return
        self._parts.store.needed = frozenset(self._parts.names(*needed))
        with self._changed:
            self._plan, self._number = plan, self._number + 1
            if self._process != os.getpid():
                self._process = os.getpid()
                thread = threading.Thread(target=self._run, name="arrivals", daemon=True)
                thread.start()
                atexit.register(self._end, thread)
            self._changed.notify_all()

    def _end(self, thread: threading.Thread) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        thread.join(EXIT_WAIT_S)

    def _run(self) -> None:
        number = 0
        while not self._is_ending:
            with self._changed:
                while self._number == number and not self._is_ending:
                    self._changed.wait()
                number = self._number
            try:
                self._bring(number)
            except (NoRoomError, ProcessEndsError):  # no room until training has left a part
                pass
            except Exception as error:
                log.info("a part did not arrive ahead: %s", error)

    def _bring(self, number: int) -> None:
        """Bring the parts of the plan of this number, until another plan takes its place."""
        needed, later = self._plan
        names = self._parts.names(*needed)
        for part in [*needed, *later]:
            names.update(self._parts.names(part))
            if self._number != number or self._is_ending:
                return
            if not self._parts.has(part):
                self._parts.bring(part, names)


class ArrivingOrder:
    """See `Order`: an order over parts, each of which arrives before its samples."""

    def __init__(self, order: PartOrder, arrivals: Arrivals):
        self._order, self._arrivals = order, arrivals
        self._recent: deque[list[int]] = deque(maxlen=2)  # a batch may lie in two epochs

    def ids(self, epoch: int, begin: int, end: int) -> np.ndarray:
        """See `Order`; the parts of these positions are expected from now on."""
        needed, later = self._order.parts(epoch, begin, end)
        self._recent.append(needed)
        self._arrivals.expect(list(dict.fromkeys(chain.from_iterable(self._recent))), later)
        return self._order.ids(epoch, begin, end)
