"""Weights & Biases with its real client: offline, with a server that is not there, and with its process killed.

What was logged is read back from the client's own record, the `.wandb` file, with its own message classes.
"""

import contextlib
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dp_prior.places.saver import PROBLEM
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.identity import RunIdentity
from dp_prior.tracking.jsonl import EVENTS, read_rows
from dp_prior.tracking.wandb import WandbConfig, WandbLogger
from tests.messages import told
from tests.tracking.wandb_server import WandbServer

ROOT = Path(__file__).parent.parent.parent
KEY = "0123456789abcdef0123456789abcdef01234567"

PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
from dp_prior.checkpoints.clock import Progress
from dp_prior.tracking.metric_names import Metric
from dp_prior.tracking import TrackerConfig
from dp_prior.tracking.identity import RunIdentity
directory, record, config = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
at = lambda step: Progress(10 * step, step)

def text_of(path):  # empty once the process or thread has ended
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""

def service():
    children = [pid for path in Path("/proc/self/task").glob("*/children") for pid in text_of(path).split()]
    return [int(pid) for pid in children if "wandb" in text_of(Path(f"/proc/{pid}/comm"))]

def wait_for(condition):
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)

began = time.monotonic()
tracker = TrackerConfig.from_json(json.dumps({**record, "log": [{"type": "wandb", **config}]})).create(
    total_samples=100, directory=directory)
loss = Metric("train/loss", "1", "lower", "The loss.")
tracker.begin(RunIdentity("abcd1234", "toy"), {"seed": 3, "task": {"horizon": 16}}, (loss,))
tracker.rewind(at(0))
"""
LOG = """
for step in range(1, 21):
    tracker.log({"train/loss": 1 / step, "validation/ema/loss": 2 / step}, at(step))
"""
CLOSE = """
lines = tracker.close()
print(json.dumps({"lines": lines, "seconds": time.monotonic() - began}))
"""


def run(directory, source, config, record=None, on_break=None, before="", **environment):
    """Run a program that logs; returns what it printed last, and how long it took with its exit.

    `before` is run before the tracker begins.
    `on_break` is called when the program prints BREAK; the program goes on after the next line of its input.
    """
    began = time.monotonic()
    program, record = before + PROGRAM + source + CLOSE, {"patience_s": 150, **(record or {})}
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(directory), json.dumps(record), json.dumps(config)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=directory,
        start_new_session=True,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("WANDB")},
            "PYTHONPATH": str(ROOT),
            "HOME": str(directory),
            "WANDB_ERROR_REPORTING": "false",
            **environment,
        },
    )
    try:
        if on_break is not None:
            while process.stdout.readline() not in ("BREAK\n", ""):
                pass
            on_break()
        output, errors = process.communicate("\n", timeout=250)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    found = json.loads(output.splitlines()[-1])
    return {**found, "wall": time.monotonic() - began, "stdout": output, "stderr": errors}


def left_behind(directory):
    """Processes that still work in a directory, after a while in which they may go."""
    end = time.monotonic() + 30
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                found += [path.parent.name] if os.readlink(path) == str(directory) else []
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


def records(directory):
    """All records in the client's files below a run directory, in order of the files."""
    from wandb.proto import wandb_internal_pb2

    found = []
    for path in sorted(directory.glob("wandb/*run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for data in leveldb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            found.append(record)
    return found


def leveldb_records(data):
    """The client's file: 7 bytes, then blocks of 32 KiB with pieces (checksum 4, length 2, kind 1; 1 whole, 4 last)."""
    place, whole = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4 : place + 7])
        if kind == 0:
            break
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def history(directory):
    rows = []
    for record in records(directory):
        if record.HasField("history"):
            rows.append(
                {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            )
    return rows


@pytest.mark.slow
def test_offline_every_point_is_there_over_our_own_clock_and_the_run_is_who_it_is(tmp_path):
    found = run(tmp_path, LOG, {"mode": "offline", "project": "toys", "tags": ["a"], "group": "g"})
    assert found["lines"] == []
    rows = history(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert [row["train/loss"] for row in rows] == [1 / step for step in range(1, 21)]
    assert [row["samples_seen"] for row in rows] == [10 * step for step in range(1, 21)]
    [started] = [record.run for record in records(tmp_path) if record.HasField("run")][:1]
    assert (started.run_id, started.display_name, started.project) == ("abcd1234", "toy", "toys")
    assert list(started.tags) == ["a"] and started.run_group == "g"
    config = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in started.config.update}
    assert config["seed"] == 3 and config["task"] == {"horizon": 16}
    metrics = {
        record.metric.name or record.metric.glob_name: record.metric
        for record in records(tmp_path)
        if record.HasField("metric")
    }
    assert metrics["*"].step_metric == "step"
    assert metrics["train/loss"].step_metric == "step" and metrics["train/loss"].summary.min


@pytest.mark.slow
def test_a_run_that_goes_back_and_goes_on_loses_no_point_and_keeps_its_id(tmp_path):
    back = LOG + "tracker.rewind(at(10))\nfor step in range(11, 16): tracker.log({'train/loss': 9.0}, at(step))\n"
    assert run(tmp_path, back, {"mode": "offline"})["lines"] == []
    assert [row["step"] for row in history(tmp_path)] == [*range(1, 21), *range(11, 16)]
    assert run(tmp_path, "tracker.log({'train/loss': 8.0}, at(16))\n", {"mode": "offline"})["lines"] == []
    runs = {record.run.run_id for record in records(tmp_path) if record.HasField("run")}
    assert runs == {"abcd1234"}
    assert 16 in [row["step"] for row in history(tmp_path)]


@pytest.mark.slow
def test_the_client_s_process_of_another_program_is_not_used(tmp_path):
    """A process that a parent has named may still hold the run of a child that was killed: its id is in use there."""
    assert run(tmp_path, LOG, {"mode": "offline"}, WANDB_SERVICE="3-1-unix-/nowhere")["lines"] == []
    assert [row["step"] for row in history(tmp_path)] == list(range(1, 21))


@pytest.mark.slow
def test_a_fork_does_not_use_the_client_s_process_of_its_parent(tmp_path):
    """That process outlives a fork that was killed, and holds its id."""
    forks = """
import os, signal, wandb
wandb.setup(wandb.Settings(silent=True))
if first := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == -signal.SIGKILL
    if second := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(second, 0)[1]))
"""
    dies = """
if not first:
    wait_for(lambda: list(directory.glob("wandb/*run-*/*.wandb")))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(tmp_path, LOG + dies, {"mode": "offline"}, before=forks)["lines"] == []
    assert {record.run.run_id for record in records(tmp_path) if record.HasField("run")} == {"abcd1234"}
    assert [row["step"] for row in history(tmp_path)][-20:] == list(range(1, 21))


@pytest.mark.slow
def test_pictures_videos_files_and_errors_are_kept(tmp_path):
    pytest.importorskip("PIL.Image").new("RGB", (6, 4)).save(tmp_path / "a.png")
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "film.mp4").write_bytes(b"not decoded by anybody here")
    shown = """
tracker.log_images({"picture": directory / "a.png", "film": directory / "film.mp4"}, at(1))
tracker.log_file(directory / "notes.txt", at(1))
tracker.log_error("bad luck", at(1))
"""
    assert run(tmp_path, shown, {"mode": "offline"})["lines"] == []
    (tmp_path / "film.mp4").unlink()
    (tmp_path / "notes.txt").unlink()
    shown, error = history(tmp_path)
    assert shown["picture._type"] == "image-file" and shown["film._type"] == "video-file" and shown["step"] == 1
    assert error["error"] == "bad luck" and error["step"] == 1
    [files] = tmp_path.glob("wandb/offline-run-*/files")
    assert (files / "notes.txt").read_text() == "hello"
    kept = [path.suffix for path in files.rglob("media/**/*") if path.is_file()]
    assert sorted(kept) == [".mp4", ".png"]


@pytest.fixture
def server():
    one = WandbServer()
    yield one
    one.close()


@pytest.mark.slow
def test_online_every_point_arrives_also_those_of_a_run_that_goes_on(tmp_path, server):
    (tmp_path / "notes.txt").write_text("hello")
    online = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}
    shown = LOG + f"tracker.log_file(Path({str(tmp_path / 'notes.txt')!r}), at(20))\n"
    assert run(tmp_path, shown, {"mode": "online", "project": "toys"}, **online)["lines"] == []
    first = server.history["abcd1234"]
    assert [row["step"] for _, row in sorted(first.items())] == list(range(1, 21))
    assert "notes.txt" in server.files
    again = "tracker.rewind(at(15))\nfor step in range(16, 26): tracker.log({'train/loss': 9.0}, at(step))\n"
    assert run(tmp_path, again, {"mode": "online", "project": "toys"}, **online)["lines"] == []
    assert list(server.history) == ["abcd1234"]
    rows = [row["step"] for _, row in sorted(server.history["abcd1234"].items())]
    assert rows == [*range(1, 21), *range(16, 26)]


@pytest.mark.slow
def test_a_server_that_breaks_in_mid_run_is_waited_for_no_longer_than_agreed(tmp_path, server):
    source = """
wait_for(lambda: list(directory.glob("wandb/run-*/*.wandb")))
tracker.log({"train/loss": 0.5}, at(1))
time.sleep(1)
print("BREAK", flush=True)
sys.stdin.readline()
for step in range(2, 30):
    tracker.log({"train/loss": 0.5}, at(step))
"""
    online = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}

    def break_it():
        server.is_broken = True

    record = {"patience_s": 20.0}
    found = run(tmp_path, source, {"mode": "online"}, record, on_break=break_it, **online)
    assert found["wall"] < 100 and len(read_rows(tmp_path)) == 29  # the client itself would go on for hours
    assert [row["step"] for row in history(tmp_path)] == list(range(1, 30))  # kept here, for `wandb sync`


@pytest.mark.slow
@pytest.mark.promise("F1")
def test_a_server_that_is_not_there_delays_nothing_and_the_points_are_kept_offline(tmp_path):
    before = """
import threading, wandb
init, has_logged = wandb.init, threading.Event()
def after_logging(**arguments):
    assert has_logged.wait(100), "a call that logs waits for the server"
    return init(**arguments)
wandb.init = after_logging
"""
    found = run(
        tmp_path,
        LOG + "has_logged.set()\nwait_for(lambda: list(directory.glob('wandb/offline-run-*')))\n",
        {"mode": "online", "init_timeout_s": 1},
        before=before,
        WANDB_API_KEY=KEY,
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    [event] = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert event["event"] == "error" and told(event["message"], "'wandb'", "start")
    assert "wandb sync" in event["message"]
    assert len(read_rows(tmp_path)) == 20 and found["lines"] == [event["message"]]
    offline = [row["step"] for row in history(tmp_path) if "train/loss" in row]
    assert offline == list(range(1, 21))
    assert "Traceback" not in found["stderr"]


def test_a_mode_that_wandb_does_not_know_is_said_and_nothing_is_written_offline(tmp_path):
    found = run(tmp_path, LOG, {}, WANDB_MODE="bogus")
    lines = "\n".join(found["lines"])
    assert "bogus" in lines and "writes offline" not in lines and not list(tmp_path.glob("wandb/offline-run-*"))


@pytest.mark.slow
def test_a_run_that_ends_while_the_server_is_still_looked_for_ends_at_once(tmp_path):
    found = run(
        tmp_path,
        LOG + "wait_for(service)\n",
        {"mode": "online", "init_timeout_s": 100},
        {"patience_s": 0.2},
        WANDB_API_KEY=KEY,
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    [line] = found["lines"]
    assert told(line, "21 calls", "abandoned")
    assert found["wall"] < 60  # the client itself would look for its server for 100 seconds
    assert left_behind(tmp_path) == []
    assert len(read_rows(tmp_path)) == 20


@pytest.mark.slow
def test_without_a_key_the_run_is_offline_and_says_so(tmp_path):
    found = run(tmp_path, LOG + "wait_for(lambda: list(directory.glob('wandb/offline-run-*')))\n", {})
    assert told((tmp_path / EVENTS).read_text(), "'wandb'", "offline", "`wandb sync`")
    assert [row["step"] for row in history(tmp_path)][:20] == list(range(1, 21)), found


@pytest.mark.promise("F1")
@pytest.mark.slow
@pytest.mark.parametrize(("number", "patience_s"), [("SIGKILL", 30.0), ("SIGSTOP", 2.0)])
def test_the_client_s_process_killed_or_hung_in_mid_run_harms_nobody(tmp_path, number, patience_s):
    source = f"""
import signal
wait_for(lambda: list(directory.glob("wandb/offline-run-*/*.wandb")))
tracker.log({{"train/loss": 0.5}}, at(1))
for pid in service():
    os.kill(pid, signal.{number})
for step in range(2, 30):
    tracker.log({{"train/loss": 0.5}}, at(step))
"""
    found = run(tmp_path, source, {"mode": "offline"}, {"patience_s": patience_s, "retry_s": 0.1})
    assert [row["step"] for row in read_rows(tmp_path)] == list(range(1, 30))
    assert len(found["lines"]) == 1 and found["lines"][0].startswith("logger 'wandb'")
    assert found["wall"] < 60
    if number == "SIGKILL":  # a new process goes on under the same id
        assert 29 in [row["step"] for row in history(tmp_path)]
        assert {record.run.run_id for record in records(tmp_path) if record.HasField("run")} == {"abcd1234"}
    assert left_behind(tmp_path) == []


@pytest.mark.promise("K6")
@pytest.mark.slow
def test_the_key_is_in_no_byte_that_is_written_or_printed(tmp_path):
    found = run(
        tmp_path,
        LOG + "wait_for(lambda: list(directory.glob('wandb/offline-run-*/*.wandb')))\n",
        {"mode": "online", "init_timeout_s": 1},
        WANDB_API_KEY=KEY,
        WANDB_BASE_URL="http://127.0.0.1:9",
    )
    assert KEY not in found["stdout"] + found["stderr"]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes(), path


class Client:
    """Notes what it is started with."""

    def __init__(self, monkeypatch):
        import wandb

        self.started = {}
        monkeypatch.setattr(wandb, "init", lambda **arguments: self.started.update(arguments) or self)

    def define_metric(self, *arguments, **keywords):
        pass


def test_every_knob_reaches_the_client(tmp_path, monkeypatch):
    from dp_prior.tracking.logger import RunFacts

    client = Client(monkeypatch)
    config = WandbConfig(project="p", entity="e", mode="offline", group="g", tags=("t",), init_timeout_s=7.0)
    logger = config.create()
    assert isinstance(logger, WandbLogger)
    logger.begin(RunFacts(tmp_path, RunIdentity("i", "n"), {"a": 1}, 10.0, print))
    found = {name: client.started[name] for name in ("project", "entity", "mode", "group", "tags", "id", "name", "dir")}
    assert found == {
        "project": "p",
        "entity": "e",
        "mode": "offline",
        "group": "g",
        "tags": ["t"],
        "id": "i",
        "name": "n",
        "dir": str(tmp_path),
    }
    settings = client.started["settings"]
    assert settings.init_timeout == 7.0 and settings.finish_timeout == 7.0 and settings.console == "off"
    assert client.started["resume"] == "allow" and client.started["config"] == {"a": 1}


@pytest.mark.parametrize(
    ("variable", "config", "expected"),
    [(None, {}, "dp_prior"), ("theirs", {}, "theirs"), ("theirs", {"project": "mine"}, "mine")],
)
def test_the_variable_names_the_project_where_the_configuration_does_not(
    tmp_path, monkeypatch, variable, config, expected
):
    import wandb

    from dp_prior.tracking.logger import RunFacts

    client = Client(monkeypatch)
    monkeypatch.setattr(wandb, "setup", lambda: SimpleNamespace(settings=wandb.Settings(project=variable)))
    WandbConfig(**config).create().begin(RunFacts(tmp_path, RunIdentity("i", "n"), {}, 10.0, print))
    assert client.started["project"] == expected


def test_no_field_takes_a_key():
    assert not [name for name in WandbConfig.model_fields if re.search("key|token|secret|password", name)]
    assert TrackerConfig.from_json('{"log": [{"type": "wandb"}]}').log[0] == WandbConfig()


def test_a_missing_key_is_a_problem_of_the_check_unless_nothing_is_sent(tmp_path, monkeypatch):
    import wandb

    problem = ("WANDB_API_KEY", "wandb login", "offline")
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    for settings, config, is_told in (
        ({}, {}, True),
        ({"api_key": KEY}, {}, False),
        ({"mode": "offline"}, {}, False),
        ({"mode": "disabled"}, {}, False),
        ({}, {"mode": "offline"}, False),
        ({}, {"mode": "online"}, True),
    ):
        started = SimpleNamespace(settings=wandb.Settings(**settings))
        monkeypatch.setattr(wandb, "setup", lambda started=started: started)
        lines = WandbConfig(**config).check_account()
        assert bool(lines) == is_told and all(line.startswith(PROBLEM) and told(line, *problem) for line in lines)
    netrc.write_text(f"machine {wandb.Settings().base_url.split('://')[1]}\n  login user\n  password {KEY}\n")
    netrc.chmod(0o600)
    monkeypatch.setattr(wandb, "setup", lambda: SimpleNamespace(settings=wandb.Settings()))
    assert WandbConfig().check_account() == []
    tracker = TrackerConfig.from_json(json.dumps({"data_path": str(tmp_path), "log": [{"type": "wandb"}]}))
    assert tracker.check() == []
    netrc.unlink()
    (line,) = tracker.check()
    assert line.startswith(PROBLEM)
    monkeypatch.undo()
    monkeypatch.setenv("WANDB_MODE", "bogus")
    wandb.teardown()
    (line,) = tracker.check()
    assert line.startswith(PROBLEM) and told(line, "mode", "'bogus'", "'offline'")
