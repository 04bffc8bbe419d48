"""Relative actions: the chunk is expressed as offsets from the newest observed position of the robot.

Absolute targets mostly repeat where the robot is, which the observation already contains. Offsets look alike all over
the workspace and need fewer demonstrations (Chi et al. 2024, UMI, arXiv:2402.10329, section IV-B).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RelativeActions:
    """A pair of inverse maps between absolute actions and offsets from the newest observation of `key`."""

    key: str
    newest: int = -1
    """Index of the newest observation; a task that diffuses observations has later ones after it."""

    def encode(self, actions: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """(B, H, A) absolute, obs[key] (B, n, A) -> (B, H, A) offsets."""
        return actions - obs[self.key][:, self.newest, None]

    def decode(self, offsets: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """The inverse of `encode`."""
        return offsets + obs[self.key][:, self.newest, None]
