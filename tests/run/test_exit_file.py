"""exit.json tells how a run ended, whatever the way; a launcher's exit code does not."""

import errno
import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import pytest

import dp_prior
from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import CheckpointError
from dp_prior.checkpoints.run_lock import LockedError, RunLock
from dp_prior.config import ConfigError
from dp_prior.data.errors import UnreadableError
from dp_prior.evaluation.loss import LossEvaluator
from dp_prior.job.stop import LOST, RankLostError, StoppedEarly, Verdict
from dp_prior.run import exit_file
from dp_prior.run.exit_file import ExitFile, classify, recorded
from dp_prior.training.guard import NotFiniteError
from dp_prior.training.trainer import PolicyTrainer
from tests.messages import naming, told
from tests.tiny import experiment, tiny, train, train_and_die, write

SHORT = {"train__steps": 6, "train__save_every": {"steps": 2}}


def ended(place: Path) -> dict:
    return json.loads((place / "run" / "exit.json").read_text())


def test_finished_and_complete_runs(tmp_path):
    config = write(tmp_path, **SHORT)
    for reason in ("finished", "complete"):
        assert train(config).exit_code == 0
        found = ended(tmp_path)
        assert (found["reason"], found["code"], found["traceback"]) == (reason, 0, None)
        assert found["progress"] == {"samples_seen": 48, "global_step": 6}
        assert found["durable"] == {"checkpoint": "step_00000006", "samples_seen": 48, "global_step": 6}
        assert found["started"] <= found["ended"] and found["rank"] == 0 and found["pid"] == os.getpid()
        assert found["dp_prior"] == dp_prior.__version__


def test_the_progress_of_a_run_is_its_own_though_older_weights_are_tested(tmp_path, monkeypatch):
    measure = LossEvaluator.run

    def worse_with_every_step(self, models, ranks, progress):
        found = measure(self, models, ranks, progress)
        return replace(found, metrics=dict.fromkeys(found.metrics, float(progress.global_step)))

    monkeypatch.setattr(LossEvaluator, "run", worse_with_every_step)
    test = [{"type": "loss", "name": "test", "split": "test"}]
    changes = {
        "evaluate__0__every": {"steps": 2},
        "test": test,
        "data__split": {"train": 0.5, "val": 0.25, "test": 0.25},
    }
    assert train(write(tmp_path, **SHORT, **changes)).exit_code == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["best"]["step"] == 2
    assert ended(tmp_path)["progress"] == {"samples_seen": 48, "global_step": 6}


def test_error_that_nobody_foresaw_is_told_with_its_traceback(tmp_path, monkeypatch):
    step = PolicyTrainer.step

    def failing(self, batches):
        if self.progress.global_step == 3:
            raise OSError("the camera is gone")
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", failing)
    with pytest.raises(OSError, match=naming("camera")):
        train(write(tmp_path, **SHORT))
    found = ended(tmp_path)
    assert (found["reason"], found["code"]) == ("error", 1)
    assert found["message"] == "OSError: the camera is gone"
    assert "in failing" in found["traceback"]
    assert (found["progress"]["global_step"], found["durable"]["global_step"]) == (3, 2)


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (ConfigError("a", ["b"]), "configuration", 64),
        (NotFiniteError("nan"), "not finite", 65),
        (CheckpointError("full"), "not saved", 74),
        (UnreadableError(5, "cannot be read now", "/data"), "unreadable", 74),
        (PermissionError(13, "Permission denied", "/data/toy.npz"), "refused", 74),
        (NotADirectoryError(20, "Not a directory", "/data/toy.npz"), "refused", 74),
        (KeyboardInterrupt(), "interrupted", 130),
        (RankLostError(Verdict(1, LOST, "rank 1 is gone")), "rank lost", 76),
        (RankLostError(Verdict(1, 74, "full", "not saved")), "not saved", 74),
    ],
)
def test_each_way_to_end_has_its_reason_and_code(error, reason, code, tmp_path, monkeypatch):
    def failing(self, batches):
        raise error

    monkeypatch.setattr(PolicyTrainer, "step", failing)
    done = train(write(tmp_path, **SHORT))
    found = ended(tmp_path)
    assert done.exit_code == code == found["code"]
    assert found["reason"] == reason == classify(error)[0]


def test_run_that_is_killed_says_running_and_the_next_start_tells(tmp_path):
    config = write(tmp_path, **SHORT)
    assert train_and_die(config, "step", 3) == -signal.SIGKILL
    found = ended(tmp_path)
    assert (found["reason"], found["code"], found["ended"]) == ("running", None, None)
    assert told(train(config).output, f"process {found['pid']}", "killed")
    assert ended(tmp_path)["reason"] == "finished"


def test_refused_second_process_does_not_speak_for_the_first(tmp_path):
    config = write(tmp_path, **SHORT)
    train(config)
    before = ended(tmp_path)
    with RunLock(tmp_path / "run"):
        assert train(config).exit_code == 73
        (tmp_path / "toy.npz").unlink()
        assert train(config).exit_code == 65  # fails before it asks for the directory
    assert ended(tmp_path) == before


def test_what_fails_before_the_run_begins_is_told_where_there_is_a_run(tmp_path):
    config = write(tmp_path, **SHORT)
    (tmp_path / "toy.npz").unlink()
    assert train(config).exit_code == 65
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    assert train(config).exit_code == 65
    assert (ended(tmp_path)["reason"], ended(tmp_path)["code"]) == ("data", 65)


def test_data_that_cannot_be_read_now_are_74_and_one_line(tmp_path, monkeypatch):
    config = write(tmp_path, **SHORT)
    assert train(config, "--set", "train.steps=2").exit_code == 0

    def refuse(path):
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("dp_prior.data.formats.npz.zipfile.ZipFile", refuse)
    done = train(config)
    assert done.exit_code == 74 and "Traceback" not in done.output
    (line,) = [line for line in done.output.splitlines() if "error: " in line]
    assert told(line, os.strerror(errno.EIO), tmp_path / "toy.npz")
    found = ended(tmp_path)
    assert (found["reason"], found["code"], found["durable"]["global_step"]) == ("unreadable", 74, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--set=task.backbone.hidden_dim=32", ("task.backbone.hidden_dim", 32, "--allow-change")),
        ("--set=data.obs.goal.key=gone", ("gone",)),
        ("--resume=never", ("--resume auto",)),
    ],
)
def test_a_refused_start_leaves_the_end_of_a_finished_run_and_is_told_once(change, words, tmp_path):
    config = write(tmp_path, **SHORT)
    assert train(config).exit_code == 0
    before = (tmp_path / "run" / "exit.json").read_bytes()
    done = train(config, change)
    assert done.exit_code in (64, 65) and told(done.output, *words)
    assert done.output.count("error: ") == 1 and "Error" not in done.output
    assert (tmp_path / "run" / "exit.json").read_bytes() == before


def test_a_run_that_fails_after_it_began_is_a_failed_run_though_it_had_finished(tmp_path, monkeypatch):
    assert train(write(tmp_path, **SHORT)).exit_code == 0

    def failing(self, batches):
        raise NotFiniteError("nan")

    monkeypatch.setattr(PolicyTrainer, "step", failing)
    done = train(write(tmp_path, **SHORT), "--set=train.steps=9")
    assert done.exit_code == 65 and done.output.count("error: ") == 1
    assert (ended(tmp_path)["reason"], ended(tmp_path)["progress"]["global_step"]) == ("not finite", 6)
    assert "NotFiniteError: nan" in (tmp_path / "run" / "events.jsonl").read_text()


@pytest.mark.parametrize(("code", "is_left"), [(0, True), (75, False), (65, False), (None, False)])
def test_only_the_end_of_a_finished_run_outlives_a_refusal(code, is_left, tmp_path):
    before = json.dumps({"reason": "before", "code": code, "message": ""})
    for error in (ConfigError("a", ["b"]), UnreadableError(5, "cannot be read now", "/data")):
        (tmp_path / "exit.json").write_text(before)
        ExitFile(tmp_path).fail(error)
        is_same = (tmp_path / "exit.json").read_text() == before
        assert is_same == (is_left and isinstance(error, ConfigError))


def test_a_start_that_must_resume_and_cannot_leaves_no_run(tmp_path):
    done = train(write(tmp_path, **SHORT), "--resume", "must")
    assert done.exit_code == 64 and told(done.output, "--resume auto", tmp_path / "run")
    assert done.output.count("error: ") == 1 and not (tmp_path / "run").exists()


def test_exit_is_told_without_the_command_too(tmp_path):
    experiment(tiny(tmp_path, **SHORT)).run()
    assert ended(tmp_path)["reason"] == "finished"


def test_cause_stays_and_a_consequence_gives_way(tmp_path):
    for is_cause_first in (True, False):
        place = tmp_path / str(is_cause_first)
        place.mkdir()
        main, other = ExitFile(place, 0, 2), ExitFile(place, 1, 2)
        main.clock = lambda: Progress(8, 1)
        main.begin()
        if is_cause_first:
            other.fail(ValueError("mine"))
        main.lose(Verdict(1, LOST, "rank 1 is gone"))
        other.fail(ValueError("mine"))
        found = json.loads((place / "exit.json").read_text())
        assert (found["rank"], found["message"]) == (1, "ValueError: mine")


def test_what_fails_before_the_run_begins_is_told_by_the_rank_where_it_did(tmp_path):
    for rank, problem in ((1, "no data"), (0, "follows")):
        with pytest.raises(ConfigError, match=naming("data", problem)), recorded(tmp_path) as exits:
            exits.rank, exits.ranks = rank, 2
            raise ConfigError("data", [problem])
        found = json.loads((tmp_path / "exit.json").read_text())
        assert (found["rank"], found["ranks"]) == (1, 2) and "no data" in found["message"]


@pytest.mark.parametrize(
    ("ended", "is_kept"),
    [
        ("2026-10-25T02:10:00+01:00", True),  # 20 minutes after the start, since the clock was set back an hour
        ("2026-10-24T20:55:00-04:00", True),
        ("2026-10-25T09:30:00+09:00", False),  # of an earlier run
        ("2026-10-25T02:45:00+02:00", False),
        ("yesterday", False),
        (7, False),
    ],
)
def test_a_cause_is_kept_whatever_the_time_zone_of_its_rank(ended, is_kept, tmp_path, monkeypatch):
    monkeypatch.setattr(exit_file, "_now", lambda: "2026-10-25T02:50:00+02:00")
    file = ExitFile(tmp_path, 0, 2)
    (tmp_path / "exit.json").write_text(json.dumps({"reason": "data", "code": 65, "message": "cause", "ended": ended}))
    file.fail(RankLostError(Verdict(1, LOST, "rank 1 is gone")))
    assert (json.loads((tmp_path / "exit.json").read_text())["message"] == "cause") == is_kept


def test_disk_that_cannot_be_written_hides_no_error(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exit_file, "replace_file", full)
    ExitFile(tmp_path).fail(ValueError("the real one"))


def test_lock_of_another_run_is_nobodys_failure(tmp_path):
    ExitFile(tmp_path).fail(LockedError("busy"))
    assert not (tmp_path / "exit.json").exists()


def test_codes_are_those_of_the_documentation():
    page = (Path(__file__).parents[2] / "docs/processes.md").read_text()
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert documented >= {0, 1, LOST, exit_file.STOPPED, *(code for _, code in exit_file.REASONS.values())}


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"reason": "running"}', '{"reason": "running", "pid": "x"}'])
def test_what_was_left_there_keeps_no_run_from_starting(text, tmp_path):
    (tmp_path / "exit.json").write_text(text)
    file = ExitFile(tmp_path, 0, 2)
    assert file.begin() is None
    file.fail(ValueError("now"))
    assert json.loads((tmp_path / "exit.json").read_text())["message"] == "ValueError: now"


def test_a_launcher_that_stops_ranks_which_wait_for_a_lost_one_hides_no_cause(tmp_path):
    lost, waiting = (ExitFile(tmp_path, rank, 2) for rank in (1, 0))
    lost.lose(Verdict(1, LOST, "did not meet"))
    waiting.fail(StoppedEarly("SIGTERM", 0))
    file = tmp_path / "exit.json"
    assert json.loads(file.read_text())["code"] == 76
    ExitFile(tmp_path, 0, 2).lose(Verdict(0, 65, "is damaged", "data"))
    assert json.loads(file.read_text())["code"] == 65


def test_an_early_stop_names_the_checkpoint_that_the_next_start_resumes(tmp_path):
    """Where nothing is saved, there is none to name."""
    for steps, names in ((0, ()), (2, ("step_00000002",))):
        if steps:
            experiment(tiny(tmp_path, train__steps=steps)).run()
        early = StoppedEarly("SIGTERM", 0)
        exits = ExitFile(tmp_path / "run")
        exits.path.parent.mkdir(exist_ok=True)
        exits.fail(early)
        message = json.loads(exits.path.read_text())["message"]
        assert message == str(early) and told(message, "SIGTERM", *names) and ("step_" in message) == bool(names)
