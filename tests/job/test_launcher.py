"""A worker whose launcher is killed asks for a stop, and is killed itself when it does not follow."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORKER = """
import sys, time
from dp_prior.job.launcher import end_with_parent
from dp_prior.job.stop import Stop
stop = Stop()
with end_with_parent(stop, grace_s=1.0):
    print("ready", flush=True)
    while not stop.is_asked():
        time.sleep(0.05)
    print(stop.reason, flush=True)
    if sys.argv[1] == "deaf":
        time.sleep(60)
print("over", flush=True)
"""
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"


@pytest.mark.promise("C2")
@pytest.mark.parametrize(("kind", "said"), [("obedient", "launcher gone\nover\n"), ("deaf", "launcher gone\n")])
def test_worker_ends_when_its_launcher_is_killed(kind, said):
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, WORKER, kind],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert launcher.stdout.readline() == "ready\n"
        launcher.kill()
        began = time.monotonic()
        assert launcher.stdout.read() == said  # until the worker, which holds the other end, is gone
        assert time.monotonic() - began < 20
    finally:
        launcher.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(launcher.pid, signal.SIGKILL)
