"""Script and command: a signal during the imports ends them without a traceback, or is a request to stop."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny import write

ROOT = Path(__file__).parent.parent
PROGRAM = """
import builtins, runpy, sys, time
original, wanted = builtins.__import__, sys.argv.pop(1)
def watching(name, *arguments, **keywords):
    if name == wanted and wanted not in sys.modules:
        builtins.__import__ = original
        print(wanted, flush=True)
        time.sleep(1)
    return original(name, *arguments, **keywords)
builtins.__import__ = watching
if sys.argv[1] == "train":
    from dp_prior.__main__ import main
    main()
else:
    runpy.run_path("train_policy.py", run_name="__main__")
"""


BEGINNINGS = [("click", "killed"), ("torch", "stopped"), ("dp_prior.run.run", "stopped")]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("module", "codes"), BEGINNINGS)
@pytest.mark.parametrize("command", [[], ["train"]])
def test_signal_during_imports_leaves_no_traceback(command, module, codes, number, tmp_path):
    config = write(tmp_path, train__steps=2_000)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, module, *command, "--config_file", str(config)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == f"{module}\n"
    process.send_signal(number)
    output, errors = process.communicate(timeout=250)
    assert process.returncode == (-number if codes == "killed" else 75), errors
    assert "Traceback" not in errors
    assert ("stopped on" in output + errors) == (codes == "stopped")
