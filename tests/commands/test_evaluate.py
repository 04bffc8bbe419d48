"""Commands on finished runs."""

import pytest

from dp_prior.commands.evaluate import evaluate_checkpoint
from dp_prior.config import ConfigError
from tests.tiny import train, write


def test_a_configuration_of_a_larger_model_than_its_weights_is_refused_before_memory_is_taken(tmp_path):
    assert train(write(tmp_path, train__steps=2)).exit_code == 0
    run = str(tmp_path / "run")
    assert all(now == stored for _, now, stored in evaluate_checkpoint(run))
    with pytest.raises(ConfigError, match="larger model than the weights"):
        evaluate_checkpoint(run, ("task.backbone.hidden_dim=1000000000",))
