"""Encoders of one observation key, and their union. `observation.py` concatenates the features to condition tokens.

A record has `create(shape)`, which takes the shape of one step and returns an `Encoder`. `reads` lists the supported
kinds of keys; `needs_data_units` says whether the encoder needs unscaled values (the identity normalizer).
"""

from dp_prior.config import family
from dp_prior.networks.encoders.angle import AngleEncoderConfig
from dp_prior.networks.encoders.planar import PlanarEncoderConfig
from dp_prior.networks.encoders.points import PointEncoderConfig
from dp_prior.networks.encoders.resnet import ResNetEncoderConfig
from dp_prior.networks.encoders.state_encoder import StateEncoderConfig
from dp_prior.networks.encoders.vit import VitEncoderConfig

EncoderConfig = family(
    "encoders",
    *(StateEncoderConfig, AngleEncoderConfig, PlanarEncoderConfig, ResNetEncoderConfig, VitEncoderConfig),
    PointEncoderConfig,
    needs=("create", "reads", "needs_data_units"),
)
