"""Where a run begins, and what ends a start."""

import json
import threading

import pytest
import torch
from safetensors.torch import save_file

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.config import ConfigError
from dp_prior.job.stop import Stop, StoppedEarly
from dp_prior.places.resume import LocalResumeConfig
from dp_prior.run import adoption, initial_weights, start
from dp_prior.run.config import TrainConfig
from dp_prior.run.start import find_checkpoint, initialise
from dp_prior.tasks.policy_config import PolicyConfig
from dp_prior.tensors.batch import Spec
from tests.job.test_decide import ranks
from tests.messages import naming, told
from tests.tiny import experiment, tiny, train, write


def test_a_directory_whose_checkpoint_has_no_training_state_is_refused_with_the_way_on(tmp_path):
    own = CheckpointStore(tmp_path / "run" / "checkpoints", RetentionConfig())
    documents = {"config.json": json.loads(TrainConfig.from_json(json.dumps(tiny(tmp_path))).to_json())}
    with own.lock():
        own.write(Snapshot({"model.safetensors": {"w": torch.ones(2)}}, documents), Progress(0, 0), {})
        with pytest.raises(ConfigError, match=naming("tracker.data_path", tmp_path / "run", "train.init_from")):
            find_checkpoint(LocalResumeConfig(), own, "auto", print, Stop())


@pytest.mark.parametrize(
    ("module", "change"),
    [
        (adoption, {"tracker__load": {"type": "remote", "reference": "s3://bucket/x"}}),
        (initial_weights, {"train__init_from": "s3://bucket/x"}),
    ],
    ids=["load", "init_from"],
)
def test_a_stop_ends_a_start_that_downloads_without_waiting_for_the_rest(module, change, tmp_path, monkeypatch):
    run, end = experiment(tiny(tmp_path, **change)), threading.Event()

    def silent(*arguments, **options):
        run.parts.ranks.stop.ask("SIGTERM")
        end.wait(60)
        raise FileNotFoundError("too late")

    monkeypatch.setattr(module, "resolve", silent)
    with pytest.raises(StoppedEarly):
        run.run()
    end.set()
    told_of = json.loads((tmp_path / "run" / "exit.json").read_text())
    assert (told_of["reason"], told_of["code"], told_of["stopped_by"]) == ("preempted", 75, "SIGTERM")


def test_a_stop_ends_a_start_that_downloads_the_weights_of_an_encoder(tmp_path, monkeypatch):
    one, end = ranks(), threading.Event()

    def silent(model):
        one.stop.ask("SIGTERM")
        end.wait(60)

    monkeypatch.setattr(start, "load_pretrained", silent)
    with pytest.raises(StoppedEarly):
        initialise(None, TrainConfig.from_json(json.dumps(tiny(tmp_path))), one, print)
    end.set()


@pytest.mark.parametrize("file", [None, "no safetensors", "another network"])
def test_published_weights_that_cannot_be_taken_are_refused_with_their_file(file, tmp_path):
    path = tmp_path / "weights.safetensors"
    if file == "no safetensors":
        path.write_bytes(b"a pickle, perhaps")
    elif file is not None:
        save_file({"conv9.weight": torch.zeros(1)}, path)
    resnet = {"type": "resnet", "width": 16, "blocks": [1], "keypoints": 2, "weights": str(path)}
    sizes = {"horizon": 4, "n_obs_steps": 1, "n_action_steps": 1}
    task = PolicyConfig(**sizes, encoders={"front": resnet}, backbone={"type": "mlp", "hidden_dim": 8})
    model = task.create(Spec(x_shape=(4, 2), cond_shapes={"front": (1, 16, 16, 3)}, kinds={"front": "image"}))
    config = TrainConfig.from_json(json.dumps(tiny(tmp_path)))
    with pytest.raises(
        ConfigError, match=naming("task.encoders", path, *(["conv9.weight"] if file == "another network" else []))
    ):
        initialise(model, config, ranks(), print)


@pytest.mark.parametrize("name", ["toi", "toy.npz"])
def test_weights_of_a_misspelt_path_are_refused_before_a_directory_is_made(name, tmp_path):
    before = train(write(tmp_path, tracker__data_path=str(tmp_path / "toy"), train__steps=2))
    assert before.exit_code == 0, before.output
    config = write(tmp_path, tracker__data_path=str(tmp_path / "new"), train__init_from=str(tmp_path / name))
    done = train(config)
    assert done.exit_code == 64 and told(done.output, str(tmp_path / name)), done.output
    assert not (tmp_path / "new").exists()
    assert train(config, f"--train.init_from={tmp_path / 'toy'}").exit_code == 0
    assert train(config).exit_code == 0, "a run that has begun needs those weights no more"
