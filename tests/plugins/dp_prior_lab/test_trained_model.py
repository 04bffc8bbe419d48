"""The model of a checkpoint is that of the weights that are named."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.inference.load import load_policy
from dp_prior.job.accelerator import make_accelerator
from dp_prior.job.ranks import Ranks
from dp_prior.places.reference import resolve
from dp_prior_lab.trained_model import load_model
from tests.messages import naming


def test_the_model_is_that_of_the_checkpoint_by_the_name_of_its_weights(trained_policy):
    directory, ranks = resolve(trained_policy), Ranks(make_accelerator("fp32"))
    for weights in (None, "slow"):
        place, model = load_model(trained_policy, ranks, weights=weights, guidance_scale=None)
        found = model.state_dict()
        expected = load_policy(directory, weights=weights).state_dict()
        assert (
            place == directory
            and found.keys() == expected.keys()
            and all(found[name].equal(expected[name]) for name in expected)
        )
    with pytest.raises(ConfigError, match=naming("'fast'", "'ema'", "'slow'")):
        load_model(trained_policy, ranks, weights="fast", guidance_scale=None)
