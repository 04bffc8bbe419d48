"""Backbones: the network alone, forward(x_t (B, *x_shape), t (B,), cond (B, N, D)) -> raw output of x's shape.

A record has `create(x_shape, cond_shape, output_channels_factor, input_channels_factor)`, which multiply the last
dimension of output and input, and `length_factor`, of which the horizon must be a multiple.
"""

from dp_prior.config import family
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.backbones.mlp import MLPConfig
from dp_prior.networks.backbones.transformer import TransformerConfig
from dp_prior.networks.backbones.unet1d import LocalUNet1DConfig, UNet1DConfig

BackboneConfig = family("backbones", UNet1DConfig, LocalUNet1DConfig, TransformerConfig, DiTConfig, MLPConfig)
