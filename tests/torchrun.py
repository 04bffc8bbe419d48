"""torchrun whose ranks are forks of it, in sessions of their own, and not programs that import the libraries anew."""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys

from torch.distributed import run
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler


class Rank:
    """What torchrun asks of the process of a rank."""

    def __init__(self, command: tuple[str, ...], variables: dict[str, str]):
        self._process = multiprocessing.get_context("fork").Process(target=_run, args=(command, variables))
        self._process.start()
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout)


def _run(command: tuple[str, ...], variables: dict[str, str]) -> None:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):  # which torchrun handles
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [word for word in command[1:] if word != "-u"]  # python -u program arguments
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    SubprocessHandler._popen = lambda handler, command, variables: Rank(command, variables)
    run.main()
