"""A checkpoint is taken up by the run that it is of: what has changed is told, and refused unless it is allowed."""

import threading

import pytest

from dp_prior.config import ConfigError
from dp_prior.data.samples.loader import Loader
from dp_prior.data.split_data import SplitData
from dp_prior.evaluation.loss import LossConfig
from dp_prior.job.stop import StoppedEarly
from dp_prior.run.assembly import Assembly
from dp_prior.run.config import TrainConfig
from dp_prior.tasks.policy_config import PolicyConfig
from tests.job.test_decide import ranks
from tests.messages import naming, told
from tests.tiny import experiment, rows, state, tiny, train, write


def test_snapshot_of_another_model_is_refused_by_the_settings_not_by_a_tensor(tmp_path):
    config = write(tmp_path, train__steps=2)
    train(config)
    other = train(config, "--set", "task.backbone.hidden_dim=24", "--set", "seed=3")
    assert other.exit_code == 64
    assert told(other.output, "2 problems", "seed", 0, 3, "task.backbone.hidden_dim", 16, 24)
    assert told(other.output, "--set tracker.data_path", "--allow-change seed --allow-change task.backbone")
    still = train(config, "--set", "task.backbone.hidden_dim=24", "--allow-change", "task.backbone")
    assert still.exit_code == 64
    assert told(still.output, "1 problem", "checkpoint", "tensors")


@pytest.mark.parametrize("options", [(), ("--check",)])
def test_a_network_that_no_memory_holds_is_one_clear_error(options, tmp_path):
    config = write(tmp_path, task__backbone={"type": "mlp", "hidden_dim": 100_000, "expansion": 5_000})
    done = train(config, *options)
    assert done.exit_code == 64 and done.output.count("\n") == 2, done.output
    assert told(done.output, "task", "200,000,000,000,000 bytes", "memory", "smaller")


@pytest.mark.promise("B5")
def test_allowed_change_is_shown_and_the_run_goes_on(tmp_path):
    config = write(tmp_path, train__steps=2)
    train(config)
    change = ["--set", "train.steps=4", "--set", "task.diffusion.schedule.type=linear"]
    assert train(config, *change).exit_code == 64
    done = train(config, *change, "--allow-change", "task.diffusion")
    assert done.exit_code == 0
    assert told(done.output, "train.steps", 2, 4, "schedule-changing")
    assert told(done.output, "task.diffusion.schedule.type", '"cosine"', '"linear"', "architecture", "allowed")
    assert state(tmp_path / "run")["progress"]["global_step"] == 4
    assert train(config, *change).exit_code == 0  # the newest checkpoint is of the run as it is now


@pytest.mark.parametrize("waiting", ["data set", "encoder", "manifest", "embeddings", "features"])
def test_a_stop_ends_a_start_that_waits_for_another_machine(waiting, tmp_path, monkeypatch):
    one, end = ranks(), threading.Event()
    config = TrainConfig(**tiny(tmp_path))

    def silent(*arguments):
        one.stop.ask("SIGTERM")
        end.wait(60)

    integrity = type(config.data.integrity(tmp_path))
    place, call = {
        "data set": (type(config.data), "downloaded"),
        "encoder": (PolicyConfig, "resolve"),
        "manifest": (integrity, "check"),
        "embeddings": (TrainConfig, "open_data"),
        "features": (LossConfig, "create"),  # which stands for an evaluator whose model is downloaded
    }[waiting]
    monkeypatch.setattr(LossConfig, "downloads", True)
    monkeypatch.setattr(place, call, silent)
    with pytest.raises(StoppedEarly):
        Assembly(config, one, report=None)
    end.set()


def test_a_step_of_several_micro_batches_records_no_cuda_graphs(tmp_path):
    graphs = {"train__compile": "reduce-overhead", "data__global_batch_size": 24}
    with pytest.raises(ConfigError, match=naming("train", "'reduce-overhead'", "data.batch_size", 3, "'default'")):
        experiment(tiny(tmp_path, **graphs, data__batch_size=8))
    assert experiment(tiny(tmp_path, **graphs, data__batch_size=24)).parts.loader.accumulation == 1


def test_data_of_another_package_are_asked_for_no_global_batch(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(SplitData, "loader", lambda self, **sizes: asked.append(sizes) or Loader(self.train, **sizes))
    experiment(tiny(tmp_path))
    experiment(tiny(tmp_path, data__global_batch_size=24))
    assert [sizes.get("global_batch_size", "absent") for sizes in asked] == ["absent", 24]


@pytest.mark.promise("B5")
def test_a_global_batch_that_is_named_or_changed_at_a_resume_is_shown(tmp_path):
    config = write(tmp_path, train__steps=2, train__log_every={"steps": 1})
    train(config)
    same = train(config, "--set", "data.global_batch_size=8", "--set", "train.steps=4")
    assert same.exit_code == 0 and told(same.output, "data.global_batch_size", "null", 8, "harmless")
    assert not any(told(line, "schedule-changing", 8) for line in same.output.splitlines())
    larger = train(config, "--set", "data.global_batch_size=20", "--set", "train.steps=5")
    assert larger.exit_code == 0 and told(larger.output, "batch size", 8, 20, "schedule-changing")
    assert [row["samples_seen"] for row in rows(tmp_path / "run")] == [8, 16, 24, 32, 52]
    refused = train(config, "--set", "data.global_batch_size=0")
    assert refused.exit_code == 64 and told(refused.output, "data.global_batch_size", 0, 1)
