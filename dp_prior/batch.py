"""A batch is what is diffused (`x`) and given what (`cond`); a `Spec` is the shape of one sample of it.

Nothing below `tasks/` knows more about the data than this file says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dp_prior.config import Config


class Spec(Config):
    """Shapes of one sample without the batch dimension. It comes from the data and is saved beside the weights."""

    x_shape: tuple[int, ...]
    """Shape of what is diffused; (horizon, action_dim) for a policy."""

    cond_shapes: dict[str, tuple[int, ...]]
    """Shape of each conditioning input by key; (n_obs_steps, ...) for a policy's observations."""


@dataclass(frozen=True)
class Batch:
    """B samples on one device, in data units until the model normalises them.

    Attributes:
        x: (B, *x_shape) float32.
        cond: (B, *shape) by key.
        mask: (B, *x_shape[:-1]) bool, True where x is real rather than padding; (B, horizon) for a policy.
        ids: (B,) int64 index of each sample in its data set; keys randomness where a result must not depend on order.
        positions: (B,) int64 position of each sample in the order of training; None outside training.
        denominator: () float32 number of valid positions of `mask` that a mean over this batch divides by; None means
            its own. Micro-batches of one global batch share it, so that their losses add up to the mean over the whole.
    """

    x: Tensor
    cond: dict[str, Tensor]
    mask: Tensor
    ids: Tensor
    positions: Tensor | None = None
    denominator: Tensor | None = None

    def __len__(self) -> int:
        return self.x.shape[0]

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on another device."""

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        cond = {key: value.to(device, non_blocking=True) for key, value in self.cond.items()}
        moved = {name: move(getattr(self, name)) for name in ("x", "mask", "ids", "positions", "denominator")}
        return replace(self, cond=cond, **moved)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        """The samples at `rows`; the denominator stays."""
        cond = {key: value[rows] for key, value in self.cond.items()}
        positions = None if self.positions is None else self.positions[rows]
        return replace(self, x=self.x[rows], cond=cond, mask=self.mask[rows], ids=self.ids[rows], positions=positions)
