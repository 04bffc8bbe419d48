"""A simulator in another Python answers, fails by name, and never outlives its parent."""

import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from dp_prior.config import ConfigError
from dp_prior_worlds.apart import child
from dp_prior_worlds.apart.process import SimulatorError, versions_in
from tests.messages import naming
from tests.plugins.dp_prior_worlds.apart.programs import opened, program


def wait_for_end(pid, seconds=30.0):
    """Fails unless the process ends in time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with open(process, "rb", buffering=0):
        assert select.select([process], [], [], seconds)[0], f"process {pid} lives on"


@pytest.fixture(scope="module")
def counter(tmp_path_factory):
    process = opened(tmp_path_factory.mktemp("counter"), first=5)
    yield process
    process.close()


def test_calls_are_answered_in_turn_whatever_the_simulator_prints(counter):
    assert counter.description["first"] == 5
    first = counter.call("add", number=2)
    assert counter.call("greet", lines=3000) == 3000  # more than a pipe holds
    assert counter.call("add", number=0.5) == first + 0.5


def test_a_call_that_fails_is_named_and_the_next_is_answered(counter):
    with pytest.raises(SimulatorError, match=naming(sys.executable, "stumble", "RuntimeError", "stuck")) as raised:
        counter.call("stumble")
    assert "counter_program.py" in raised.value.__notes__[0]
    for method, parts in {"give": ("TypeError", "object"), "no_such": ("AttributeError", "no_such")}.items():
        with pytest.raises(SimulatorError, match=naming(method, *parts)):
            counter.call(method)
    assert counter.call("add", number=0) >= 5


def test_after_an_interrupted_call_no_other_call_gets_its_answer(tmp_path, monkeypatch):
    process = opened(tmp_path, first=5)

    def interrupted(begin):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(process, "_await_answer", interrupted)
        process.call("add", number=1)
    with pytest.raises(SimulatorError, match=naming("greet", sys.executable)):
        process.call("greet", lines=1)
    wait_for_end(process._process.pid)


def test_the_other_python_finds_no_package_of_this_one(counter, monkeypatch):
    assert not {"PYTHONPATH", "PYTHONHOME"} & {*counter.description["variables"]}
    assert "PATH" in counter.description["variables"]
    assert not any(path.endswith("dp_prior_worlds/apart") for path in counter.description["path"])


@pytest.mark.parametrize(
    ("method", "arguments", "parts"),
    [
        ("die", {"code": 3}, ("exit code 3", "'die'", "memory")),
        ("kill", {}, ("SIGKILL", "'kill'")),
        ("hang", {}, ("1 s", "'hang'", "in hang")),  # with the place where it hangs
        ("hang", {"depth": 40}, ("1 s", "'hang'", "in hang")),  # whose traceback is longer than what is kept
        ("spin", {}, ("1 s", "'spin'", "in spin")),
    ],
)
def test_a_process_that_dies_or_hangs_is_named_and_ends(tmp_path, method, arguments, parts):
    process = opened(tmp_path, limit_s=1.0 if parts[0] == "1 s" else 60.0)
    with pytest.raises(SimulatorError, match=naming(sys.executable, *parts)):
        process.call(method, **arguments)
    wait_for_end(process.description["pid"], 0)
    with pytest.raises(SimulatorError, match=naming("add")):
        process.call("add", number=1)
    process.close()
    process.close()


def test_a_python_that_cannot_run_the_simulator_is_named_with_what_is_missing(tmp_path):
    def script(name, text):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    remedies = ('"counter[fast]"',)
    cases = [
        (str(tmp_path / "nothing"), None, ("nothing", os.strerror(2))),
        (str(tmp_path), None, (tmp_path.name, os.strerror(13))),
        (script("old", "echo SyntaxError: invalid syntax >&2; exit 1"), None, ("exit code 1", "SyntaxError")),
        (script("wrapper", "exit 127"), None, ("exit code 127",)),
        (sys.executable, "import no_such_simulator", ("'no_such_simulator'", sys.executable)),
        (sys.executable, "from os import no_such_name", ("no_such_name",)),
    ]
    for python, text, parts in cases:
        with pytest.raises(ConfigError, match=naming(*parts, *remedies)):
            opened(tmp_path, *([text] if text else []), python=python)


def test_an_opening_that_hangs_deep_in_the_simulator_is_late_and_blames_no_python(tmp_path):
    text = (
        "import time\ndef create(settings, depth=40):\n"
        "    return create(settings, depth - 1) if depth else time.sleep(60)"
    )
    with pytest.raises(SimulatorError, match=naming("within 1 s", "'open'")):
        opened(tmp_path, text, limit_s=1.0)


def test_a_simulator_that_prints_of_a_timeout_and_ends_is_not_late(tmp_path):
    text = "import os, sys\ndef create(settings):\n    print('Timeout (of a download)', flush=True)\n    os._exit(3)"
    with pytest.raises(ConfigError, match=naming("exit code 3", "Timeout")):
        opened(tmp_path, text)


def test_settings_that_the_simulator_refuses_are_the_users(tmp_path):
    with pytest.raises(ValueError, match=naming("-1", "from 0 on")) as raised:
        opened(tmp_path, first=-1)
    assert type(raised.value) is ValueError
    with pytest.raises(SimulatorError, match=naming("create", "ZeroDivisionError")):
        opened(tmp_path, "def create(settings):\n    return 1 / 0")


def test_no_process_is_left_by_an_opening_that_failed(tmp_path):
    note = tmp_path / "pid"
    text = f"import os\nopen({str(note)!r}, 'w').write(str(os.getpid()))\nimport no_such_simulator"
    with pytest.raises(ConfigError):
        opened(tmp_path, text)
    wait_for_end(int(note.read_text()), 0)


PARENT = """
from pathlib import Path
from tests.plugins.dp_prior_worlds.apart.programs import opened
process = opened(Path({folder!r}))
print(process.description["pid"], flush=True)
process.call({method!r})
"""


@pytest.mark.parametrize(
    ("number", "method"),
    [
        (signal.SIGKILL, "hang"),
        pytest.param(signal.SIGTERM, "hang", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "spin", marks=pytest.mark.slow),
    ],
)
def test_a_killed_parent_leaves_no_process(tmp_path, number, method):
    source = textwrap.dedent(PARENT).format(folder=str(tmp_path), method=method)
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        parent.send_signal(number)
        assert parent.wait() == -number
    wait_for_end(pid)


def test_versions_are_those_of_the_other_python(tmp_path):
    metadata = tmp_path / "packages/counter-1.2.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: counter\nVersion: 1.2\n")
    script = tmp_path / "script"
    greeting = "printf 'loaded: counter'"  # as scripts of module systems print, here without an end of the line
    script.write_text(f'#!/bin/sh\n{greeting}\nPYTHONPATH={tmp_path}/packages exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    names = ("counter", "no-such-distribution")
    assert versions_in(str(script), names) == {"counter": "1.2"}
    assert versions_in(sys.executable, names) == versions_in(str(tmp_path / "nothing"), names) == {}


def test_the_program_may_lie_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = program(tmp_path).relative_to(tmp_path)
    process = opened(path.parent)
    assert process.call("add", number=1) == 1
    process.close()


def test_a_forked_process_keeps_no_simulator_alive(tmp_path):
    source = textwrap.dedent(PARENT).format(folder=str(tmp_path), method="hang")
    fork = "import os, time\nif not os.fork():\n    os.close(1)\n    time.sleep(60)\n    os._exit(0)\n"
    source = source.replace("print(", f"{fork}print(")
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, start_new_session=True) as parent:
        pid = int(parent.stdout.readline())
        try:
            parent.kill()
            parent.wait()
            wait_for_end(pid)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)


def test_a_program_that_is_no_python_and_hangs_is_told_as_late(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "GRACE_S", 0.1)
    sleeper = tmp_path / "sleeper"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    with pytest.raises(SimulatorError, match=naming("sleeper", "within 0.1 s", "'open'")):
        opened(tmp_path, python=str(sleeper), limit_s=0.1)
