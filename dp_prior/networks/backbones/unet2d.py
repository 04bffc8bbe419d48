"""The UNet of images of Dhariwal and Nichol (arXiv:2102.09672, arXiv:2105.05233), by diffusers' `UNet2DModel`.

With `scale_shift` and `resample` "conv" the network equals improved-diffusion's UNetModel; docs/networks.md translates
the settings. The last layer of every residual branch starts at zero, as in improved-diffusion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.files.entry_points import needing
from dp_prior.networks.backbones.backbone_record import ImageBackboneRecord, Sizes
from dp_prior.networks.dropout import Dropout, recomputed
from dp_prior.networks.layers import compute_dtype, is_channels_first


class UNet2DConfig(ImageBackboneRecord):
    """UNet of residual blocks and attention over pixels."""

    type: Literal["unet2d"] = "unet2d"

    channels: int = Field(default=128, ge=1)
    """Channels of the first level."""

    channel_mult: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (1, 2, 2, 2)
    """Channels of each level, as multiples of `channels`; every level but the first halves height and width."""

    n_res_blocks: int = Field(default=2, ge=1)
    """Residual blocks per level on the way down; one more per level on the way up."""

    attention_resolutions: tuple[Annotated[int, Field(ge=1)], ...] = (16, 8)
    """Heights at which attention follows every block; the middle of the network always has attention."""

    head_dim: int = Field(default=64, ge=1)
    """Channels of an attention head, where `heads` is null."""

    heads: int | None = Field(default=None, ge=1)
    """Heads of attention at every level, of which each has its share of the channels; null for heads of `head_dim`."""

    heads_up: int | None = Field(default=None, ge=1)
    """Heads on the way up, in place of `heads`; null for as many."""

    n_groups: int = Field(default=32, ge=1)
    """Groups of the group norms."""

    timestep_scale: float = Field(default=1.0, gt=0)
    """Factor of the timestep before its embedding; 1000 / `schedule.steps` is what improved-diffusion's
    `rescale_timesteps` multiplies by."""

    scale_shift: bool = True
    """Timestep and label scale and shift the features after the second norm; false: are added before the norm."""

    resample: Literal["conv", "resnet"] = "conv"
    """Layer that halves and doubles the resolution: a convolution, or a residual block."""

    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Probability of dropping a feature inside a residual block, in training."""

    checkpointing: bool = False
    """Recompute residual blocks in the backward pass instead of keeping intermediate values: less memory, about a third
    more time, the same numbers. No effect in compiled code, where torch.compile decides."""

    def faults(self) -> Iterator[str]:
        if self.heads_up is not None and self.heads is None:
            yield "heads_up is set without heads; set both, or head_dim alone"
        odd = [width for width in self.widths if width % self.n_groups]
        if odd:
            yield f"levels have {list(self.widths)} channels; n_groups {self.n_groups} does not divide {odd[0]}"

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(factor * self.channels for factor in self.channel_mult)

    @property
    def length_factor(self) -> int:
        return 2 ** (len(self.channel_mult) - 1)

    @property
    def cond_dim(self) -> int:
        """See `ImageBackboneRecord`; the token is added to the embedded timestep."""
        return 4 * self.channels

    def shape_faults(self, x_shape: tuple[int, ...]) -> Iterator[str]:
        """See `BackboneRecord`; attention must be at heights that the network has."""
        yield from super().shape_faults(x_shape)
        heights = [x_shape[0] >> level for level in range(len(self.widths))]
        unknown = sorted(set(self.attention_resolutions) - set(heights))
        if unknown:
            yield f"attention_resolutions names {unknown}, but the levels of the network have heights {heights}"
        names = ("head_dim",) if self.heads is None else ("heads", "heads_up")
        divisors = {name: value for name in names if (value := getattr(self, name)) is not None}
        for height, width in zip(heights, self.widths, strict=True):
            if height in (*self.attention_resolutions, heights[-1]):
                for name, value in divisors.items():
                    if width % value:
                        yield f"{name} {value} does not divide the {width} channels of attention at height {height}"

    def network(self, sizes: Sizes) -> UNet2D:
        """See `BackboneRecord`; x_shape is (H, W, C)."""
        return UNet2D(self, sizes)


class UNet2D(nn.Module):
    """See `UNet2DConfig`."""

    def __init__(self, config: UNet2DConfig, sizes: Sizes):
        super().__init__()
        with needing("image", 'backbone "unet2d" needs diffusers'):
            from diffusers import UNet2DModel
        has_attention = [
            sizes.x_shape[0] >> level in config.attention_resolutions for level in range(len(config.widths))
        ]
        self.has_label = sizes.cond_shape[0] > 0
        self.timestep_scale = config.timestep_scale
        self.unet = UNet2DModel(
            in_channels=sizes.in_channels,
            out_channels=sizes.out_channels,
            block_out_channels=config.widths,
            layers_per_block=config.n_res_blocks,
            down_block_types=["AttnDownBlock2D" if has else "DownBlock2D" for has in has_attention],
            up_block_types=["AttnUpBlock2D" if has else "UpBlock2D" for has in reversed(has_attention)],
            downsample_type=config.resample,
            upsample_type=config.resample,
            attention_head_dim=config.head_dim if config.heads is None else config.channels,
            norm_num_groups=config.n_groups,
            attn_norm_num_groups=config.n_groups,
            resnet_time_scale_shift="scale_shift" if config.scale_shift else "default",
            dropout=config.dropout,
            class_embed_type="identity" if self.has_label else None,
        )
        for module in list(self.unet.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Dropout):
                    setattr(module, name, Dropout(child.p))
        if config.heads is not None:
            self._divide_attention(config.heads, config.heads_up or config.heads)
        from diffusers.models.attention_processor import Attention
        from diffusers.models.resnet import ResnetBlock2D

        self.shard_units = (ResnetBlock2D, Attention)
        if config.checkpointing:
            self.unet.enable_gradient_checkpointing(recomputed)
        self._zero_last_layers()

    def _divide_attention(self, heads: int, heads_up: int) -> None:
        """Set the number of heads of every attention; diffusers knows one size of heads for all levels."""
        from diffusers.models.attention_processor import Attention

        for name, module in self.unet.named_modules():
            if isinstance(module, Attention):
                module.heads = heads_up if name.startswith("up_blocks.") else heads
                module.scale = (module.inner_dim // module.heads) ** -0.5

    def _zero_last_layers(self) -> None:
        """Zero the last layer of every residual branch and of the output, which diffusers does not do."""
        for name, parameter in self.unet.named_parameters():
            if ".conv2." in name or ".to_out.0." in name or name.startswith("conv_out."):
                nn.init.zeros_(parameter)

    def forward(self, x_t: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """(B, H, W, in_channels), (B,), (B, 1 or 0, D) -> (B, H, W, out_channels)."""
        dtype = compute_dtype(self.unet.conv_in.weight)
        label = cond[:, 0].to(dtype) if self.has_label else None
        x_t = x_t.movedim(-1, 1).to(dtype)
        if is_channels_first(x_t) or (dtype is torch.bfloat16 and x_t.device.type == "cpu"):
            x_t = x_t.contiguous()  # torch's group norm in bfloat16 on a CPU takes 7 times longer with channels last
        return self.unet(x_t, t * self.timestep_scale, class_labels=label, return_dict=False)[0].movedim(1, -1)
