"""Conditional one-dimensional UNet: the convolutional backbone of Diffusion Policy (Chi et al. 2023, section III).

Convolutions run over the positions of the chunk; the timestep and all condition tokens, flattened to one vector,
modulate every residual block by FiLM. Function and parameters equal the published network's, so published weights load;
see `UNet1D.load_published`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.networks.backbones.backbone_record import BackboneRecord, NamedAxes, Sizes
from dp_prior.networks.convolution import Conv1d, Downsample1d, PointwiseConv1d, Upsample1d
from dp_prior.networks.layers import (
    FiLM,
    GroupNorm,
    StepEmbedding,
    arranged,
    compute_dtype,
    is_channels_first,
    joined_channels,
    mish,
)

PUBLISHED_HEAD_GROUPS = 8
"""Groups of the head in Diffusion Policy's and LeRobot's networks, which pass n_groups to every block but the last."""


class UNet1DConfig(BackboneRecord):
    """Conditional 1-D UNet (Chi et al. 2023); the defaults are the paper's for low-dimensional observations."""

    type: Literal["unet1d"] = "unet1d"

    down_dims: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(256, 512, 1024), min_length=1)
    """Channels of each level; every level after the first has half the positions of the previous level."""

    kernel_size: int = Field(default=5, ge=1)
    """Positions a convolution sees; odd."""

    n_groups: int = Field(default=8, ge=1)
    """Groups of the group norm; divides every level's channels."""

    head_groups: int | None = Field(default=None, ge=1)
    """Groups of the head's group norm; null for n_groups. Published weights always need 8."""

    step_embed_dim: int = Field(default=256, ge=4, multiple_of=2)
    """Features of the embedded timestep."""

    film_scale: bool = True
    """Whether the condition predicts a scale and a bias for every channel, or (false) only a bias."""

    def faults(self) -> Iterator[str]:
        if self.kernel_size % 2 == 0:
            yield (
                f"kernel_size is {self.kernel_size}; an even kernel has no centre and would change the number of "
                f"positions. Take {self.kernel_size - 1} or {self.kernel_size + 1}"
            )
        uneven = [dim for dim in self.down_dims if dim % self.n_groups]
        if uneven:
            yield (
                f"down_dims {list(self.down_dims)} hold {uneven[0]}, which n_groups {self.n_groups} does not divide. "
                f"Take multiples of {self.n_groups}, or fewer groups"
            )
        if self.head_groups is not None and self.down_dims[0] % self.head_groups:
            yield (
                f"head_groups {self.head_groups} does not divide the head's channels, down_dims[0] = "
                f"{self.down_dims[0]}. Take a divisor of it, or null for n_groups"
            )

    @property
    def length_factor(self) -> int:
        """See `BackboneRecord`: every level but the last halves the positions."""
        return 2 ** (len(self.down_dims) - 1)

    def network(self, sizes: Sizes) -> UNet1D:
        """See `BackboneRecord`; x_shape is (H, A)."""
        return UNet1D(self, sizes)


class ResidualBlock(nn.Module):
    """Two convolutions, each with group norm and Mish; the condition modulates between them."""

    def __init__(self, config: UNet1DConfig, in_channels: int, out_channels: int, *, cond_dim: int):
        super().__init__()
        self.conv_1 = Conv1d(in_channels, out_channels, config.kernel_size)
        self.norm_1 = GroupNorm(config.n_groups, out_channels)
        self.film = FiLM(cond_dim=cond_dim, channels=out_channels, has_scale=config.film_scale)
        self.conv_2 = Conv1d(out_channels, out_channels, config.kernel_size)
        self.norm_2 = GroupNorm(config.n_groups, out_channels)
        self.shortcut = PointwiseConv1d(in_channels, out_channels) if in_channels != out_channels else nn.Identity()

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """(B, H, in_channels), (B, cond_dim) after Mish -> (B, H, out_channels)."""
        hidden = self.film(mish(self.norm_1(self.conv_1(x))), cond)
        return mish(self.norm_2(self.conv_2(hidden))) + self.shortcut(x)


class Level(nn.Module):
    """Two residual blocks, and the way to the next level."""

    def __init__(self, first: ResidualBlock, second: ResidualBlock, resample: nn.Module):
        super().__init__()
        self.first, self.second, self.resample = first, second, resample

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """The two blocks, without resampling, since their output is also the skip connection."""
        return self.second(self.first(x, cond), cond)


class Head(nn.Module):
    """The last convolution with norm and Mish, then the projection to the output channels."""

    def __init__(self, config: UNet1DConfig, out_channels: int):
        super().__init__()
        channels = config.down_dims[0]
        self.conv = Conv1d(channels, channels, config.kernel_size)
        self.norm = GroupNorm(config.head_groups or config.n_groups, channels)
        self.out = PointwiseConv1d(channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, H, channels) -> (B, H, out_channels)."""
        return self.out(mish(self.norm(self.conv(x))))


class UNet1D(nn.Module):
    """See `UNet1DConfig`."""

    is_local = False
    shard_units = (ResidualBlock,)
    named_axes: ClassVar[NamedAxes] = {
        "down.0.first.conv_1.weight": (1, "x"),
        "down.0.first.shortcut.weight": (1, "x"),
        "*.film.linear.weight": (1, "cond"),
        "head.out.*": (0, "x"),
    }

    def __init__(self, config: UNet1DConfig, sizes: Sizes):
        super().__init__()
        down_dims = config.down_dims
        cond_dim = config.step_embed_dim + (0 if self.is_local else math.prod(sizes.cond_shape))
        block = partial(ResidualBlock, config, cond_dim=cond_dim)
        self.step_embedding = StepEmbedding(dim=config.step_embed_dim)
        pairs = list(zip((sizes.in_channels, *down_dims[:-1]), down_dims, strict=True))
        self.down = nn.ModuleList(
            Level(block(dim_in, dim), block(dim, dim), Downsample1d(dim) if level < len(pairs) - 1 else nn.Identity())
            for level, (dim_in, dim) in enumerate(pairs)
        )
        self.mid = nn.ModuleList(block(down_dims[-1], down_dims[-1]) for _ in range(2))
        # The first level's skip connection is unused: only the head follows the last upsampling.
        self.up = nn.ModuleList(
            Level(block(2 * dim, dim_in), block(dim_in, dim_in), Upsample1d(dim_in))
            for dim_in, dim in reversed(pairs[1:])
        )
        self.head = Head(config, sizes.out_channels)

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, H, in_channels), (B,), (B, N, D) -> (B, H, out_channels)."""
        dtype = compute_dtype(self.head.out.weight)
        x, modulating = self._inputs(x_t.to(dtype), cond.to(dtype))
        features = torch.cat([self.step_embedding(t).to(dtype), modulating], dim=1)
        features = mish(features)  # computed once here for all blocks
        x, skips = arranged(x), []
        for level in self.down:
            x = level(x, features)
            skips.append(x)
            x = level.resample(x)
        for block in self.mid:
            x = block(x, features)
        for level in self.up:
            x = level.resample(level(joined_channels(x, skips.pop()), features))
        y = self.head(x)
        return y.contiguous() if is_channels_first(y) else y

    def load_published(self, weights: Mapping[str, Tensor]) -> None:
        """Load the weights of a published network; see `rename_published`. n_groups must be as in its training.

        Raises:
            ValueError: the number of groups of the head's group norm differs; shapes of tensors would not show this.
            RuntimeError: names or shapes do not fit.
        """
        groups = self.head.norm.num_groups
        if groups != PUBLISHED_HEAD_GROUPS:
            raise ValueError(
                f"the head's group norm has {groups} groups, but the published networks always have "
                f"{PUBLISHED_HEAD_GROUPS} there; set head_groups to {PUBLISHED_HEAD_GROUPS}"
            )
        self.load_state_dict(rename_published(weights))

    def _inputs(self, x_t: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        """The input of the first block, and the features that modulate together with the timestep's."""
        return x_t, cond.flatten(1)


_UNET_NAMES = (
    (r"^diffusion_step_encoder\.", "step_embedding."),
    (r"^(down|up)_modules\.(\d+)\.0\.", r"\1.\2.first."),
    (r"^(down|up)_modules\.(\d+)\.1\.", r"\1.\2.second."),
    (r"^(down|up)_modules\.(\d+)\.2\.(conv\.)?", r"\1.\2.resample."),
    (r"^mid_modules\.", "mid."),
    (r"^local_cond_encoder\.0\.", "down.0.first.local."),
    (r"^local_cond_encoder\.1\.", None),  # never runs in the published network
    (r"^final_conv\.0\.block\.0\.", "head.conv."),
    (r"^final_conv\.0\.block\.1\.", "head.norm."),
    (r"^final_conv\.1\.", "head.out."),
    (r"\.(blocks\.0|conv1)\.block\.0\.", ".conv_1."),
    (r"\.(blocks\.0|conv1)\.block\.1\.", ".norm_1."),
    (r"\.(blocks\.1|conv2)\.block\.0\.", ".conv_2."),
    (r"\.(blocks\.1|conv2)\.block\.1\.", ".norm_2."),
    (r"\.cond_encoder\.1\.", ".film.linear."),
    (r"\.residual_conv\.", ".shortcut."),
)


def rename_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a published network under our names; the tensors are unchanged.

    Args:
        weights: state dict, without prefix, of Diffusion Policy's `ConditionalUnet1D` (in checkpoints under `model.`)
            or of LeRobot's `DiffusionConditionalUnet1d` (under `diffusion.unet.`).
    """
    from dp_prior.networks.encoders.published_weights import rename

    return rename(weights, _UNET_NAMES)
