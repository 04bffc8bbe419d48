"""Counts the steps that were skipped because their gradient was not finite, without waiting for the device.

The counts live on the device and are part of every checkpoint. After each step they are copied to the host
asynchronously, and read in order when the copy has arrived, at most `LAG` steps later.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from torch import Tensor

LAG = 2  # steps; the device always has one queued while the host reads


class UnusableStepsError(RuntimeError):
    """Training must stop or roll back: the weights before `first_step` are good, later steps are not."""

    def __init__(self, message: str, first_step: int = 1):
        super().__init__(message)
        self.first_step = first_step


class NotFiniteError(UnusableStepsError):
    """Too many steps in a row had a non-finite gradient."""


class Skipped(NamedTuple):
    """A step that was skipped.

    Attributes:
        step: its number, counted from 1.
        samples_seen: the clock before it, where its samples begin.
        in_a_row: number of consecutive skipped steps up to and including this one.
    """

    step: int
    samples_seen: int
    in_a_row: int


class Guard:
    """Counts skipped steps."""

    def __init__(self, device: torch.device):
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)  # all, in a row, step of the last
        self._copies: deque[tuple[Tensor, torch.cuda.Event | None, int, int]] = deque()

    def load(self, counts: Tensor) -> None:
        """Restore saved counts (3,)."""
        self.counts = counts.to(self.counts.device, copy=True)
        self._copies.clear()

    def count(self, finite: Tensor, step: int, samples_seen: int) -> None:
        """Count a step.

        Args:
            finite: () bool on the device, False if the step was skipped.
            step: its number, counted from 1.
            samples_seen: the clock before it.
        """
        skip = (~finite).to(torch.int64)
        total, in_a_row, last = self.counts
        self.counts = torch.stack([total + skip, (in_a_row + 1) * skip, torch.where(finite, last, step)])
        copy, arrived = self.counts, None
        if self.counts.is_cuda:
            copy = torch.empty(3, dtype=torch.int64, pin_memory=True).copy_(self.counts, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._copies.append((copy, arrived, step, samples_seen))

    def look(self) -> list[Skipped]:
        """The skipped steps whose copies have arrived since the last call, oldest first."""
        found = []
        while self._copies and (len(self._copies) > LAG or self._has_arrived(*self._copies[0][:2])):
            copy, arrived, step, samples_seen = self._copies.popleft()
            if arrived is not None:
                arrived.synchronize()
            _, in_a_row, last = copy.tolist()
            if last == step:
                found.append(Skipped(step, samples_seen, in_a_row))
        return found

    @staticmethod
    def _has_arrived(copy: Tensor, arrived: torch.cuda.Event | None) -> bool:
        return copy.device.type == "cpu" if arrived is None else arrived.query()
