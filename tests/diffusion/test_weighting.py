"""Weightings stated for x_0 give the forms published for each objective."""

import pytest
import torch

from dp_prior.diffusion.objective import X0, Eps, FlowVelocity, V
from dp_prior.diffusion.schedule import Cosine, Flow
from dp_prior.diffusion.weighting import P2, MinSNR, Uniform

TABLE = Cosine(steps=1000).table()
SNR = TABLE.snr


@pytest.mark.parametrize(
    ("objective", "published"),
    [
        (X0(), SNR.clamp(max=5)),
        (Eps(), SNR.clamp(max=5) / SNR),
        (V(), SNR.clamp(max=5) / (SNR + 1)),
    ],
    ids=repr,
)
def test_min_snr_equals_its_published_forms(objective, published):
    weight = MinSNR().weight(SNR, objective.error_scale(TABLE.alpha, TABLE.sigma) * torch.ones_like(SNR))
    torch.testing.assert_close(weight, published, rtol=1e-6, atol=0)


def test_min_snr_counts_one_error_of_x0_the_same_under_every_objective():
    table = Flow().table()
    for objective in (X0(), V(), FlowVelocity()):
        scale = objective.error_scale(table.alpha, table.sigma) * torch.ones(100).double()
        torch.testing.assert_close(MinSNR().weight(table.snr, scale) * scale, table.snr.clamp(max=5))


def test_uniform_is_one():
    assert (Uniform().weight(SNR, SNR) == 1).all()


@pytest.mark.parametrize(("gamma", "k"), [(0.0, 1.0), (0.5, 1.0), (1.0, 2.0)])
def test_p2_equals_its_published_form(gamma, k):
    """Choi et al.: the simple loss of eps, weighted by (k + SNR)^-gamma; with gamma 0 it is that loss."""
    weight = P2(gamma=gamma, k=k).weight(SNR, Eps().error_scale(TABLE.alpha, TABLE.sigma))
    torch.testing.assert_close(weight, (k + SNR) ** -gamma, rtol=1e-6, atol=0)


@pytest.mark.parametrize("changed", [MinSNR(gamma=2.0), P2(gamma=0.5), P2(k=2.0)], ids=repr)
def test_every_field_changes_the_weights(changed):
    assert not torch.equal(changed.weight(SNR, SNR), type(changed)().weight(SNR, SNR))
