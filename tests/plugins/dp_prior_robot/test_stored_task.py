"""What a checkpoint holds for other commands: its task but for the sampler, and its data."""

import json

import pytest

from dp_prior.checkpoints.documents import CONFIG
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.config import ConfigError
from dp_prior.places.reference import resolve
from dp_prior_robot.stored_task import StoredTask, read_stored
from tests.messages import naming


def test_what_is_read_is_what_the_run_was_given(trained_policy):
    directory = resolve(trained_policy)
    given, stored = read_checkpoint(directory, [CONFIG]).documents[CONFIG], read_stored(directory)
    assert json.loads(stored.to_json()) == {name: given[name] for name in ("task", "data")}
    opened = stored.open(lambda line: None)
    assert opened.document() == read_checkpoint(directory, ["data.json"]).documents["data.json"]


def test_only_the_sampler_and_the_data_can_be_changed(trained_policy):
    directory = resolve(trained_policy)
    changed = read_stored(directory, ["task.sampler.steps=3", "data.batch_size=2"])
    assert (changed.task.sampler.steps, changed.data.batch_size) == (3, 2)
    with pytest.raises(ConfigError, match=naming("--set", "task.sampler")):
        read_stored(directory, ["task.horizon=5"])


def test_data_that_are_left_out_or_were_never_stored_are_named(trained_policy):
    assert read_stored(resolve(trained_policy), with_data=False).data is None
    alone = StoredTask(task=read_stored(resolve(trained_policy)).task)
    with pytest.raises(ConfigError, match=naming(CONFIG, "no data", "checkpoint")):
        alone.open(lambda line: None)
