"""Shared runs are trained once, are those that a test would train itself, and are found out when they have changed."""

import json
import os

import pytest

from dp_prior import load_image, load_policy, load_prior
from tests import trained
from tests.messages import naming
from tests.tiny import rows


def test_each_is_a_finished_run_of_its_kind(trained_policy, trained_camera, trained_prior, trained_image):
    loads = ((load_policy, trained_policy), (load_policy, trained_camera), (load_prior, trained_prior))
    for load, run in (*loads, (load_image, trained_image)):
        assert json.loads((run / "exit.json").read_text())["reason"] == "finished"
        load(run)
    assert rows(trained_policy)[-1]["step"] == 24


def test_asked_again_it_is_the_same_run(shared_run, trained_policy):
    before = (trained_policy / "run.json").stat().st_mtime_ns
    for run in shared_run("policy"):
        assert run == trained_policy and (run / "run.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("change", ["written", "touched", "added", "removed"])
def test_a_test_that_changes_one_fails(tmp_path, monkeypatch, shared_run, change):
    (tmp_path / "run").mkdir()
    file = tmp_path / "run" / "config.json"
    file.write_text("{}")
    monkeypatch.setattr(trained, "made_once", lambda *arguments: tmp_path)
    lent = shared_run(f"made up, {change}")
    assert next(lent) == tmp_path / "run"
    if change == "touched":
        os.utime(file)
    elif change == "removed":
        file.unlink()
    else:
        (file if change == "written" else file.with_name("new.json")).write_text("{ }")
    with pytest.raises(AssertionError, match=naming("shared run", "copy")):
        next(lent)
