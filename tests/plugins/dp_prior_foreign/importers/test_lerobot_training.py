"""The training of a LeRobot policy says its data set, rate and names, as far as the file and this machine have them."""

import errno
import json
import os
import zipfile

import numpy as np
import pytest

from dp_prior.data.errors import UnreadableError
from dp_prior.data.formats.lerobot.dataset import LeRobotStoreConfig
from dp_prior_foreign.convert import convert
from dp_prior_foreign.importers.foreign_files import PublishedFiles
from dp_prior_foreign.importers.lerobot import read
from dp_prior_foreign.importers.lerobot_training import KnownTraining, training_of
from tests.cli.invoked import command
from tests.messages import told
from tests.plugins.dp_prior_foreign.importers.checkpoints import ACTION, ENV, STATE, lerobot

pytest.importorskip("pyarrow", reason="NOT CHECKED: LeRobot stores, the extra dp_prior[lerobot] is not installed")

NAMES = {STATE: ["a.pos", "b.pos", "c.pos"], ENV: ["p", "q", "r", "s"], ACTION: ["a.pos", "b.pos"]}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A LeRobot data set of two episodes with names, at 25 Hz."""
    place = tmp_path_factory.mktemp("recorded")
    arrays = {key: np.random.default_rng(0).normal(size=(40, len(names))) for key, names in NAMES.items()}
    np.savez(place / "set.npz", **arrays, episode_ends=[20, 40])
    with zipfile.ZipFile(place / "set.npz", "a") as archive:
        archive.writestr("meta.json", json.dumps({"names": NAMES}))
    convert(place / "set.npz", place / "lerobot", "lerobot", fps=25.0)
    return place / "lerobot"


def policy(place, config):
    """A policy of LeRobot with a train_config.json."""
    source, _ = lerobot(place / "source")
    (source / "train_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return source


def trained(place, config):
    return training_of(PublishedFiles(str(policy(place, config))))


def test_a_data_set_on_this_machine_says_rate_and_names(tmp_path, recorded):
    config = {"dataset": {"repo_id": "me/arm", "root": str(recorded), "episodes": None}, "env": None, "seed": 1000}
    assert trained(tmp_path, config) == KnownTraining({"type": "lerobot", "path": str(recorded)}, 25.0, NAMES)
    spec = read(PublishedFiles(str(tmp_path / "source"))).create().spec
    assert spec.fps == 25.0
    keys = {"state": STATE, "environment_state": ENV, "x": ACTION}
    assert spec.names == {name: tuple(NAMES[key]) for name, key in keys.items()}


def test_a_data_set_that_cannot_be_read_now_is_told_since_the_policy_stays_without_rate_and_names(
    tmp_path, recorded, monkeypatch, caplog
):
    def refused(record):
        raise UnreadableError(errno.EMFILE, os.strerror(errno.EMFILE), str(record.path))

    monkeypatch.setattr(LeRobotStoreConfig, "create", refused)
    training = trained(tmp_path, {"dataset": {"repo_id": "me/arm", "root": str(recorded)}})
    assert training == KnownTraining({"type": "lerobot", "path": str(recorded)}, None, {})
    assert told(caplog.text, recorded, os.strerror(errno.EMFILE))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"dataset": {"repo_id": "me/arm"}}, KnownTraining({"type": "lerobot", "repo": "me/arm"})),
        ({"dataset": {"repo_id": "me/arm", "root": "/no/such", "revision": "v3.0"}, "env": {"type": "p", "fps": 10}},
         KnownTraining({"type": "lerobot", "repo": "me/arm", "revision": "v3.0"}, 10.0)),
        ({"dataset": {"repo_id": "arm"}}, KnownTraining()),
        ({"dataset": {"repo_id": ["me/a", "me/b"]}}, KnownTraining()),
        ({"env": {"fps": 0}}, KnownTraining()),
        ({}, KnownTraining()),
        ("{", KnownTraining()),
        ("[]", KnownTraining()),
    ],
)  # fmt: skip
def test_what_the_file_does_not_say_stays_unknown_and_no_file_stops_an_import(tmp_path, config, expected):
    assert trained(tmp_path, config) == expected
    assert read(PublishedFiles(str(tmp_path / "source"))).trained_on == expected.episodes


def test_a_policy_of_the_hub_names_no_directory_of_this_machine(tmp_path, recorded, hub):
    source = policy(tmp_path, {"dataset": {"root": str(recorded)}})
    hub.create("me/policy", files={path.name: path.read_bytes() for path in source.iterdir()})
    files = PublishedFiles("me/policy")
    assert read(files).trained_on is None and training_of(files) == KnownTraining()


def test_an_imported_policy_is_exported_with_the_names_and_the_rate_of_its_training(tmp_path, recorded):
    source = policy(tmp_path, {"dataset": {"repo_id": "me/arm", "root": str(recorded)}})
    assert command("import", source, "--out", tmp_path / "run").exit_code == 0
    done = command("export", tmp_path / "run", tmp_path / "arm", "--format", "lerobot")
    assert done.exit_code == 0 and "not known" not in done.output, done.output
    settings = json.loads((tmp_path / "arm" / "config.json").read_text())
    expected = (NAMES[STATE], NAMES[ACTION], 25.0)
    assert (settings["state_names"], settings["action_names"], settings["fps"]) == expected


def test_a_data_set_that_a_policy_of_the_hub_names_is_asked_for_once_the_user_names_it(tmp_path, recorded, hub):
    source = policy(tmp_path, {"dataset": {"repo_id": "stranger/arm", "root": str(recorded)}, "env": {"fps": 7}})
    hub.create("me/policy", files={path.name: path.read_bytes() for path in source.iterdir()})
    assert command("import", "me/policy", "--out", tmp_path / "run").exit_code == 0
    line = ("export", tmp_path / "run", tmp_path / "arm", "--format", "lerobot")
    before = len(hub.requests)
    done = command(*line)
    assert done.exit_code == 0, done.output
    assert told(done.output, "'stranger/arm'", "me/policy", "--trained-on", "--policy.state_names")
    assert len(hub.requests) == before
    done = command(*line[:2], tmp_path / "known", *line[3:], "--trained-on", recorded)
    assert done.exit_code == 0 and "--trained-on" not in done.output, done.output
    settings = json.loads((tmp_path / "known" / "config.json").read_text())
    assert (settings["state_names"], settings["action_names"]) == (NAMES[STATE], NAMES[ACTION])
    for wrong in (tmp_path / "no" / "such" / "set", tmp_path):
        assert command(*line[:2], tmp_path / "wrong", *line[3:], "--trained-on", wrong).exit_code != 0


def test_an_imported_policy_knows_the_size_of_the_frames_that_its_cameras_recorded(tmp_path):
    camera = {"type": "VISUAL", "shape": [3, 96, 128]}
    inputs = {STATE: {"type": "STATE", "shape": [3]}, "observation.images.front": camera}
    modes = {"VISUAL": "IDENTITY", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"}
    changes = {"input_features": inputs, "resize_shape": [48, 64], "normalization_mapping": modes}
    source, _ = lerobot(tmp_path / "source", config=changes)
    published = read(PublishedFiles(str(source)))
    assert published.origins() == {"frames": {"observation.images.front": [96, 128]}}
    assert published.cameras["images_front"].shape == (48, 64, 3)
