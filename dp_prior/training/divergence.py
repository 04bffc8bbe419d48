"""Detects a loss that diverges while all numbers stay finite, without waiting for the device.

The rule: the loss of the global batch is more than `DIVERGED_FACTOR` times the lowest value of its running mean, for
`STEPS_IN_A_ROW` steps. The running mean covers the last `MEAN_STEPS` steps; a mean of n < `MEAN_STEPS` steps counts
`MEAN_STEPS` / n times as much, since a few losses of a small batch may all be low. Magnitudes are averaged: the
likelihood of a density may be negative, and a mean of both signs may be near 0 by chance.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dp_prior.tensors.metrics import widest
from dp_prior.training.guard import Readback, UnusableStepsError

DIVERGED_FACTOR = 10.0
STEPS_IN_A_ROW = 20
MEAN_STEPS = 50


class DivergedError(UnusableStepsError):
    """The training loss has diverged."""


class LossSum(NamedTuple):
    """One rank's part of the loss of a step: the mean over all ranks is `value` summed over `weight` summed."""

    value: float = 0.0
    weight: float = 0.0


class Divergence:
    """Follows the loss of the global batch.

    Attributes:
        since: the step at which the loss diverged; None while it has not.
    """

    def __init__(self) -> None:
        self.since: int | None = None
        self._step = 0  # the last step that was judged
        self._seen, self._mean, self._lowest, self._in_a_row = 0, 0.0, math.inf, 0
        self._readback = Readback()

    def count(self, value: Tensor, weight: Tensor, step: int) -> None:
        """Take this rank's sums of a step: () weighted losses and () weights, on the device."""
        wide = widest(value.device)
        self._readback.put(torch.stack([value.detach().to(wide), weight.to(wide)]), step)

    def read(self) -> LossSum:
        """The next step to be judged, the same on all ranks: the sums of this rank, or zeros before a step is ready."""
        taken = self._readback.take()
        if taken is None:
            return LossSum()
        sums, [self._step] = taken
        return LossSum(*sums)

    def settle(self) -> bool:
        """Wait for the device, so that `read` gives the next step at once. Returns whether there is one."""
        return self._readback.settle()

    def follow(self, total: LossSum) -> str | None:
        """Judge the next step.

        Args:
            total: the sums over all ranks.

        Returns:
            A message, once each time that the loss diverges; None otherwise.
        """
        if total.weight == 0:
            return None
        loss = total.value / total.weight
        if not math.isfinite(loss):  # the guard skips and counts such a step
            return None
        self._seen += 1
        self._in_a_row = self._in_a_row + 1 if loss > DIVERGED_FACTOR * self._lowest else 0
        covered = min(self._seen, MEAN_STEPS)
        self._mean += (abs(loss) - self._mean) / covered
        if self._mean > 0:
            self._lowest = min(self._lowest, self._mean * MEAN_STEPS / covered)
        if self._in_a_row != STEPS_IN_A_ROW:
            return None
        self.since = self._step - STEPS_IN_A_ROW + 1
        return (
            f"the training diverges: for {STEPS_IN_A_ROW} steps, since step {self.since}, the loss has been more than "
            f"{DIVERGED_FACTOR:g} times its lowest mean over {MEAN_STEPS} steps, {self._lowest:.4g}, and now is "
            f"{loss:.4g}. Lower train.lr or train.max_grad_norm, or check the data"
        )

    @property
    def lasts(self) -> bool:
        """Whether the loss has diverged and is not back on its level."""
        return self._in_a_row >= STEPS_IN_A_ROW

    def state(self) -> dict[str, Any]:
        """The state to save in a checkpoint."""
        return {
            "seen": self._seen,
            "mean": self._mean,
            "lowest": None if math.isinf(self._lowest) else self._lowest,
            "in_a_row": self._in_a_row,
            "since": self.since,
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore `state`; older runs did not record it."""
        if not state:
            return
        self._readback = Readback()
        self._seen, self._mean, self._in_a_row = state["seen"], state["mean"], state["in_a_row"]
        self._lowest = math.inf if state["lowest"] is None else state["lowest"]
        self.since = state["since"]

    def forget(self) -> None:
        """Forget the divergence; called after a rollback."""
        self._in_a_row, self.since = 0, None
