"""What an encoder of one's own inherits."""

import pytest
import torch

from dp_prior.networks.encoders.encoder import Encoder
from dp_prior.networks.encoders.observation import ObservationEncoder
from dp_prior.tensors.randomness import Randomness


class Doubling(Encoder):
    """Draws nothing, and says nothing about it."""

    output_dim = 3

    def forward(self, value, random=None):
        assert random is None
        return 2 * value


class Noisy(Encoder):
    """Draws one number for each sample."""

    output_dim = 1
    draws = True

    def forward(self, value, random=None):
        noise = torch.zeros(len(value)) if random is None else random.uniform()
        return value + noise[:, None, None]


def test_only_an_encoder_that_says_so_gets_random_rows():
    observations = {"a": torch.ones(4, 2, 3), "b": torch.zeros(4, 2, 1)}
    encoder = ObservationEncoder({"a": Doubling(), "b": Noisy()}, {"a": (2, 3), "b": (2, 1)})
    rows = Randomness.from_counts(0, "encode", torch.arange(4))
    found = encoder(observations, random=rows)
    assert torch.equal(found[..., :3], 2 * observations["a"])
    assert len(found[:, 0, 3].unique()) == 4 and torch.equal(found[:, 0], found[:, 1])
    assert not encoder(observations)[..., 3].any()


def test_an_encoder_without_a_forward_is_told_so():
    with pytest.raises(NotImplementedError):
        Encoder()(torch.zeros(1, 1))
