"""Where a run resumes from."""

import pytest

from dp_prior.config import ConfigError
from dp_prior.places.reference import resolve
from dp_prior.places.resume import LocalResumeConfig, RemoteResumeConfig
from tests.messages import naming
from tests.places.parcels import Run


def test_a_remote_path_is_for_the_other_record():
    with pytest.raises(
        ConfigError, match=naming("path", "'hf://me/x'", "{'type': 'remote', 'reference': 'hf://me/x'}")
    ):
        LocalResumeConfig(path="hf://me/x")


def test_a_run_goes_on_from_its_own_checkpoint_first(run, tmp_path):
    def recalled(**fields):
        return LocalResumeConfig(**fields).recall(run.directory)

    other = {"path": str(tmp_path / "other")}
    assert recalled() is None and recalled(**other) is None
    elsewhere = Run(tmp_path / "other")
    durable = elsewhere.save(3)
    elsewhere.lock.release()
    assert recalled() is None
    assert recalled(**other) == f"{tmp_path / 'other'}@latest"
    assert recalled(**other, choose="best") == f"{tmp_path / 'other'}@best"
    single, root = {"path": str(durable.path)}, {"path": str(durable.path.parent)}
    assert recalled(**single) == str(durable.path)
    named = {"path": f"{tmp_path / 'other'}@{durable.path.name}"}
    assert resolve(recalled(**named)) == durable.path
    with pytest.raises(FileNotFoundError, match=naming("'step_00000099'", "latest", "best", "step_00000003")):
        resolve(recalled(path=f"{tmp_path / 'other'}@step_00000099"))
    assert {resolve(recalled(**fields)) for fields in (other, single, root)} == {durable.path}
    remote = RemoteResumeConfig(reference="hf://me/x")
    assert remote.recall(run.directory) == "hf://me/x"
    run.save(1)
    for fields in ({}, other, {**other, "choose": "best"}, single):
        assert recalled(**fields) == f"{run.directory}@latest"
        assert resolve(recalled(**fields)).name == "step_00000001"
    assert remote.recall(run.directory) == "hf://me/x", "the run has not begun: perhaps a part of what is there"
    (run.directory / "config.json").write_text("{}")
    assert remote.recall(run.directory) == f"{run.directory}@latest"
