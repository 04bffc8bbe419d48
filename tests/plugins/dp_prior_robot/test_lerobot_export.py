"""`dp-prior export --format lerobot`: a folder that acts as its checkpoint, on disk and on the Hub."""

import json
import shutil
import zipfile
from unittest.mock import Mock

import pytest
import torch

from dp_prior import load_policy
from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_foreign.convert import convert
from dp_prior_robot import lerobot_export
from dp_prior_robot.export.graph_options import GraphOptions
from dp_prior_robot.lerobot_export import export_for_lerobot
from dp_prior_robot.stored_task import read_stored
from tests.cli.invoked import command
from tests.messages import told
from tests.plugins.dp_prior_robot.export.policies import build
from tests.tiny import train, write, write_data

KEYS = ("--keys", "agent_pos=observation.state[0:2]", "--keys", "goal=observation.state[2:4]")


def test_the_folder_holds_the_policy_and_says_what_is_unknown(trained_policy, tmp_path):
    done = command("export", trained_policy, tmp_path / "new", "--format", "lerobot", *KEYS)
    assert done.exit_code == 0, done.output
    assert all(name in done.output for name in ("--policy.state_names", "--policy.action_names", "--policy.fps"))
    settings = json.loads((tmp_path / "new" / "config.json").read_text())
    assert settings["keys"] == {"agent_pos": "observation.state[0:2]", "goal": "observation.state[2:4]"}
    low, high = settings["state_range"][3]
    assert low == pytest.approx(high) == pytest.approx(0.8), "the goal's height in training"
    ours, theirs = load_policy(trained_policy), load_policy(tmp_path / "new" / "policy")
    assert all(torch.equal(one, theirs.state_dict()[name]) for name, one in ours.state_dict().items())


@pytest.mark.parametrize("error", [DataError("toy.npz", ["is torn"]), ConfigError("config", ["data.type: 'mine'"])])
def test_data_that_cannot_be_read_now_are_named_and_leave_the_policy_as_it_is(
    error, trained_policy, tmp_path, monkeypatch
):
    def refuse(*given, with_data=True):
        if with_data and isinstance(error, ConfigError):
            raise error
        return read_stored(*given, with_data=with_data)

    monkeypatch.setattr(lerobot_export, "read_stored", refuse)
    if isinstance(error, DataError):
        monkeypatch.setattr(NpzStoreConfig, "create", Mock(side_effect=error))
    done = command("export", trained_policy, tmp_path / "new", "--format", "lerobot", *KEYS)
    assert done.exit_code == 0, done.output
    assert told(done.output, error.problems[0], "--policy.fps") and "\n  " not in done.output
    assert (tmp_path / "new" / "policy").is_dir()


def test_a_server_needs_no_weights(trained_policy, tmp_path):
    line = ("export", trained_policy, tmp_path / "new", "--format", "lerobot", *KEYS, "--address", "box:8000")
    assert command(*line).exit_code == 0 and not (tmp_path / "new" / "policy").exists()
    assert json.loads((tmp_path / "new" / "config.json").read_text())["address"] == "box:8000"


def test_the_hub_gets_the_same_files_in_a_private_repository(trained_policy, tmp_path, hub):
    line = ("export", trained_policy, tmp_path / "new", "--format", "lerobot", *KEYS, "--repo", "me/arm")
    done = command(*line)
    assert done.exit_code == 0 and "me/arm" in done.output, done.output
    files = {path.relative_to(tmp_path / "new").as_posix(): path.read_bytes()
             for path in (tmp_path / "new").rglob("*") if path.is_file()}  # fmt: skip
    sent = {name: content for name, content in hub.files("me/arm").items() if name != ".gitattributes"}
    assert sent == files and hub.repos["me/arm"].private


def test_an_export_inside_resizes_the_frames_of_the_robot(tmp_path, monkeypatch):
    """The robot gives frames as recorded; a graph without the resize refuses them."""
    source, asked = "observation.images.front", {}
    fits = {"kinds": {"eye": "image"}, "fits": {"eye": Fit(size=(16, 16))}}
    encoder = {"type": "resnet", "width": 16, "blocks": [1, 1], "stem": "conv"}
    policy = build(Spec(x_shape=(8, 2), cond_shapes={"eye": (2, 16, 16, 3)}, **fits), encoders={"eye": encoder})
    policy.save_pretrained(tmp_path / "policy")
    inner = lerobot_export.wired
    for sizes, frames in (({source: [48, 64]}, {"eye": (48, 64)}), ({}, {})):
        monkeypatch.setattr(lerobot_export, "wired", lambda *given, sizes=sizes: inner(*given)._replace(
            frame_sizes=sizes))  # fmt: skip
        monkeypatch.setattr(lerobot_export, "write_export", lambda *given, **more: asked.update(more))
        place = tmp_path / f"new_{len(sizes)}"
        export_for_lerobot(str(tmp_path / "policy"), place, keys={"eye": source}, inside="onnx")
        assert asked["options"] == GraphOptions(frames=frames)


def test_observations_without_a_place_and_models_that_do_not_act_are_refused(trained_policy, trained_prior, tmp_path):
    done = command("export", trained_policy, tmp_path / "new", "--format", "lerobot")
    assert done.exit_code == 64 and all(part in done.output for part in ("--keys agent_pos=", "observation.state[0:2]"))
    done = command("export", trained_prior, tmp_path / "new", "--format", "lerobot")
    assert done.exit_code == 64 and told(done.output, trained_prior, "prior", "policies")
    done = command("export", trained_policy, tmp_path / "new", "--format", "lerobot", "--keys", "agent_pos")
    assert done.exit_code == 64 and "OURS=THEIRS" in done.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("names", [{}, {"position": ("a.pos", "b.pos")}])
def test_names_that_the_policy_itself_knows_are_not_asked_for(tmp_path, names):
    """Though the folder cannot say them: nothing names the number between."""
    spec = Spec(x_shape=(8, 2), cond_shapes={"position": (1, 2)}, names={**names, "x": ("a.pos", "b.pos")}, fps=10.0)
    build(spec, n_obs_steps=1).save_pretrained(tmp_path / "policy")
    keys = ("--keys", "position=observation.state[0:1,2:3]")
    done = command("export", tmp_path / "policy", tmp_path / "new", "--format", "lerobot", *keys)
    assert done.exit_code == 0 and ("--policy.state_names" in done.output) == (not names), done.output
    assert json.loads((tmp_path / "new" / "config.json").read_text())["state_names"] is None


def test_numbers_chosen_by_name_in_training_are_read_at_their_places_or_by_name_alone(tmp_path):
    pytest.importorskip("pyarrow", reason="NOT CHECKED: LeRobot stores, the extra dp_prior[lerobot] is not installed")
    names = {"state": ["x.pos", "fx.N", "y.pos", "z.pos"], "action": ["x.pos", "y.pos"]}
    with zipfile.ZipFile(write_data(tmp_path / "toy.npz"), "a") as archive:
        archive.writestr("meta.json", json.dumps({"names": names}))
    place = tmp_path / "lerobot"
    convert(tmp_path / "toy.npz", place, "lerobot", fps=10.0, renames={"state": "observation.state"})
    chosen = {"arm": {"key": "observation.state", "names": ["z.pos", "x.pos", "y.pos"]}}
    config = write(tmp_path, data__episodes={"type": "lerobot", "path": str(place)}, data__obs=chosen, train__steps=2)
    assert train(config).exit_code == 0

    def exported(name):
        done = command("export", tmp_path / "run", tmp_path / name, "--format", "lerobot")
        assert done.exit_code == 0 and "--policy.state_names" not in done.output, done.output
        settings = json.loads((tmp_path / name / "config.json").read_text())
        width = settings["input_features"]["observation.state"]["shape"][0]
        return settings["keys"]["arm"], settings["state_names"], width, settings["layout"]

    assert exported("first") == ("observation.state[3:4,0:1,2:3]", names["state"], 4, 2)
    shutil.rmtree(place)
    assert exported("second") == ("observation.state[0:3]", ["z.pos", "x.pos", "y.pos"], 3, 1)
