"""Encoders of one observation key, and their union. `observation.py` joins them into condition tokens.

A record has `create(shape)`, shape being that of one step; the module has `output_dim`. `needs_data_units` tells
whether the numbers must reach it as they are in the data, which is what the identity normalizer does.
"""

from dp_prior.config import family
from dp_prior.networks.encoders.angle import AngleEncoderConfig
from dp_prior.networks.encoders.planar import PlanarEncoderConfig
from dp_prior.networks.encoders.state import StateEncoderConfig

EncoderConfig = family("encoders", StateEncoderConfig, AngleEncoderConfig, PlanarEncoderConfig)
