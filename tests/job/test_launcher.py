"""A worker whose launcher is killed asks for a stop, and is killed itself when it does not follow."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORKER = """
import sys, time
from dp_prior.job.launcher import end_with_parent
from dp_prior.job.stop import Stop
class Told(Stop):
    def ask(self, reason):
        print(reason, flush=True)
        super().ask(reason)
stop = Told()
with end_with_parent(stop, grace_s=float(sys.argv[1])):
    print("ready", flush=True)
    while sys.argv[1] == "1" or not stop.is_asked():
        time.sleep(0.05)
print("over", flush=True)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"


@pytest.mark.promise("C2")
@pytest.mark.parametrize(
    ("grace_s", "said"),
    [pytest.param("1000", "launcher gone\nover\n", marks=pytest.mark.slow), ("1", "launcher gone\n")],
)
def test_worker_ends_when_its_launcher_is_killed(grace_s, said):
    """With little grace it is one that does not follow."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, WORKER, grace_s],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert launcher.stdout.readline() == "ready\n"
        launcher.kill()
        assert launcher.stdout.read() == said  # until the worker, which holds the other end, is gone
    finally:
        launcher.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
