"""Parts arrive ahead of training, in the order in which it needs them, in a thread."""

from __future__ import annotations

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


class Arrivals:
    """Brings parts while training goes on. An error is logged here, and raised where the part is read."""

    def __init__(self, parts: Parts):
        self._parts = parts
        self._changed = threading.Condition()
        self._plan: tuple[list[int], list[int]] = [], []
        self._number = 0
        self._process = 0

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
                threading.Thread(target=self._run, name="arrivals", daemon=True).start()
            self._changed.notify_all()

    def _run(self) -> None:
        number = 0
        while True:
            with self._changed:
                while self._number == number:
                    self._changed.wait()
                number = self._number
            try:
                self._bring(number)
            except NoRoomError:  # until training has left a part
                pass
            except Exception as error:
                log.info("a part did not arrive ahead: %s", error)

    def _bring(self, number: int) -> None:
        """Bring the parts of the plan of this number, until another plan takes its place."""
        needed, later = self._plan
        names = self._parts.names(*needed)
        for part in [*needed, *later]:
            names.update(self._parts.names(part))
            if self._number != number:
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
