"""Backbones: the network alone; see `record.py`. An installed package adds one by an entry point, see `family`."""

from dp_prior.config import family
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.backbones.mlp import MLPConfig
from dp_prior.networks.backbones.transformer import TransformerConfig
from dp_prior.networks.backbones.unet1d import LocalUNet1DConfig, UNet1DConfig

BackboneConfig = family("backbones", UNet1DConfig, LocalUNet1DConfig, TransformerConfig, DiTConfig, MLPConfig)
