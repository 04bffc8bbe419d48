"""Processes that play episodes end with what to do, and without a traceback."""

import os
import signal
import subprocess
import sys

import pytest

from dp_prior_worlds.expert_demonstrations import record
from dp_prior_worlds.recorders import interrupts_held
from tests.messages import naming


def test_ctrl_c_waits_for_the_end_of_a_start():
    pending = []
    with pytest.raises(KeyboardInterrupt), interrupts_held():
        signal.raise_signal(signal.SIGINT)
        pending.append(signal.SIGINT in signal.sigpending())
    assert pending == [True] and signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_recording_with_what_to_do(tmp_path):
    with pytest.raises(RuntimeError, match=naming("killed", "--workers", "repeat")):
        record(tmp_path / "d.npz", killed, 2, 0, 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_while_a_process_starts_shows_no_traceback(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal\n"
        "if __name__ == '__mp_main__':\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "else:\n"
        "    from dp_prior_worlds.expert_demonstrations import record\n"
        "    try:\n"
        "        record('d.npz', int, 1, 0, 1)\n"
        "    except RuntimeError:\n"
        "        print('ended')\n"
    )
    ended = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("ended\n", "")


def killed(seed):
    """As the kernel does when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
