"""Colour jitter: brightness, contrast, saturation and hue of a sample's frames as one affine map of RGB."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor, nn

from dp_prior.config import Config
from dp_prior.tensors.randomness import Randomness

_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601, as in Pillow's conversion to grey
_YIQ = (_LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))  # NTSC: luma and two chroma axes


class ColorJitterConfig(Config):
    """Random colours in training; the defaults are those of Stanford's real-robot image policies."""

    brightness: float = Field(default=0.3, ge=0, le=1)
    """RGB is multiplied by a factor drawn from 1 - brightness to 1 + brightness."""

    contrast: float = Field(default=0.4, ge=0, le=1)
    """The distance from mid-grey is multiplied by a factor drawn from 1 - contrast to 1 + contrast."""

    saturation: float = Field(default=0.5, ge=0, le=1)
    """The distance from the pixel's own grey is multiplied by a factor from 1 - saturation to 1 + saturation."""

    hue: float = Field(default=0.08, ge=0, le=0.5)
    """Colours are rotated around grey by at most this fraction of a full turn, in either direction."""

    def create(self) -> ColorJitter:
        """The module that draws the maps."""
        return ColorJitter(self)


class ColorJitter(nn.Module):
    """See `ColorJitterConfig`.

    Contrast pivots on mid-grey rather than on the frame's mean, so the map is a function of the random row only.
    """

    def __init__(self, config: ColorJitterConfig):
        super().__init__()
        yiq = torch.tensor(_YIQ, dtype=torch.float64, device="cpu")
        inverse = torch.linalg.inv(yiq)
        quarter_turn = torch.tensor([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], dtype=torch.float64, device="cpu")
        buffers = {
            "strengths": torch.tensor(
                [config.brightness, config.contrast, config.saturation, config.hue], device="cpu"
            ),
            "identity": torch.ones(3, device="cpu").diag(),  # the size of eye takes loading two seconds
            "grey": torch.tensor(_LUMA, device="cpu").expand(3, 3).clone(),  # RGB -> its grey, three times
            "turned": (inverse @ quarter_turn @ yiq).float(),  # RGB -> its chroma, rotated by a quarter turn
        }
        for name, value in buffers.items():
            self.register_buffer(name, value.to(torch.get_default_device()), persistent=False)

    def matrices(self, random: Randomness) -> Tensor:
        """(B, 3, 4) float32: the linear part and the offset of each sample's map, for RGB in [0, 1].

        Brightness comes first, then contrast, saturation and hue, without clamping between them.
        """
        draws = self.strengths.float() * (2 * random.stream("jitter").uniform(4) - 1)
        brightness, contrast, saturation = (1 + draws[:, :3])[..., None, None].unbind(1)
        angle = 2 * torch.pi * draws[:, 3, None, None]
        identity, grey, turned = self.identity.float(), self.grey.float(), self.turned.float()
        saturate = grey + saturation * (identity - grey)
        rotate = identity + (angle.cos() - 1) * (identity - grey) + angle.sin() * turned
        linear = brightness * contrast * (rotate @ saturate)
        offset = (0.5 * (1 - contrast)).expand(-1, 3, 1)  # saturation and hue leave grey as it is
        return torch.cat([linear, offset], dim=-1)

    def forward(self, pixels: Tensor, random: Randomness) -> Tensor:
        """(B, n_obs_steps, H, W, 3) float32 in [0, 255] -> the same shape, recoloured and clamped to [0, 255]."""
        matrices = self.matrices(random)
        linear, offset = matrices[..., :3].transpose(1, 2), 255 * matrices[:, None, :, 3]
        recoloured = torch.baddbmm(offset, pixels.reshape(len(pixels), -1, 3), linear)
        return recoloured.clamp_(0, 255).view_as(pixels)
