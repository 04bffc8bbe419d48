"""Runs that are made to suffer: two gloo ranks under torchrun, on loopback, of which nothing may be left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests import forks

ROOT = Path(__file__).parent.parent
LIMIT_S = 150.0


class Launched:
    """`tests/chaotic.py` on some ranks; use it in a `with`: afterwards none of its processes may be left."""

    def __init__(
        self,
        place: Path,
        config: Path,
        *events: dict[str, Any],
        ranks: int = 2,
        programs: bool = False,
        before: tuple[str, ...] = (),
        **environment: str,
    ):
        """
        Args:
            ranks: started by torchrun; 0 for one process without it.
            programs: all processes are programs of their own, instead of forks that have the libraries imported.
            before: words that come before the command of a program.
        """
        self.place, self.run = place, place / "run"
        self._log, self._mark = place / "output.txt", f"CHAOS_MARK={uuid.uuid4()}"
        launch = ["--standalone", "--nproc_per_node", str(ranks)]
        command = [str(ROOT / "tests/chaotic.py"), "--config_file", str(config)]
        variables = {
            "CHAOS": json.dumps(events),
            "CHAOS_DIRECTORY": str(place),
            "CHAOS_MARK": self._mark.partition("=")[2],
            "ACCELERATE_USE_CPU": "true",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self.process: forks.Fork | subprocess.Popen
        if programs:
            torchrun = ["-m", "torch.distributed.run", *launch] if ranks else []
            with self._log.open("a") as log:
                self.process = subprocess.Popen(
                    [*before, sys.executable, *torchrun, *command],
                    cwd=ROOT,
                    env=os.environ | variables,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        else:
            torchrun = [str(ROOT / "tests/torchrun.py"), *launch] if ranks else []
            self.process = forks.Fork([*torchrun, *command], self._log, self._log, **variables)

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        left = self.pids() if self.process.poll() is not None else []
        for pid in [self.process.pid, *self.pids()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        if error is not None:
            print(self.output()[-6000:])
        assert not left or error is not None, f"processes are left: {left}"

    def output(self) -> str:
        return (self.place / "output.txt").read_text(errors="replace")

    def pids(self) -> list[int]:
        """Living processes of this launch, wherever they are: known by their environment, a fork by its output."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = self._mark.encode() in (path / "environ").read_bytes().split(b"\0")
                is_ours = is_ours or os.readlink(path / "fd/1") == str(self._log)
                if is_ours and "\nState:\tZ" not in (path / "status").read_text():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def wait(self, limit_s: float = LIMIT_S) -> int:
        """Exit code of the launcher."""
        return self.process.wait(limit_s)

    def wait_for(self, what: str = "happened", limit_s: float = LIMIT_S) -> Path:
        """A file in the place of the run, once it is there."""
        end = time.monotonic() + limit_s
        while not (self.place / what).exists() or not (self.place / what).read_bytes():
            assert time.monotonic() < end, f"{what} did not come:\n{self.output()[-4000:]}"
            assert self.process.poll() is None, f"it ended before {what}:\n{self.output()[-4000:]}"
            time.sleep(0.05)
        return self.place / what

    def workers(self) -> dict[int, int]:
        """Process id by rank, of programs."""
        found = {}
        for pid in self.pids():
            words = dict(w.split(b"=", 1) for w in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in w)
            if b"RANK" in words:
                found[int(words[b"RANK"])] = pid
        return found

    def wait_until_gone(self, limit_s: float = LIMIT_S) -> None:
        """Wait until no process of this launch is left."""
        began = time.monotonic()
        while self.pids():
            assert time.monotonic() - began < limit_s, f"still there: {self.pids()}\n{self.output()[-4000:]}"
            time.sleep(0.1)

    def exit(self) -> dict[str, Any]:
        return json.loads((self.run / "exit.json").read_text())

    def stacks(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted((self.run / "stacks").glob("*"))}
