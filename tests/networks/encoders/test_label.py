"""Each label has a token of its own, and all dropped labels share one."""

import torch

from dp_prior.networks.encoders.label import LabelToken


def test_every_class_and_the_dropped_label_have_different_tokens():
    torch.manual_seed(0)
    encoder = LabelToken(4, 3)
    labels = torch.arange(4)
    known, dropped = encoder(labels), encoder(labels, torch.zeros(4))
    assert known.shape == dropped.shape == (4, *encoder.cond_shape) == (4, 1, 3)
    assert len(torch.cat([known, dropped]).unique(dim=0)) == 5
    assert (dropped == dropped[0]).all()


def test_dropping_replaces_exactly_the_samples_that_are_not_kept():
    encoder, labels, kept = LabelToken(4, 3), torch.tensor([0, 3, 1]), torch.tensor([1.0, 0.0, 1.0])
    expected = torch.where(kept.bool()[:, None, None], encoder(labels), encoder(labels, torch.zeros(3)))
    assert torch.equal(encoder(labels, kept), expected)
    assert torch.equal(encoder(labels, torch.ones(3)), encoder(labels))


def test_a_dropped_label_trains_only_the_token_of_dropped_labels():
    encoder = LabelToken(4, 3)
    encoder(torch.tensor([2]), torch.zeros(1)).sum().backward()
    assert encoder.tokens.weight.grad.ne(0).any(dim=1).tolist() == [False] * 4 + [True]
