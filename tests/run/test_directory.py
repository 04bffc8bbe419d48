"""A run directory that is gone, full, or holds something else than files: exit code 74, one line, no traceback."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dp_prior.checkpoints.clock import Progress
from dp_prior.evaluation.action_error import ActionErrorConfig
from dp_prior.evaluation.measurement import WritingEvaluator
from dp_prior.files.file_names import alike, is_portable
from dp_prior.run.directory import RunDirectory
from dp_prior.run.exit_file import EXIT
from dp_prior.run.scores import MEDIA, RESULT
from dp_prior.training.trainer import PolicyTrainer
from tests.messages import told
from tests.tiny import rows, train, write

ROOT = Path(__file__).parents[2]
SHORT = {"train__steps": 8, "train__save_every": {"steps": 2}}


def at_step(monkeypatch, number, act):
    step = PolicyTrainer.step

    def acting(self, batches):
        if self.progress.global_step == number:
            self.writer.wait()  # a save in progress would race with it
            act()
        step(self, batches)

    monkeypatch.setattr(PolicyTrainer, "step", acting)


def ended(run: Path) -> dict:
    return json.loads((run / EXIT).read_text())


def test_directory_that_is_moved_away_is_not_made_anew(tmp_path, monkeypatch):
    at_step(monkeypatch, 5, lambda: (tmp_path / "run").rename(tmp_path / "moved"))
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74
    assert told(done.output, "error", tmp_path / "run", "moved", "same command")
    assert not (tmp_path / "run").exists()
    assert (ended(tmp_path / "moved")["reason"], ended(tmp_path / "moved")["code"]) == ("not saved", 74)
    assert ended(tmp_path / "moved")["durable"]["global_step"] == 4
    (tmp_path / "moved").rename(tmp_path / "run")
    monkeypatch.undo()
    assert train(write(tmp_path, **SHORT)).exit_code == 0
    assert rows(tmp_path / "run")[-1]["step"] == 8


def test_directory_that_is_deleted_is_not_made_anew(tmp_path, monkeypatch):
    at_step(monkeypatch, 5, lambda: shutil.rmtree(tmp_path / "run"))
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74 and told(done.output, "error", tmp_path / "run", "deleted", "same command")
    assert not (tmp_path / "run").exists()


def test_another_directory_in_its_place_is_not_written_to(tmp_path, monkeypatch):
    def replace():
        (tmp_path / "run").rename(tmp_path / "moved")
        (tmp_path / "run").mkdir()

    at_step(monkeypatch, 5, replace)
    assert train(write(tmp_path, **SHORT)).exit_code == 74
    assert list((tmp_path / "run").iterdir()) == [] and ended(tmp_path / "moved")["code"] == 74


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
@pytest.mark.parametrize("name", ["exit.json", "result.json", "config.json", "metrics.jsonl", "run.json"])
def test_what_is_no_file_where_a_file_belongs_is_refused_at_the_start(name, make, tmp_path):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / name)
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74, done.output
    assert told(done.output, "error", tmp_path / "run" / name, "regular file", "away")
    if name != "exit.json":
        assert ended(tmp_path / "run")["code"] == 74


@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "config.json", "exit.json"])
def test_link_to_nothing_where_a_file_belongs_is_refused_at_the_start(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "not mounted" / name)
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74, done.output
    assert told(done.output, "error", tmp_path / "run" / name, "regular file", "away")


def link_to_nothing(path):
    path.symlink_to(path.parent / "not mounted")


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, link_to_nothing])
def test_what_is_no_directory_where_pictures_belong_is_refused_at_the_start(make, tmp_path):
    (tmp_path / "run").mkdir()
    make(tmp_path / "run" / "media")
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74, done.output
    assert told(done.output, "error", tmp_path / "run" / "media", "directory", "away")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    "place",
    [
        "dp_prior.tracking.jsonl.JsonlLogger._cut_beyond",
        "dp_prior.tracking.identity.replace_file",
        "dp_prior.run.run.replace_file",
    ],
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE])
def test_disk_that_fails_at_the_start_is_74(code, place, tmp_path, monkeypatch):
    def failing(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(place, failing)
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74 and told(done.output, os.strerror(code), "start again")
    assert ended(tmp_path / "run")["reason"] == "not saved"


def test_file_of_the_run_that_may_not_be_opened_is_74(tmp_path, monkeypatch):
    def refused(*arguments):
        raise OSError(errno.EACCES, "Permission denied", str(tmp_path / "run" / "metrics.jsonl"))

    monkeypatch.setattr("dp_prior.tracking.jsonl.JsonlLogger._cut_beyond", refused)
    done = train(write(tmp_path, **SHORT))
    assert done.exit_code == 74 and f"cannot write {tmp_path / 'run' / 'metrics.jsonl'}: Perm" in done.output


def test_directory_that_may_not_be_looked_into_is_74(tmp_path, monkeypatch):
    config, look = write(tmp_path, **SHORT), os.stat

    def refused(path, *arguments, **keywords):
        if str(path).startswith(str(tmp_path / "run")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return look(path, *arguments, **keywords)

    monkeypatch.setattr(os, "stat", refused)
    done = train(config)
    assert done.exit_code == 74 and "Permission denied" in done.output and str(tmp_path / "run") in done.output


DAMAGED = ['{"best": 1, "test": {}, "media": {}}', "", "{", "[]", "null", '{"best": {}}', "\x00"]


@pytest.mark.parametrize("text", [DAMAGED[0], *(pytest.param(text, marks=pytest.mark.slow) for text in DAMAGED[1:])])
def test_damaged_result_is_measured_again(text, tmp_path):
    config = write(tmp_path, train__steps=2, test=[{"type": "loss", "name": "again", "split": "train"}])
    assert train(config).exit_code == 0
    sound = (tmp_path / "run" / RESULT).read_bytes()
    (tmp_path / "run" / RESULT).write_text(text)
    assert train(config).exit_code == 0
    assert (tmp_path / "run" / RESULT).read_bytes() == sound


def test_path_of_an_open_directory_follows_it_until_it_is_deleted(tmp_path):
    (tmp_path / "run").mkdir()
    place = RunDirectory(tmp_path / "run")
    place.open()
    assert place.current() == tmp_path / "run"
    (tmp_path / "run").rename(tmp_path / "moved")
    (place.current() / "note").write_text("here")
    assert (tmp_path / "moved" / "note").exists()
    shutil.rmtree(tmp_path / "moved")
    assert place.current() is None
    place.close()


def launched(config, **keywords):
    return subprocess.Popen(
        [sys.executable, str(ROOT / "train_policy.py"), "--config_file", str(config)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )


@pytest.mark.slow
def test_closed_stdout_with_the_console_logger_ends_nothing(tmp_path):
    config = write(tmp_path, **SHORT, tracker__log=[{"type": "console"}])
    process = launched(config, preexec_fn=lambda: os.close(1))
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors and ended(tmp_path / "run")["reason"] == "finished"


def test_a_file_in_the_place_of_the_run_directory_is_named(tmp_path):
    (tmp_path / "run").write_bytes(b"data")
    done = train(write(tmp_path))
    assert done.exit_code == 74 and told(done.output, tmp_path / "run", "--set tracker.data_path=DIRECTORY")
    assert (tmp_path / "run").read_bytes() == b"data"


@pytest.mark.parametrize("kind", ["trained_policy", "trained_camera"])
def test_the_files_of_a_run_have_short_paths_that_every_disk_accepts_and_keeps_apart(kind, request):
    """`docs/platforms.md` states the length."""
    run = request.getfixturevalue(kind)
    paths = [path.relative_to(run).as_posix() for path in run.rglob("*")]
    assert len(paths) > 20 and max(map(len, paths)) <= 100
    assert alike(paths) is None
    assert all(is_portable(part) for path in paths for part in Path(path).parts)


def test_a_report_adds_the_name_of_its_evaluator_alone(tmp_path):
    record = ActionErrorConfig(name="a" * 80)
    file = WritingEvaluator(record, tmp_path / MEDIA).file(Progress(0, 10**12), "_frames.npy")
    assert len(str(file.relative_to(tmp_path))) <= 100 + len(record.name)
