"""A forked program is what a subprocess would be."""

import os
import signal
import subprocess
import sys

import pytest

from tests.forks import call

PROGRAM = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ.get("COLOUR"), __name__)
print("careful", file=sys.stderr)
{end}
"""


@pytest.mark.parametrize("end", ["pass", "sys.exit(75)", "os.kill(os.getpid(), 9)", "sys.stdout.flush(); os._exit(3)"])
def test_it_prints_and_ends_as_a_subprocess_does(tmp_path, end):
    command = ["-c", PROGRAM.format(end=f"sys.stdout.flush(); {end}"), "a b", str(tmp_path)]
    found = call(command, cwd=tmp_path, COLOUR="green")
    expected = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env={**os.environ, "COLOUR": "green"}, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout, found.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_an_error_is_a_traceback_and_the_code_1(tmp_path):
    (tmp_path / "broken.py").write_text("raise KeyError('here')")
    done = call([tmp_path / "broken.py"])
    assert done.returncode == 1 and "KeyError: 'here'" in done.stderr and "broken.py" in done.stderr


def test_libraries_are_there_but_the_hub_s_client_which_reads_its_address_at_its_import():
    program = (
        "import sys; print('torch' in sys.modules, 'huggingface_hub' in sys.modules)\n"
        "from huggingface_hub import constants; print(constants.ENDPOINT)"
    )
    assert call(["-c", program], HF_ENDPOINT="http://here").stdout == "True False\nhttp://here\n"


def test_ctrl_c_reaches_it_and_a_program_that_takes_too_long_is_killed():
    program = "import os, signal, sys; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert call(["-c", program]).stdout == "True\n"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        call(["-c", "import time; print('begun', flush=True); time.sleep(60)"], timeout=1)
    assert caught.value.output == "begun\n"
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
