"""Backbones: the network alone; see `record.py`. Another package adds one, see `family`."""

from dp_prior.config import family

BackboneConfig = family(
    "backbones",
    {
        "unet1d": "dp_prior.networks.backbones.unet1d:UNet1DConfig",
        "unet1d_local": "dp_prior.networks.backbones.unet1d_local:LocalUNet1DConfig",
        "transformer": "dp_prior.networks.backbones.transformer:TransformerConfig",
        "dit": "dp_prior.networks.backbones.dit:DiTConfig",
        "mlp": "dp_prior.networks.backbones.mlp:MLPConfig",
    },
    needs=("create", "horizon_faults", "length_factor"),
)

ImageBackboneConfig = family(
    "image_backbones",
    {
        "unet2d": "dp_prior.networks.backbones.unet2d:UNet2DConfig",
        "dit2d": "dp_prior.networks.backbones.dit2d:DiT2DConfig",
    },
    needs=("create", "cond_dim"),
)

PriorBackboneConfig = family(
    "prior_backbones",
    {
        "prior_transformer": "dp_prior.networks.backbones.prior_transformer:PriorTransformerConfig",
        "multi_query_prior": "dp_prior.networks.backbones.multi_query_prior:MultiQueryPriorConfig",
    },
    needs=("create", "encoder", "timestep_faults"),
)
