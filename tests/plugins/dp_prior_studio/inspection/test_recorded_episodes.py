"""Recorded episodes are looked at by the names of their numbers: which ones a rollout gives, and which are unknown."""

import json
import zipfile

import numpy as np
import pytest

from dp_prior_foreign.convert import convert
from dp_prior_studio.inspection.inspect import inspect, write_config
from tests.messages import told
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz

FORCED = ["a.pos", "fx.N", "b.pos"]


@pytest.fixture
def forced(tmp_path):
    """A LeRobot data set whose state has a force between two joints."""
    episodes = [{"observation.state": one["state"], "action": one["action"]} for one in clean(6)]
    write_npz(tmp_path / "data.npz", episodes)
    with zipfile.ZipFile(tmp_path / "data.npz", "a") as archive:
        names = {"observation.state": FORCED, "action": ["a.pos", "b.pos"]}
        archive.writestr("meta.json", json.dumps({"names": names}))
    convert(tmp_path / "data.npz", tmp_path / "lerobot", "lerobot", fps=10.0)
    return tmp_path


def notes_of(inspections):
    (one,) = inspections
    return [finding.text for finding in one.findings if finding.severity == "note"]


def test_numbers_that_a_rollout_does_not_give_are_told_and_left_out_of_the_proposal(forced):
    inspections, parts = inspect(str(forced / "lerobot")), ("observation.state", "fx.N", ".pos or .vel", '"names"')
    notes = notes_of(inspections)
    assert any(told(note, *parts) for note in notes)
    assert any(told(note, "task.n_obs_steps", 2, "--inference.type=rtc") for note in notes)
    write_config(inspections, forced / "own.json")
    written = json.loads((forced / "own.json").read_text())
    assert written["data"]["obs"] == {"state": {"key": "observation.state", "names": ["a.pos", "b.pos"]}}
    settings = ["task.n_obs_steps=1", "task.n_action_steps=4"]
    (again,) = inspect(str(forced / "own.json"), settings)
    assert not [finding for finding in again.findings if "rollout" in finding.text]
    (signal,) = again.survey.of("observation")
    assert signal.columns == ["a.pos", "b.pos"] and signal.values.shape[1] == 2
    whole = notes_of(inspect(str(forced / "own.json"), [*settings, "data.obs.state.names=null"]))
    assert any(told(note, *parts) for note in whole)


def test_the_same_numbers_in_another_format_have_no_rollout(forced):
    inspections = inspect(str(forced / "data.npz"))
    assert not [note for note in notes_of(inspections) if "rollout" in note]
    assert inspections[0].data["obs"] == {"state": {"key": "observation.state"}}


def test_a_configuration_that_chooses_an_unknown_number_is_told_the_nearest(forced):
    write_config(inspect(str(forced / "lerobot")), forced / "own.json")
    (one,) = inspect(str(forced / "own.json"), ['data.obs.state.names=["a.pso"]'])
    (problem,) = one.refusals()
    assert told(problem, "names", "'a.pso'", "'a.pos'")


@pytest.mark.parametrize("kind", ["texts", "rows"])
def test_an_action_that_is_not_read_is_not_said_to_be_missing(kind, tmp_path):
    arrays = {"state": np.arange(80.0)[:, None], "action": np.arange(80.0)[:, None], "episode_ends": [20, 40, 60, 80]}
    arrays |= {"action": arrays["action"].astype(str)} if kind == "texts" else {"episode_ends": [20, 40, 60, 100]}
    np.savez(tmp_path / "d.npz", **arrays)
    (one,) = inspect(str(tmp_path / "d.npz"))
    lines = [finding.text for finding in one.findings]
    assert not [line for line in lines if "candidate" in line]
    parts = ("action", "numbers", "data.action.key") if kind == "texts" else ("action", "80 rows", "last end")
    assert any(told(line, *parts) for line in lines)
