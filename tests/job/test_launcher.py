"""A worker whose launcher ends asks for a stop, and is killed itself when it does not follow. A run in the background
outlives its shell."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dp_prior.job.launcher import lineage
from tests.cases import every
from tests.chaos import Launched
from tests.tiny import write

ROOT = Path(__file__).parent.parent.parent
WORKER = """
import os, sys, time
from dp_prior.job.launcher import end_with_launcher, end_with_parent, lineage
asked = []
def ask():
    print("asked", flush=True)
    asked.append(True)
kind, seconds = sys.argv[1], float(sys.argv[2])
if kind == "itself":
    os.environ["LOCAL_RANK"] = "0"
watch = end_with_parent(ask, 0.5, os.getppid()) if kind == "deaf" else end_with_launcher(ask, os.environ)
with watch:
    print(f"ready {len(lineage(os.environ))}", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end and (kind == "deaf" or not asked):
        time.sleep(0.05)
print("over", flush=True)
"""
LAUNCHER = """
import os, subprocess, sys
marks = dict(word.split("=") for word in sys.argv[2:] if "=" in word)
command = [word for word in sys.argv[2:] if "=" not in word]
sys.exit(subprocess.run(command, env=os.environ | marks).returncode)
"""
"""Starts the rest of its command line with the variables that stand before it."""


@pytest.fixture
def scripts(tmp_path) -> Path:
    """A folder with a worker, and with a launcher of a known and one of an unknown name."""
    for name, text in {"worker.py": WORKER, "accelerate": LAUNCHER, "other.py": LAUNCHER}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@contextlib.contextmanager
def started(*command: object, **environment: str) -> Iterator[subprocess.Popen]:
    """A program whose output is a pipe; afterwards none of its processes is left."""
    process = subprocess.Popen(
        [*map(str, command)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # a suite under nohup would hand on its own
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)


def launched(scripts: Path, *worker: str, name: str = "accelerate") -> list[object]:
    """The command of a launcher that starts a worker as `accelerate launch` does for one process."""
    marks = "ACCELERATE_MIXED_PRECISION=no"
    return [sys.executable, scripts / name, "launch", marks, sys.executable, scripts / "worker.py", *worker]


@pytest.mark.promise("C2")
@every(name=("accelerate", "other.py"), number=(signal.SIGTERM, signal.SIGKILL))
def test_worker_ends_when_its_launcher_is_killed(name, number, scripts):
    with started(*launched(scripts, "obedient", "1000", name=name)) as launcher:
        assert launcher.stdout.readline() == "ready 1\n"
        launcher.send_signal(number)
        assert launcher.stdout.read() == "asked\nover\n"  # until the worker, which holds the other end, is gone


@pytest.mark.promise("C2")
def test_worker_that_does_not_follow_is_killed(scripts):
    with started(*launched(scripts, "deaf", "1000")) as launcher:
        launcher.stdout.readline()
        launcher.kill()
        assert launcher.stdout.read() == "asked\n"


def test_launcher_of_a_known_name_is_one_although_the_user_exports_its_variable(scripts):
    with started(*launched(scripts, "obedient", "0"), ACCELERATE_MIXED_PRECISION="no") as launcher:
        assert launcher.stdout.readline() == "ready 1\n"


def test_worker_ends_with_a_launcher_beyond_a_script_of_the_shell(scripts):
    (scripts / "wrapper.sh").write_text('"$@"\ntrue\n')  # not the last command, which takes the place of the shell
    command = launched(scripts, "obedient", "1000")
    with started(*command[:4], "bash", scripts / "wrapper.sh", *command[4:]) as launcher:
        assert launcher.stdout.readline() == "ready 2\n"
        launcher.kill()
        assert launcher.stdout.read() == "asked\nover\n"


WAYS = (
    'export LOCAL_RANK=0 ACCELERATE_MIXED_PRECISION=no; nohup "$@" & wait',
    'LOCAL_RANK=0 nohup "$@" & wait',
    'export ACCELERATE_MIXED_PRECISION=no; setsid "$@" & wait',
    '(ACCELERATE_MIXED_PRECISION=no "$@" &); sleep 1000',
    '"$@" & wait',
)
"""Of starting a program in the background, some with the variables of a launcher."""


def test_worker_of_a_shell_outlives_it(scripts):
    worker = [sys.executable, scripts / "worker.py", "obedient", "1.5"]
    with contextlib.ExitStack() as ends:
        shells = [ends.enter_context(started("bash", "-c", way, "bash", *worker)) for way in WAYS]
        ready = [shell.stdout.readline() for shell in shells]
        assert dict(zip(WAYS, ready, strict=True)) == dict.fromkeys(WAYS, "ready 0\n")
        for shell in shells:
            shell.kill()
        rest = [shell.stdout.read() for shell in shells]
        assert dict(zip(WAYS, rest, strict=True)) == dict.fromkeys(WAYS, "over\n")


@every(name=("accelerate", "other.py"), way=("setsid", "nohup"))
def test_worker_that_was_detached_outlives_the_launcher(name, way, scripts):
    command = launched(scripts, "obedient", "1.5", name=name)
    (scripts / "wrapper.sh").write_text('"$@" & wait')
    with started(*command[:4], "bash", scripts / "wrapper.sh", way, *command[4:]) as launcher:
        assert launcher.stdout.readline() == "ready 0\n"
        launcher.kill()
        assert launcher.stdout.read() == "over\n"


def test_worker_ends_with_a_launcher_that_was_detached_itself(scripts):
    with started("nohup", "setsid", "--wait", *launched(scripts, "obedient", "1000")) as shell:
        assert shell.stdout.readline() == "ready 1\n"
        os.kill(psutil.Process(shell.pid).children()[0].pid, signal.SIGKILL)
        assert shell.stdout.read() == "asked\nover\n"


def test_program_that_sets_a_variable_of_launchers_itself_outlives_its_parent(scripts):
    worker = [sys.executable, scripts / "worker.py", "itself", "1.5"]
    with started(sys.executable, scripts / "other.py", "launch", *worker) as parent:
        assert parent.stdout.readline() == "ready 0\n"
        parent.kill()
        assert parent.stdout.read() == "over\n"


def test_process_without_a_variable_of_launchers_has_no_launcher():
    assert lineage({}) == [] == lineage({"RANK": "0", "ACCELERATE_USE_CPU": "true"})


def test_program_that_has_the_name_of_a_launcher_among_its_arguments_is_none(scripts):
    script = 'export ACCELERATE_MIXED_PRECISION=no; "$@" & wait'
    with started("bash", "-c", script, "accelerate", sys.executable, scripts / "worker.py", "obedient", "0") as shell:
        assert shell.stdout.readline() == "ready 0\n"


# Real launchers and runs ----------------------------------------------------------------------------------------------

LONG = {"data__batch_size": 4, "train__steps": 100_000, "train__log_every": {"steps": 5}, "evaluate": []}
SLOW = {"at": "step", "do": "slow", "seconds": 0.05}
ACCELERATE = (sys.executable, "-m", "accelerate.commands.launch", "--no_python")
ALONE = (*ACCELERATE, "--num_processes", "1")
TWO = (*ACCELERATE, "--multi_gpu", "--num_processes", "2")


def assert_saved(run: Launched, reason: str) -> None:
    """The run ended for a reason with its last step saved."""
    told = run.exit()
    assert (told["reason"], told["code"], told["stopped_by"]) == ("preempted", 75, reason)
    assert told["progress"]["global_step"] == told["durable"]["global_step"] > 0


@pytest.mark.slow
@pytest.mark.promise("C2")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("before", [ALONE, TWO], ids=["one", "two"])
def test_run_ends_with_accelerate_launch_and_is_saved(before, number, tmp_path):
    with Launched(tmp_path, write(tmp_path, **LONG), SLOW, ranks=0, programs=True, before=before) as run:
        run.wait_for()
        os.kill(run.process.pid, number)
        run.wait_until_gone()
        is_passed_on = before is TWO and number == signal.SIGTERM  # by torch's launcher
        assert_saved(run, "SIGTERM" if is_passed_on else "launcher gone")


@pytest.mark.slow
@pytest.mark.promise("C2")
@pytest.mark.parametrize("options", [(), ("--foreground",)], ids=["group", "child"])
def test_run_ends_with_timeout_around_its_launcher_and_is_saved(options, tmp_path):
    """By default `timeout` passes a signal on to its whole group, run included; in the foreground to the launcher."""
    before = ("timeout", *options, "1000", *ALONE)
    with Launched(tmp_path, write(tmp_path, **LONG), SLOW, ranks=0, programs=True, before=before) as run:
        run.wait_for()
        os.kill(run.process.pid, signal.SIGTERM)
        run.wait_until_gone()
        assert_saved(run, "launcher gone" if options else "SIGTERM")


@pytest.mark.slow
@pytest.mark.parametrize(
    "before",
    [
        ("bash", "-c", 'export ACCELERATE_MIXED_PRECISION=no; nohup "$@" & wait', "bash"),
        ("bash", "-c", 'nohup "$@" & wait', "bash", *ALONE),
        ("bash", "-c", 'setsid "$@" & wait', "bash", *ALONE),
    ],
    ids=["nohup python", "nohup accelerate", "setsid accelerate"],
)
def test_run_in_the_background_goes_on_when_its_shell_ends(before, tmp_path):
    config = write(tmp_path, **LONG | {"train__steps": 60})
    with Launched(tmp_path, config, SLOW, ranks=0, programs=True, before=before) as run:
        run.wait_for()
        run.process.kill()
        run.wait(60)
        run.wait_until_gone()
        assert (run.exit()["reason"], run.exit()["progress"]["global_step"]) == ("finished", 60)


@pytest.mark.slow
@pytest.mark.promise("C2")
def test_command_that_does_not_train_ends_with_its_launcher(trained_policy, scripts):
    """As it does on SIGTERM."""
    (scripts / "command.py").write_text(
        "import time\nfrom dp_prior.cli import main\nfrom dp_prior.evaluation.loss import LossEvaluator\n"
        "LossEvaluator.run = lambda *arguments: (print('ready', flush=True), time.sleep(1000))\nmain()"
    )
    command = [sys.executable, scripts / "command.py", "evaluate", trained_policy]
    with started(
        sys.executable, scripts / "accelerate", "launch", "ACCELERATE_MIXED_PRECISION=no", *command
    ) as launcher:
        assert launcher.stdout.readline() == "ready\n"
        launcher.kill()
        assert launcher.stdout.read() == ""  # it is gone
