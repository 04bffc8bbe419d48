"""What the record of every backbone declares, and the network it makes."""

from __future__ import annotations

from torch import nn

from dp_prior.config import Config


class BackboneRecord(Config):
    """The record of a network `forward(x_t (B, *x_shape), t (B,), cond (B, N, D))` -> raw output of x's shape.

    A member of the family has a `type` and `create`. The network draws dropout with `networks.dropout.Dropout`.
    """

    @property
    def length_factor(self) -> int:
        """The horizon must be a multiple of this."""
        return 1

    def create(
        self,
        x_shape: tuple[int, ...],
        cond_shape: tuple[int, int],
        output_channels_factor: int = 1,
        input_channels_factor: int = 1,
    ) -> nn.Module:
        """An untrained network.

        Args:
            x_shape: of one sample; chunks are (H, A), embeddings (D,).
            cond_shape: (N, D), number and size of the condition tokens.
            output_channels_factor: the last dimension of the output is this many times that of x_shape.
            input_channels_factor: the last dimension of x_t likewise.

        Raises:
            ValueError: such a network does not fit samples or conditions of this shape.
        """
        raise NotImplementedError
