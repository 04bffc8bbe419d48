"""Training-time chunking: the policy learns to continue a chunk whose first actions are given
(Black et al. 2025, arXiv:2512.05964).

While a chunk is predicted the robot executes d more actions of the last one. In training d is drawn for each sample.
Its first n_obs_steps - 1 + d actions, which begin before the present, are then given without noise, and the network
also gets a mask of what is given. d = 0 gives nothing: such samples train the policy as it is without a prefix.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config
from dp_prior.diffusion.denoiser import Network
from dp_prior.tensors.randomness import Randomness


class PrefixConfig(Config):
    """Chunks are predicted given their first actions, those executed or under way."""

    max_delay: int = Field(ge=0)
    """Most control steps between an observation and the first executed action of its chunk. Each training sample draws
    its delay from 0 to this, all equally likely; 0 gives no actions."""

    def draw(self, mask: Tensor, present: int, random: Randomness) -> Tensor:
        """(B, H, 1) bool, the actions that training samples are given.

        Args:
            mask: (B, H) bool, True where an action is real; padding is never given.
            present: index of the present action.
            random: B rows.
        """
        delay = random.stream("prefix").integers(self.max_delay + 1)[:, None]
        length = torch.where(delay > 0, present + delay, 0)
        return ((torch.arange(mask.shape[1], device=mask.device) < length) & mask)[..., None]

    def with_mask(self, network: Network, channels: int, is_noise_free: Tensor | None) -> Network:
        """A network of x_t alone, to which the mask of the given elements is appended as further channels.

        Args:
            channels: of x.
            is_noise_free: bool, broadcasts against x; None for nothing.
        """

        def call(x_t: Tensor, t: Tensor) -> Tensor:
            shape = (*x_t.shape[:-1], channels)  # x_t may hold a self-conditioning estimate besides
            marks = x_t.new_zeros(shape) if is_noise_free is None else is_noise_free.expand(shape).to(x_t.dtype)
            return network(torch.cat([x_t, marks], -1), t)

        return call
