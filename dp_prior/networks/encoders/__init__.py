"""Encoders of one observation key, and their union. `observation.py` joins them into condition tokens.

A record has `create(shape)`, shape being that of one step; the module has `output_dim`.
"""

from typing import Annotated

from pydantic import Field

from dp_prior.networks.encoders.angle import AngleEncoderConfig
from dp_prior.networks.encoders.state import StateEncoderConfig

EncoderConfig = Annotated[StateEncoderConfig | AngleEncoderConfig, Field(discriminator="type")]
