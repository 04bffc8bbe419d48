"""Python programs that begin with the libraries imported, which costs most of them more than their work.

One server of each pytest process imports the libraries (`tests.preloaded`) and forks. A program whose start or imports
are what is tested is a plain subprocess instead.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parent.parent
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(["tests.preloaded"])


def call(
    command: Sequence[object], *, cwd: Path = ROOT, timeout: float = 280, **environment: str
) -> subprocess.CompletedProcess[str]:
    """The exit code and the output of a script, or of a program after `-c`, with its arguments; on one thread.

    Args:
        environment: variables besides those of this process. A library reads them when it is imported, so those of
            the preloaded libraries come too late.

    Raises:
        subprocess.TimeoutExpired: it was killed after `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, name) for name in ("output", "errors")]
        process = start(command, *logs, cwd=cwd, **environment)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(map(str, command)), timeout, *(log.read_text() for log in logs))
        return subprocess.CompletedProcess(command, process.exitcode, *(log.read_text() for log in logs))


def start(
    command: Sequence[object], output: Path, errors: Path, *, cwd: Path = ROOT, **environment: str
) -> BaseProcess:
    """Start such a program, which writes into two files, or one."""
    variables = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    process = _FORKING.Process(target=_run, args=(list(map(str, command)), output, errors, cwd, variables))
    process.start()
    return process


class Fork:
    """Such a program with the face of a `subprocess.Popen`."""

    def __init__(self, command: Sequence[object], output: Path, errors: Path, **environment: str):
        self._process = start(command, output, errors, **environment)
        self.pid, self.kill, self.poll = self._process.pid, self._process.kill, lambda: self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)
        return self._process.exitcode


def _run(command: list[str], output: Path, errors: Path, cwd: Path, environment: dict[str, str]) -> None:
    import torch  # preloaded; the controller of workers has no use for it

    if "HF_ENDPOINT" in environment:
        assert "huggingface_hub" not in sys.modules, "it reads the address of the Hub when it is imported"
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    for descriptor, log in ((1, output), (2, errors)):
        with log.open("a") as stream:
            os.dup2(stream.fileno(), descriptor)
    if command[0] == "-c":
        sys.argv = ["-c", *command[2:]]
        exec(compile(command[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
