"""Counts the steps that were skipped because their gradient was not finite, without waiting for the device.

The counts live on the device and are part of every checkpoint.
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


class Readback:
    """Small tensors on their way to the host, read in the order of their steps: at once on a CPU, `LAG` steps late on a
    GPU, so that the loop does not wait for the device."""

    def __init__(self) -> None:
        self._copies: deque[tuple[Tensor, torch.cuda.Event | None, tuple[int, ...]]] = deque()

    def put(self, values: Tensor, *label: int) -> None:
        """Start the copy of the values of a step, which nothing may overwrite on a CPU."""
        arrived = None
        if values.is_cuda:
            values = torch.empty_like(values, device="cpu", pin_memory=True).copy_(values, non_blocking=True)
            arrived = torch.cuda.Event()
            arrived.record()
        self._copies.append((values, arrived, label))

    def take(self) -> tuple[list, tuple[int, ...]] | None:
        """The oldest values and their label; None if there are none, or the device may still be busy with them."""
        if not self._copies or (self._copies[0][1] is not None and len(self._copies) <= LAG):
            return None
        values, arrived, label = self._copies.popleft()
        if arrived is not None:
            arrived.synchronize()
        return values.tolist(), label

    def settle(self) -> bool:
        """Wait for the device, so that `take` gives everything that was put. Returns whether there is anything."""
        for _, arrived, _ in self._copies:
            if arrived is not None:
                arrived.synchronize()
        self._copies = deque((values, None, label) for values, _, label in self._copies)
        return bool(self._copies)


class Guard:
    """Counts skipped steps.

    Attributes:
        row_begins: the clock before the first of the latest skipped steps in a row that `take_skipped` returned.
    """

    def __init__(self, device: torch.device):
        self.counts = torch.zeros(3, dtype=torch.int64, device=device)  # all, in a row, step of the last
        self.row_begins: int | None = None
        self._readback = Readback()

    def state(self) -> Tensor:
        """(3,) counts to save in a checkpoint."""
        return self.counts

    def load(self, state: Tensor | dict) -> None:
        """Restore saved counts (3,); zeros from a checkpoint without them."""
        counts = state if isinstance(state, Tensor) else torch.zeros_like(self.counts)
        self.counts = counts.to(self.counts.device, copy=True)
        self.row_begins, self._readback = None, Readback()

    def forget(self) -> None:
        """Forget that steps were skipped in a row; called after a rollback."""
        self.counts = self.counts * self.counts.new_tensor([1, 0, 1])

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
        self._readback.put(self.counts, step, samples_seen)

    def take_skipped(self) -> list[Skipped]:
        """The skipped steps that have become known since the last call, oldest first."""
        skipped = []
        while (taken := self._readback.take()) is not None:
            (_, in_a_row, last), (step, samples_seen) = taken
            if last == step:
                skipped.append(Skipped(step, samples_seen, in_a_row))
                if in_a_row == 1 or self.row_begins is None:
                    self.row_begins = samples_seen
        return skipped
