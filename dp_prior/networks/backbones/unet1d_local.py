"""The UNet of `unet1d` with observations at their positions of the chunk."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dp_prior.networks.backbones.backbone_record import NamedAxes, Sizes
from dp_prior.networks.backbones.unet1d import ResidualBlock, UNet1D, UNet1DConfig
from dp_prior.networks.layers import arranged


class LocalUNet1DConfig(UNet1DConfig):
    """UNet that reads observations at their positions of the chunk (Diffusion Policy's local conditioning).

    A separate residual block encodes the token of observation step i, which is added to the first block's features at
    position i; only the timestep modulates.
    """

    type: Literal["unet1d_local"] = "unet1d_local"

    def network(self, sizes: Sizes) -> LocalUNet1D:
        """See `UNet1DConfig.network`."""
        horizon, n_tokens = sizes.x_shape[0], sizes.cond_shape[0]
        if 0 in sizes.cond_shape:
            raise ValueError("unet1d_local has no observation to put anywhere. Give it one, or use unet1d")
        if n_tokens > horizon:
            raise ValueError(
                f"unet1d_local puts {n_tokens} observation tokens at the positions of a chunk of horizon {horizon}, "
                f"which is too short. Raise horizon, lower n_obs_steps, or use unet1d"
            )
        return LocalUNet1D(self, sizes)


class LocalResidualBlock(ResidualBlock):
    """The sum of two residual blocks: of x_t, and of the local condition, which is in the last channels."""

    def __init__(
        self, config: UNet1DConfig, in_channels: int, local_channels: int, out_channels: int, *, cond_dim: int
    ):
        super().__init__(config, in_channels, out_channels, cond_dim=cond_dim)
        self.local = ResidualBlock(config, local_channels, out_channels, cond_dim=cond_dim)
        self.channels = (in_channels, local_channels)

    def forward(self, x: Tensor, cond: Tensor) -> Tensor:
        """(B, H, in_channels + local_channels), (B, cond_dim) after Mish -> (B, H, out_channels)."""
        x, local = x.split(self.channels, dim=-1)
        return super().forward(arranged(x), cond) + self.local(arranged(local), cond)


class LocalUNet1D(UNet1D):
    """See `LocalUNet1DConfig`; arguments and `forward` as `UNet1D`.

    Diffusion Policy's network holds another local block, for the way up, which never runs and is left out here.
    """

    is_local = True
    named_axes: ClassVar[NamedAxes] = {
        "down.0.first.conv_1.weight": (1, "x"),
        "down.0.first.shortcut.weight": (1, "x"),
        "down.0.first.local.conv_1.weight": (1, "token"),
        "down.0.first.local.shortcut.weight": (1, "token"),
        "head.out.*": (0, "x"),
    }

    def __init__(self, config: LocalUNet1DConfig, sizes: Sizes):
        super().__init__(config, sizes)
        self.down[0].first = LocalResidualBlock(
            config, sizes.in_channels, sizes.cond_shape[1], config.down_dims[0], cond_dim=config.step_embed_dim
        )

    def _inputs(self, x_t: Tensor, cond: Tensor) -> tuple[Tensor, Tensor]:
        cond = F.pad(cond, (0, 0, 0, x_t.shape[1] - cond.shape[1]))
        return torch.cat([x_t, cond], dim=-1), x_t.new_empty(x_t.shape[0], 0)
