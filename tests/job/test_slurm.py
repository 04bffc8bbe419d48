"""SLURM, played by a stand-in `scontrol`: its end is read, and it is asked to start a job again, once, when saved."""

import json
import os
import sys
import time
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from dp_prior.job.slurm import SlurmJob
from tests import forks
from tests.messages import told
from tests.tiny import assert_equal, rows, state, train, write


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    """A stand-in on PATH; returns the file with what it was asked and whether the save was good by then."""
    place = tmp_path / "bin"
    place.mkdir()
    asked = tmp_path / "asked.jsonl"
    (place / "scontrol").write_text(
        f"#!{sys.executable}\n"
        "import json, os, sys, pathlib\n"
        f"run = pathlib.Path({str(tmp_path / 'run')!r})\n"
        "told = json.loads((run / 'exit.json').read_text()) if (run / 'exit.json').exists() else None\n"
        f"open({str(asked)!r}, 'a').write(json.dumps([sys.argv[1:], told]) + chr(10))\n"
        "print('JobId=7 EndTime=' + os.environ.get('STAND_IN_END', 'Unknown') + ' Partition=a')\n"
        "sys.exit(int(os.environ.get('STAND_IN_CODE', '0')))\n"
    )
    (place / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return asked


def calls(asked):
    return [json.loads(line) for line in asked.read_text().splitlines()] if asked.exists() else []


def test_outside_of_slurm_there_is_no_job():
    assert SlurmJob.of({}) is None
    assert SlurmJob.of({"SLURM_JOB_ID": "x; rm"}) is None


def test_end_is_that_of_the_environment_or_else_asked_for(scontrol, monkeypatch):
    assert SlurmJob.of({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1700000000"}) == SlurmJob("7", 1.7e9)
    assert calls(scontrol) == []
    monkeypatch.setenv("STAND_IN_END", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(1.8e9)))
    assert SlurmJob.of({"SLURM_JOB_ID": "7"}) == SlurmJob("7", 1.8e9)
    monkeypatch.setenv("STAND_IN_END", "Unknown")
    assert SlurmJob.of({"SLURM_JOB_ID": "7"}) == SlurmJob("7", None)
    assert [call[0] for call in calls(scontrol)] == [["show", "job", "7"]] * 2


def test_a_job_is_put_back_into_the_queue_by_its_number(scontrol, monkeypatch):
    assert told(SlurmJob("7", None).requeue(), "job 7", "queue")
    monkeypatch.setenv("STAND_IN_CODE", "1")
    assert told(SlurmJob("8", None).requeue(), "warning", "job 8", "JobId=7")
    assert [call[0] for call in calls(scontrol)] == [["requeue", "7"], ["requeue", "8"]]


def test_no_scontrol_is_no_end_and_a_warning(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    job = SlurmJob.of({"SLURM_JOB_ID": "7"})
    assert job == SlurmJob("7", None)
    assert told(job.requeue(), "warning", "job 7")


LIMITED = {"train__save_every": {"steps": 1}, "train__requeue": True, "train__steps": 24}


def launched(config: Path, *lines: str, **environment: str) -> CompletedProcess[str]:
    """The command as a process of its own, whose steps take a tenth of a second."""
    program = "\n".join(
        [
            "import sys, time",
            "from dp_prior.cli import train; from dp_prior.training.trainer import PolicyTrainer",
            "step = PolicyTrainer.step",
            "def slow(self, batches):\n    step(self, batches); time.sleep(0.1)",
            "PolicyTrainer.step = slow",
            *lines,
            f"sys.argv[:] = ['train_policy.py', '--config_file', {str(config)!r}]; train()",
        ]
    )
    return forks.call(["-c", program], SLURM_JOB_ID="7", **environment)


@pytest.mark.promise("C2", "C3", "C4")
@pytest.mark.slow
def test_run_that_slurm_ends_again_and_again_is_the_uninterrupted_one(tmp_path, scontrol):
    """Jobs of a few seconds: each saves in time, asks once to be started again (`requeue`), when all is durable."""
    reference = tmp_path / "reference"
    reference.mkdir()
    train(write(reference, **LIMITED))
    config = write(tmp_path, **LIMITED)
    ended = 0
    for _ in range(12):
        done = launched(
            config,
            "import os; from dp_prior.job.deadline import Deadline",
            # started by the clock of the loop, since imports take as long as they take on a busy machine
            "fit = PolicyTrainer.fit",
            "def limited(self):\n    self.stop.deadline = Deadline(time.time() + 2.2)\n    return fit(self)",
            "PolicyTrainer.fit = limited",
        )
        if done.returncode == 0:
            break
        assert done.returncode == 75, done.stderr
        assert told(done.stdout, "stopped", "time limit") and told(done.stdout, "job 7", "queue")
        ended += 1
        asked = [call for call in calls(scontrol) if call[0][0] == "requeue"]
        assert len(asked) == ended
        words, left = asked[-1]
        assert words == ["requeue", "7"]
        assert (left["reason"], left["stopped_by"]) == ("preempted", "time limit")
        assert left["durable"]["global_step"] == left["progress"]["global_step"]
    assert done.returncode == 0 and ended >= 2, ended
    assert_equal(state(tmp_path / "run"), state(reference / "run"))
    assert rows(tmp_path / "run") == rows(reference / "run")


@pytest.mark.promise("C3", "C4")
def test_time_limit_of_slurm_stops_the_run_which_is_requeued_if_wanted(tmp_path, scontrol):
    for name, wanted in (("wanted", True), ("unwanted", False)):
        config = write(tmp_path, **LIMITED | {"train__requeue": wanted, "tracker__data_path": str(tmp_path / name)})
        done = launched(config, SLURM_JOB_END_TIME=str(int(time.time()) - 5))
        assert done.returncode == 75, done.stderr
        assert told(done.stdout, "job 7", "queue") == wanted
    assert [call[0] for call in calls(scontrol)] == [["requeue", "7"]]


@pytest.mark.parametrize("signal", ["SIGUSR1", "SIGTERM"])
def test_a_job_whose_time_ends_before_training_begins_is_requeued(tmp_path, scontrol, signal):
    done = launched(
        write(tmp_path, **LIMITED),
        "import os, signal; from dp_prior.data.integrity import Integrity",
        f"Integrity.check = lambda self: (os.kill(os.getpid(), signal.{signal}), time.sleep(60))",
    )
    assert done.returncode == 75 and told(done.stderr, "stopped", signal), done.stderr
    assert json.loads((tmp_path / "run/exit.json").read_text())["stopped_by"] == signal
    assert (["requeue", "7"] in [call[0] for call in calls(scontrol)]) == (signal == "SIGUSR1")


@pytest.mark.promise("C4")
def test_refused_requeue_is_a_warning_and_the_code_stays(tmp_path, scontrol):
    done = launched(write(tmp_path, **LIMITED), SLURM_JOB_END_TIME="1", STAND_IN_CODE="1")
    assert done.returncode == 75 and told(done.stdout, "warning", "job 7")


@pytest.mark.promise("C3")
def test_max_runtime_stops_the_run(tmp_path):
    """`max_runtime` counts from when the run is built."""
    config = write(tmp_path, **LIMITED | {"train__max_runtime": "0.5s"})
    done = launched(config)
    assert done.returncode == 75, done.stderr
    assert told(done.stdout, "stopped", "time limit")
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["stopped_by"] == "time limit"
