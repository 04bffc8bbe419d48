"""What is said of a path at which there is nothing, or something else: the nearest name, or the command that fits."""

import json

import pytest
from click.testing import CliRunner

from dp_prior import load_policy
from dp_prior.cli import main
from dp_prior.config import ConfigError
from dp_prior.config.read import read_text
from dp_prior.places.reference import resolve
from dp_prior.run.config import TrainConfig
from dp_prior_foreign.misplaced import misplaced
from tests.messages import naming, told
from tests.tiny import tiny


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with two runs, a configuration of one, data, and weights of another program."""
    monkeypatch.chdir(tmp_path)
    for name in ("toy", "other"):
        (tmp_path / "runs" / name / "checkpoints" / "step_00000008").mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").write_text("{}")
        for file in ("manifest.json", "config.json", "model.safetensors"):
            (tmp_path / "runs" / name / "checkpoints" / "step_00000008" / file).write_text("{}")
    config = tiny(tmp_path)
    config["tracker"]["data_path"] = "runs/toy"
    (tmp_path / "mini.json").write_text(json.dumps(config))
    config["tracker"]["data_path"] = "runs/new"
    (tmp_path / "new.json").write_text(json.dumps(config))
    (tmp_path / "their").mkdir()
    (tmp_path / "their" / "model.ckpt").write_bytes(b"\x80\x02")
    return tmp_path


def test_a_configuration_in_utf_16_as_powershell_writes_it_is_not_sent_back_to_train(place):
    text = (place / "mini.json").read_text()
    (place / "wide.json").write_text(text, encoding="utf-16")
    with pytest.raises(ConfigError, match=naming("wide.json", "UTF-8")) as caught:
        read_text(place / "wide.json")
    assert "dp-prior train" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("toy.npz", ("dp-prior inspect toy.npz --write-config toy.json",)),
        ("their", ("dp-prior inspect their --write-config their.json",)),
        ("runs/toy", ("runs/toy/config.json",)),
        ("runs/toy/checkpoints/step_00000008", ("runs/toy/checkpoints/step_00000008/config.json",)),
        (".", ("mini.json", "new.json")),
        ("minni.json", ("mini.json",)),
        ("pusht_stat", ("pusht_state", "dp-prior configs")),
        ("nothing_like_it", ("dp-prior configs",)),
    ],
)
def test_a_path_without_a_configuration_names_the_remedy(path, parts, place):
    with pytest.raises(ConfigError, match=naming(path, *parts)):
        TrainConfig.from_json_path(path)


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("mini.json", ("runs/toy",)),
        ("new.json", ("dp-prior train new.json",)),
        ("runs/toi", ("runs/toy",)),
        ("run/toy", ("runs/toy",)),
        ("runs/zzzz", ("toy", "other")),
        ("me/pusht", ("Hub", "hf://me/pusht")),
        ("me/pusht@latest", ("Hub", "hf://me/pusht")),
        ("runs", ("toy", "other")),
        ("runs/toy", ("dp-prior checkpoints", "verify runs/toy")),
        ("runs/toy/config.json", ("runs/toy",)),
        ("runs/toy/checkpoints/step_00000008/model.safetensors", ("runs/toy/checkpoints/step_00000008",)),
        ("toy.npz", ("dp-prior inspect toy.npz",)),
        ("their/model.ckpt", ("dp-prior import their",)),
    ],
)
def test_a_path_without_a_checkpoint_names_the_remedy(path, parts, place):
    with pytest.raises((FileNotFoundError, OSError, ValueError, RuntimeError), match=naming(path, *parts)):
        resolve(path)


@pytest.mark.parametrize(
    ("command", "path", "parts"),
    [
        ("inspect", "runs/toy/checkpoints/step_00000008", ("runs/toy/checkpoints/step_00000008/config.json",)),
        ("inspect", "runs/toy", ("runs/toy/config.json",)),
        ("inspect", "runs", ("toy", "other", "dp-prior report")),
        ("inspect", "tyo.npz", ("toy.npz",)),
        ("convert --to zarr new.zarr", "tyo.npz", ("toy.npz",)),
        ("report", "runs/toi", ("runs/toy",)),
        ("report", "mini.json", ("runs/toy",)),
        ("watch", "run", ("runs",)),
        ("checkpoints ls", "runs/toi", ("runs/toy",)),
        ("checkpoints push", "runs/toi", ("runs/toy",)),
        ("evaluate", "runs/toi", ("runs/toy",)),
        ("train --config_file", "toy.npz", ("dp-prior inspect toy.npz --write-config toy.json",)),
    ],
)
def test_commands_name_what_was_meant_and_change_nothing(command, path, parts, place):
    for name in ("toy", "other"):
        (place / "runs" / name / "exit.json").write_text("{}")
    before = sorted(place.rglob("*"))
    words = command.split()
    done = CliRunner().invoke(main, [words[0], path, *words[1:]] if words[0] == "convert" else [*words, path])
    assert done.exit_code in (64, 65) and told(done.output, *parts), done.output
    assert done.output.count("error: ") == 1 and sorted(place.rglob("*")) == before


def test_a_misspelt_run_is_answered_without_the_hub(place, monkeypatch):
    monkeypatch.setattr("dp_prior.places.hub.HubSource.__init__", None)  # cannot be called
    with pytest.raises(FileNotFoundError, match=naming("runs/toi", "runs/toy", "hf://runs/toi")):
        load_policy("runs/toi")


def test_what_resembles_nothing_has_no_hint(place):
    assert misplaced(place / "elsewhere" / "deep" / "x", "checkpoint") is None
    with pytest.raises(ConfigError, match=naming("their/model.ckpt")):
        read_text(place / "their" / "model.ckpt")
