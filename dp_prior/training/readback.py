"""Small tensors on their way to the host, so that the loop reads numbers of a step without waiting for the device."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

LAG = 2  # steps; the device always has one queued while the host reads


class Readback:
    """Values of one step after another, read in order: at once on a CPU, `LAG` steps late on a GPU."""

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
