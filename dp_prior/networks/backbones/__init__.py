"""Backbones: the network alone; see `record.py`. Another package adds one, see `family`."""

from dp_prior.config import family
from dp_prior.networks.backbones.dit import DiTConfig
from dp_prior.networks.backbones.dit2d import DiT2DConfig
from dp_prior.networks.backbones.mlp import MLPConfig
from dp_prior.networks.backbones.multi_query_prior import MultiQueryPriorConfig
from dp_prior.networks.backbones.prior_transformer import PriorTransformerConfig
from dp_prior.networks.backbones.transformer import TransformerConfig
from dp_prior.networks.backbones.unet1d import LocalUNet1DConfig, UNet1DConfig
from dp_prior.networks.backbones.unet2d import UNet2DConfig

BackboneConfig = family(
    "backbones",
    *(UNet1DConfig, LocalUNet1DConfig, TransformerConfig, DiTConfig, MLPConfig),
    needs=("create", "horizon_faults", "length_factor"),
)

ImageBackboneConfig = family("image_backbones", UNet2DConfig, DiT2DConfig, needs=("create", "cond_dim"))

PriorBackboneConfig = family(
    "prior_backbones",
    *(PriorTransformerConfig, MultiQueryPriorConfig),
    needs=("create", "encoder", "timestep_faults"),
)
