"""The configuration of a run is that of its checkpoints; a model that was saved by itself has none."""

import json

from dp_prior.places.reference import resolve
from dp_prior.run.config import TrainConfig
from dp_prior_lab.trained_configuration import stored_config


def test_a_checkpoint_holds_the_configuration_of_its_run(trained_policy, tmp_path):
    config = stored_config(resolve(trained_policy))
    assert config == TrainConfig.from_json((trained_policy / "config.json").read_text())
    assert stored_config(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({}))
