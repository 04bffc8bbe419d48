"""Base classes of the records of backbones, and the interface of the networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from torch import nn

from dp_prior.config import Config, made

NamedAxes = Mapping[str, tuple[int, Literal["x", "chunk", "token", "cond"]]]
"""Axes of a network's tensors that end in named numbers, as `named_axes` of a network, by the name of a tensor, where *
stands for any letters: the number of the axis, and the kind of names along the axis.

x: the numbers of x, once for each group of channels; chunk: the same for each position of a chunk; token: the features
of one condition token; cond: the network's own features, then those of all tokens.
"""


class Sizes(NamedTuple):
    """Shapes of a network's inputs and output; see `BackboneRecord.create`."""

    x_shape: tuple[int, ...]
    cond_shape: tuple[int, int]
    output_factor: int
    input_factor: int

    @property
    def in_channels(self) -> int:
        """Size of the last dimension of x_t."""
        return self.x_shape[-1] * self.input_factor

    @property
    def out_channels(self) -> int:
        """Size of the last dimension of the output."""
        return self.x_shape[-1] * self.output_factor


class BackboneRecord(Config):
    """The record of a network `forward(x_t (B, *x_shape), t (B,), cond (B, N, D))` -> raw output of x's shape.

    A member of the family has a `type` and implements `create`, or `network`, which `create` calls, like all members in
    this folder. The network draws dropout with `networks.dropout.Dropout`.
    """

    @property
    def length_factor(self) -> int:
        """The horizon must be a multiple of this number."""
        return 1

    def horizon_faults(self, horizon: int) -> Iterator[str]:
        """Reasons why the network cannot work on chunks of this length."""
        factor = self.length_factor
        if horizon % factor:
            above = horizon + factor - horizon % factor
            yield (
                f"horizon is {horizon}, but backbone {self.type!r} halves it and needs a multiple of {factor}; "
                f"use {above}" + (f" or {above - factor}" if above > factor else "")
            )

    def shape_faults(self, x_shape: tuple[int, ...]) -> Iterator[str]:
        """Reasons why the network cannot work on samples of this shape."""
        return self.horizon_faults(x_shape[0])

    def timestep_faults(self, steps: int) -> Iterator[str]:
        """Reasons why the network cannot read `steps` timesteps."""
        yield from ()

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
            output_channels_factor: last dimension of the output, as a multiple of the last of x_shape.
            input_channels_factor: last dimension of x_t, as a multiple of the last of x_shape.

        Raises:
            ValueError: the network does not fit samples or conditions of this shape.
        """
        for fault in self.shape_faults(x_shape):
            raise ValueError(fault)
        sizes = Sizes(x_shape, cond_shape, output_channels_factor, input_channels_factor)
        return made(self, "network", self.network(sizes), nn.Module)

    def network(self, sizes: Sizes) -> nn.Module:
        """An untrained network of these sizes. Its class may have `named_axes`, by which fine-tuning takes a part of a
        tensor where numbers or observations differ, see `NamedAxes`; and `shard_units`, the classes of blocks that
        ranks which divide a model gather in turn."""
        raise NotImplementedError(f"{type(self).__qualname__} has neither `network` nor `create`; write one of them")


class ImageBackboneRecord(BackboneRecord):
    """The record of a network of images (H, W, C); `cond` has one token, the embedded label, or no token."""

    @property
    def cond_dim(self) -> int:
        """Size of the token of a label."""
        raise NotImplementedError

    def shape_faults(self, x_shape: tuple[int, ...]) -> Iterator[str]:
        """See `BackboneRecord`; height and width must be multiples of `length_factor`."""
        factor, size = self.length_factor, x_shape[:2]
        if any(side % factor for side in size):
            fitting = [max(factor, round(side / factor) * factor) for side in size]
            yield (
                f"images are {size[0]} x {size[1]}, but backbone {self.type!r} needs multiples of {factor}; set "
                f"data.size, for example to {fitting}"
            )


class PriorBackboneRecord(BackboneRecord):
    """The record of a network of embeddings (D,); `encoder` makes its `cond` of text conditions."""

    def encoder(self, cond_shapes: Mapping[str, tuple[int, ...]], dim: int) -> nn.Module:
        """A module from text conditions by key, and (B,) by key of those that are kept, to `cond`; its `cond_shape` is
        (N, D).

        Args:
            cond_shapes: of the conditions `text` (D,) and `text_encodings` (n, D).
            dim: size of an image embedding.

        Raises:
            ValueError: the network does not fit conditions of these shapes.
        """
        raise NotImplementedError(f"{type(self).__qualname__} has no `encoder`; write it")


def heads_faults(embed_dim: int, n_heads: int, features: int) -> Iterator[str]:
    """Checks that `embed_dim` can be divided into heads whose width is a multiple of `features`."""
    if embed_dim % (features * n_heads):
        nearest = features * n_heads * max(1, round(embed_dim / (features * n_heads)))
        yield (
            f"embed_dim is {embed_dim}, but {n_heads} heads need a multiple of {features * n_heads}. "
            f"Take embed_dim {nearest}, or other n_heads"
        )
