"""Actions as seen from where the robot is: what is diffused is the way from the newest observation of its own position.

A chunk of absolute targets says mostly where the robot stands, which the observation tells already. Its offsets from
there are the decision, look alike all over the workspace, and are learnt from fewer demonstrations (Chi et al. 2024,
UMI, arXiv:2402.10329, section IV-B).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class RelativeActions:
    """A pair of inverse maps between absolute actions and offsets from the newest observation of `key`."""

    key: str
    newest: int = -1
    """Which step of the observations is the newest; later ones may follow where a task diffuses those."""

    def encode(self, actions: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """(B, H, A) absolute, obs[key] (B, n, A) -> (B, H, A) offsets."""
        return actions - obs[self.key][:, self.newest, None]

    def decode(self, offsets: Tensor, obs: dict[str, Tensor]) -> Tensor:
        """The inverse of `encode`."""
        return offsets + obs[self.key][:, self.newest, None]
