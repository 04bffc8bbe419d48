"""An attempt ends at its deadline, with its parent, or with a report."""

import json
import os
from pathlib import Path

import pytest

from dp_prior.places import worker
from dp_prior.places.destination import DeliveryReport
from dp_prior.places.hub import HuggingFaceSaverConfig
from dp_prior.places.worker import Worker
from tests.messages import told
from tests.waiting import until


@pytest.mark.promise("E1", "E6")
def test_the_worker_is_killed_at_its_deadline_and_reports_what_it_began(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    begun = json.dumps({"message": "", "trouble": "unavailable", "commits": 1})
    begins = tmp_path / "begins"
    script.write_text(f"import time\nprint('{begun}', flush=True)\nopen('{begins}', 'w')\ntime.sleep(600)\n")
    _replace_worker(monkeypatch, script, begins)
    report = Worker({}).attempt(None, (), 1.0)
    assert (report.trouble, report.commits) == ("unavailable", 1) and told(report.message, "1 s")


def test_a_worker_that_dies_or_babbles_is_an_attempt_that_failed(tmp_path, monkeypatch):
    script = tmp_path / "worker.py"
    script.write_text("import sys\nprint('[1]\\nnot json')\nsys.exit(3)\n")
    _replace_worker(monkeypatch, script)
    assert told(Worker({}).attempt(None, (), 20.0).message, "code 3")


def test_a_relative_path_in_the_environment_is_that_of_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_text("hf_x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", "home")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    report = HuggingFaceSaverConfig(repo="me/x").worker().attempt(None, (), 100.0)
    assert report.trouble == "unavailable" and not told(report.message, "HF_TOKEN")


def _replace_worker(monkeypatch, script, begins=None):
    """The deadline begins when the script has made the file `begins`."""
    popen = worker.subprocess.Popen

    def start(command, **options):
        process = popen([command[0], str(script)], **options)
        while begins is not None and not begins.exists():
            assert process.poll() is None
        return process

    monkeypatch.setattr(worker.subprocess, "Popen", start)


@pytest.mark.promise("C2")
@pytest.mark.slow
def test_a_worker_ends_with_the_process_that_started_it(tmp_path):
    import subprocess
    import sys

    program = (
        "import json, os, subprocess, sys\n"
        "worker = subprocess.Popen([sys.executable, '-m', 'dp_prior.places'], stdin=subprocess.PIPE)\n"
        "job = {'saver': {'type': 'huggingface', 'repo': 'me/x'}, 'entry': None, 'kinds': [], 'parent': os.getpid()}\n"
        "worker.stdin.write(json.dumps(job).encode()); worker.stdin.close()\n"
        "print(worker.pid, flush=True)\n"
        "worker.wait()\n"
    )
    import socket

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        environment = os.environ | {"HF_ENDPOINT": f"http://127.0.0.1:{deaf.getsockname()[1]}", "HF_TOKEN": "hf_x"}
        environment["HF_HOME"] = str(tmp_path)
        root = Path(__file__).parents[2]
        parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment, cwd=root)
        pid = int(parent.stdout.readline())
        deaf.settimeout(200)  # the worker is nice, and gets little of a busy machine
        connection, _ = deaf.accept()
        assert Path(f"/proc/{pid}").exists()
        parent.kill()
        parent.wait()
        until(lambda: not _runs(pid))
        connection.close()


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_unforeseen_trouble_is_told_by_its_kind_alone(run, monkeypatch):
    class Broken:
        def check(self):
            raise ValueError("a secret")

    monkeypatch.setattr(HuggingFaceSaverConfig, "destination", lambda self: Broken())
    record = HuggingFaceSaverConfig(repo="me/x")
    said = Worker({}, record.destination).attempt(None, (), 1.0)
    assert said == DeliveryReport(said.message, "unavailable")
    assert told(said.message, "ValueError", "uploader") and "secret" not in said.message


def test_a_client_that_is_not_installed_is_a_refusal_with_its_remedy(monkeypatch):
    def missing(self):
        raise ImportError("gcsfs is missing; pip install gcsfs")

    monkeypatch.setattr(HuggingFaceSaverConfig, "destination", missing)
    said = Worker({}, HuggingFaceSaverConfig(repo="me/x").destination).attempt(None, (), 1.0)
    assert said == DeliveryReport("gcsfs is missing; pip install gcsfs", "refused")


def test_a_worker_that_begins_after_its_run_has_ended_is_killed_at_once(monkeypatch):
    worker = Worker(HuggingFaceSaverConfig(repo="me/x").model_dump(mode="json"))
    worker.kill()
    said = worker.attempt(None, (), 60.0)
    assert said.trouble == "unavailable" and told(said.message, "run ended")
