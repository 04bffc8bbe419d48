"""LocalUNet1D against a plain version; every field is tested beside UNet1D's."""

import pytest
import torch

from dp_prior.networks.backbones.unet1d_local import LocalUNet1DConfig
from tests.messages import naming
from tests.networks.backbones.test_unet1d import SMALL, PlainUNet, inputs


def test_local_conditioning_equals_the_plain_version_with_its_published_weights():
    torch.manual_seed(0)
    plain = PlainUNet(3, 0, local=5)
    ours = LocalUNet1DConfig(**SMALL).create((8, 3), (2, 5))
    ours.load_published(plain.state_dict())
    x_t, t, cond = inputs()
    local = torch.zeros(6, 8, 5)
    local[:, :2] = cond
    torch.testing.assert_close(ours(x_t, t, cond), plain(x_t, t, cond[:, :0], local), rtol=1e-4, atol=1e-4)


def test_local_conditioning_acts_at_its_own_position():
    """Two convolutions of kernel 3 reach two positions; an observation at position 0 cannot reach further there."""
    torch.manual_seed(0)
    ours = LocalUNet1DConfig(**SMALL, kernel_size=3).create((8, 3), (2, 5)).eval()
    block = ours.down[0].first
    for norm in (block.local.norm_1, block.local.norm_2):  # group norm would spread a change over all positions
        norm.forward = lambda x: x
    x_t, t, cond = inputs()
    features = torch.zeros(6, 12)
    difference = (
        (
            block(ours._inputs(x_t, cond)[0], features)
            - block(ours._inputs(x_t, cond * torch.tensor([2.0, 1.0])[:, None])[0], features)
        )
        .abs()
        .sum((0, 2))
    )
    assert (difference[:3] > 0).all() and (difference[3:] == 0).all()


@pytest.mark.parametrize(
    ("cond_shape", "message"),
    [
        ((9, 5), ("unet1d_local", 9, "horizon 8", "n_obs_steps")),
        ((0, 0), ("unet1d_local", "unet1d")),
    ],
)
def test_local_conditioning_refuses_what_it_cannot_place(cond_shape, message):
    with pytest.raises(ValueError, match=naming(*message)):
        LocalUNet1DConfig(**SMALL).create((8, 3), cond_shape)
