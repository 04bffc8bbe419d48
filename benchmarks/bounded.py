"""Commands with a time limit that ends them together with all of their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from typing import IO, Any

GRACE_S = 20.0
"""Seconds for the processes of a command to end by themselves after SIGTERM."""


def run(
    command: Sequence[str], timeout_s: float, log: IO[str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, or stop it with everything that it started.

    Compilers and test runners start processes of their own, which outlive a killed parent and hold the pipe of its
    output open. Therefore all of them get the signals, and the output goes to files.

    Args:
        log: takes all output; None: the result has it.
        options: `cwd` and `env`, as for `subprocess.Popen`.

    Raises:
        subprocess.TimeoutExpired: the command was stopped; with its output.
    """
    with contextlib.ExitStack() as files:
        outputs = [log, log] if log else [files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2)]
        process = subprocess.Popen(command, stdout=outputs[0], stderr=outputs[1], process_group=0, **options)
        is_late = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            is_late = True
        finally:  # after an interruption of this process, too
            if process.returncode is None:
                _signal(process, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
            _signal(process, signal.SIGKILL)
            process.wait()
        texts = ["", ""] if log else [_text(output) for output in outputs]
    if is_late:
        raise subprocess.TimeoutExpired(command, timeout_s, *texts)
    return subprocess.CompletedProcess(command, process.returncode, *texts)


def _signal(process: subprocess.Popen[Any], number: signal.Signals) -> None:
    """Signal the process and what it started; nothing if all have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _text(output: IO[str]) -> str:
    output.seek(0)
    return output.read()
