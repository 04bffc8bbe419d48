"""Signs of life: what a rank gives while it works, and how the others wait for it as long as it does.

A collective has a short time limit, so that a rank that hangs is found. Work whose length nobody knows, such as a
rollout or the last save, must therefore not lie between two collectives: the others first `meet`, which has no limit of
its own, and whoever works says so with `beat`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor

from dp_prior.job.stop import Stop


class Abandoned(BaseException):
    """An evaluation was left in the middle, on all ranks, because the run is asked to stop; it is caught up on later.

    No Exception: an evaluator that contains errors of its environment must let it through.
    """


class Watch(Protocol):
    """Who is told signs of life."""

    def mark(self, phase: str, step: int) -> None:
        """This rank comes to a part of the loop that all ranks come to, in the same order."""

    def beat(self) -> None:
        """It still works; raises `Abandoned` when the run is asked to stop."""

    def meet(self, may_leave: bool = False) -> None:
        """Wait until all ranks are here; with `may_leave`, raise `Abandoned` on all of them when asked to stop."""

    def busy(self) -> contextlib.AbstractContextManager[None]:
        """While inside, this rank is taken to work although it cannot say so."""


class Alone:
    """One process: nobody waits for it."""

    def __init__(self, stop: Stop):
        self._stop = stop

    def mark(self, phase: str, step: int) -> None:
        """Nobody is told."""

    def beat(self) -> None:
        """See `Watch.beat`."""
        if self._stop.is_asked():
            raise Abandoned

    def meet(self, may_leave: bool = False) -> None:
        """It is always complete."""
        if may_leave:
            self.beat()

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Nothing to do."""
        yield


class RanksAtWork:
    """An accelerator for evaluators and decisions: before ranks gather they meet, so none waits longer than allowed."""

    def __init__(self, accelerator: Any, watch: Watch):
        self._accelerator = accelerator
        self._watch = watch
        self.beat = watch.beat
        self.busy = watch.busy
        self.meet = watch.meet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: Tensor) -> Tensor:
        """See `Accelerator.gather`."""
        self._watch.meet(may_leave=True)
        return self._accelerator.gather(tensor)
