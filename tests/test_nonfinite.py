"""Numbers that are not finite, on whole runs: skipped and named, bounded, and rolled back where that is wanted."""

import json
import signal

import pytest
import torch

from dp_prior.evaluation.loss import LossEvaluator
from dp_prior.places.local import LocalSaver
from dp_prior.tensors.metrics import Means
from dp_prior.training.guard import NotFiniteError
from dp_prior.training.trainer import PolicyTrainer
from tests.messages import naming, told, told_each
from tests.tiny import assert_equal, experiment, rows, state, tiny, train, train_and_die, write

LIMITED = {"train__nonfinite_limit": 3, "train__save_every": {"steps": 4}, "train__steps": 20}


def spoil(monkeypatch, is_bad):
    """Where `is_bad(trainer)`, the batch holds NaN."""
    step = PolicyTrainer.step

    def spoiled(self, batches):
        if is_bad(self):
            batches[-1].x[0].fill_(float("nan"))
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", spoiled)


def events(run):
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    return [line["message"] for line in lines if line["event"] == "error"]


def ended(run):
    return json.loads((run / "exit.json").read_text())


@pytest.mark.promise("G1")
def test_samples_of_a_skipped_step_are_in_the_log(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda trainer: trainer.progress.global_step == 5)
    one = experiment(tiny(tmp_path, **LIMITED))
    one.run()
    ids = one.parts.loader.ids(40).tolist()
    assert told_each(events(tmp_path / "run"), ("step 6", "skipped", "1 in", "gradient", "finite", ids))
    assert rows(tmp_path / "run")[-1]["train/skipped_steps"] == 1


def test_a_skipped_step_spoils_no_checkpoint_before_its_row_is_logged(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda trainer: trainer.progress.global_step == 5)
    often = {"train__save_every": {"steps": 4}, "train__log_every": {"steps": 20}, "evaluate": []}
    experiment(tiny(tmp_path, **often, train__steps=14)).run()
    assert [path.name for path in sorted((tmp_path / "run/checkpoints").glob("*step*"))][-1] == "step_00000014"
    assert not list((tmp_path / "run/checkpoints").glob("quarantine*"))


@pytest.mark.promise("G2")
def test_too_many_in_a_row_end_with_65_and_the_checkpoint_before_them(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda trainer: trainer.progress.global_step >= 9)
    done = train(write(tmp_path, **LIMITED))
    assert done.exit_code == 65 and told(done.output, "error", "3 optimizer steps", "step 12")
    found = ended(tmp_path / "run")
    assert (found["reason"], found["code"]) == ("not finite", 65)
    assert found["durable"]["global_step"] == state(tmp_path / "run")["progress"]["global_step"] == 8


def poison(trainer):
    """The weights themselves are ruined at step 10, so that nothing is finite until they are put back."""
    if trainer.progress.global_step == 10 and trainer.rollbacks == 0:
        with torch.no_grad():
            next(trainer.online.parameters()).fill_(float("inf"))
    return False


@pytest.mark.promise("G5")
def test_rollback_takes_the_last_good_weights_and_passes_over_the_samples_since(tmp_path, monkeypatch):
    spoil(monkeypatch, poison)
    lines = []
    one = experiment(tiny(tmp_path, **LIMITED, train__rollback=2))
    one.parts.report = lines.append
    assert one.run().status == "finished"
    found = state(tmp_path / "run")
    assert found["progress"]["global_step"] == 20 and found["progress"]["rollbacks"] == 1
    assert all(torch.isfinite(value).all() for name, value in found.items() if "safetensors" in name)
    assert found["training.safetensors:skipped"].tolist() == [3, 0, 13]
    warning = next(line for line in lines if "rolled back" in line)
    assert told(warning, "step_00000008", "1 of 2", "samples")
    assert [row["step"] for row in rows(tmp_path / "run")] == sorted({*range(2, 21, 2), 7, 14})


def test_no_step_is_in_two_rows_because_of_a_rollback(tmp_path, monkeypatch):
    spoil(monkeypatch, poison)
    reduce, counts = Means.reduce, []

    def counted(means, ranks=None):
        counts.append(means.state()["train/grad_norm"][1].item())
        return reduce(means, ranks)

    monkeypatch.setattr(Means, "reduce", counted)
    rare = {"train__save_every": {"steps": 5}, "train__log_every": {"steps": 4}, "evaluate": []}
    experiment(tiny(tmp_path, **(LIMITED | rare), train__rollback=1)).run()
    assert counts == [4, 4, 2, 3, 4]  # 11 to 13 were skipped


@pytest.mark.promise("G5")
def test_rollbacks_are_limited(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda trainer: trainer.progress.global_step >= 6)
    with pytest.raises(NotFiniteError, match=naming("3 optimizer steps", "step 12")):
        experiment(tiny(tmp_path, **LIMITED, train__rollback=1)).run()
    assert len([message for message in events(tmp_path / "run") if "rolled back" in message]) == 1


@pytest.mark.slow
def test_a_rollback_at_the_last_step_ends_like_any_run(tmp_path, monkeypatch):
    """It ended as finished without a save and an evaluation, and the next start trained the last steps again."""
    step = PolicyTrainer.step
    spoil(monkeypatch, lambda trainer: trainer.progress.global_step >= 10 and not trainer.rollbacks)
    config = tiny(tmp_path, **{**LIMITED, "train__steps": 13}, train__rollback=2)
    outcome = experiment(config).run()
    assert outcome.status == "finished" and outcome.progress.global_step == 13
    found = state(tmp_path / "run")["progress"]
    assert (found["global_step"], found["rollbacks"]) == (13, 1)
    assert "validation/ema/loss" in rows(tmp_path / "run")[-1] and rows(tmp_path / "run")[-1]["step"] == 13
    monkeypatch.setattr(PolicyTrainer, "step", step)
    assert experiment(config).run().status == "complete"


@pytest.mark.slow
def test_a_rollback_keeps_the_best_value(tmp_path, monkeypatch):
    """A worse value than one before the rollback went to the savers as the best."""
    run, save, delivered = LossEvaluator.run, LocalSaver.save, []
    values = {6: 3.0, 12: 1.0, 18: 2.0, 24: 2.5}
    spoil(monkeypatch, lambda trainer: 10 <= trainer.progress.global_step <= 12 and not trainer.rollbacks)

    def measured(evaluator, models, ranks, progress):
        found = run(evaluator, models, ranks, progress)
        found.metrics["validation/ema/loss"] = values[progress.global_step]
        return found

    def noted(saver, saved):
        delivered.extend([saved.progress.global_step] * saved.is_best)
        save(saver, saved)

    monkeypatch.setattr(LossEvaluator, "run", measured)
    monkeypatch.setattr(LocalSaver, "save", noted)
    evaluate = [{"type": "loss", "every": {"steps": 6}, "models": ["ema"]}]
    saver = [{"type": "local", "save_best_to": "best"}]
    changes = {"train__steps": 24, "train__rollback": 2, "evaluate": evaluate, "tracker__save": saver}
    experiment(tiny(tmp_path, train__nonfinite_limit=3, train__save_every={"steps": 4}, **changes)).run()
    assert delivered == [6, 12]
    assert state(tmp_path / "run")["progress"]["best"]["step"] == 12


def test_without_a_checkpoint_there_is_nothing_to_roll_back_to(tmp_path, monkeypatch):
    spoil(monkeypatch, lambda trainer: True)
    with pytest.raises(NotFiniteError, match=naming("3 optimizer steps", "step 3", "events.jsonl")):
        experiment(tiny(tmp_path, **LIMITED, train__rollback=5)).run()


@pytest.mark.promise("B1", "G5")
@pytest.mark.slow
def test_run_killed_around_a_rollback_equals_the_one_that_was_not(tmp_path, monkeypatch):
    spoil(monkeypatch, poison)
    reference = tmp_path / "reference"
    reference.mkdir()
    assert train(write(reference, **LIMITED, train__rollback=2)).exit_code == 0
    config = write(tmp_path, **LIMITED, train__rollback=2)
    for count in (11, 7, 10):  # with ruined weights; behind the rollback; behind the save after it, if that was late
        assert train_and_die(config, "step", count) in (-signal.SIGKILL, 0)
    assert train(config).exit_code == 0
    assert_equal(state(tmp_path / "run"), state(reference / "run"))
    assert rows(tmp_path / "run") == rows(reference / "run")
