"""The process of a simulator that runs in another Python: its start, its calls, and its end."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dp_prior.config import ConfigError
from dp_prior.envs.workers import WorkerError
from dp_prior_worlds.apart import child

LIMIT_S = 300.0
"""Seconds for an answer; the import of a simulator from a cold disk takes a minute."""

LEFT_OUT = ("PYTHONPATH", "PYTHONHOME")
"""Variables that are not handed to the other Python, since they lead to packages of this one."""

_TAIL_LINES = 40
"""Enough for the traceback of a call that hangs within a simulator, whose newest lines come first."""

_VERSIONS = """
import importlib.metadata as metadata, json, sys
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print("\\n" + json.dumps(versions))
"""


class SimulatorError(WorkerError):
    """A simulator in its own process raised an error, hung, or died.

    Attributes:
        refusal: the text of a ValueError of the simulator; empty for other errors.
    """

    refusal: str = ""


class SimulatorProcess:
    """A simulator in its own process.

    Attributes:
        description: what the simulator's `describe` tells.
    """

    def __init__(self, python: str, program: Path, settings: Mapping[str, Any], advice: str, limit_s: float = LIMIT_S):
        """
        Args:
            python: path of the interpreter, or of a program that starts it with its arguments.
            program: a file that defines `create(settings)`, which returns the simulator.
            settings: JSON.
            advice: how to make an environment with the simulator.
            limit_s: seconds for an answer.

        Raises:
            ConfigError: the interpreter cannot be started, or lacks a package.
            ValueError: the simulator refuses the settings.
            SimulatorError: the simulator raised another error, hung, or died.
        """
        self._python, self._limit_s, self._advice, self._is_late = python, limit_s, advice, False
        self._connection, child_end = socket.socketpair()
        _PROCESSES.add(self)
        self._tail: collections.deque[bytes] = collections.deque(maxlen=_TAIL_LINES)
        with child_end:
            try:
                self._process = subprocess.Popen(
                    [python, str(Path(child.__file__).resolve()), str(child_end.fileno())],
                    pass_fds=[child_end.fileno()],
                    env=environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # only the parent receives Ctrl-C
                )
            except OSError as error:
                self._connection.close()
                raise self._unusable(f"cannot be started: {error.strerror or error}") from None
        self._reader = threading.Thread(target=self._keep_tail, daemon=True)
        self._reader.start()
        try:
            self.description = self._opened({"program": str(program.resolve()), "settings": dict(settings)})
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **arguments: Any) -> Any:
        """Call a method of the simulator. After an error of the process, or an interrupt, the process has ended.

        Raises:
            SimulatorError: the simulator raised an error, hung, or died.
        """
        answer = self._answer(method, arguments)
        if "result" in answer:
            return answer["result"]
        raise self._failed(method, answer)

    def close(self) -> None:
        """Hang up, upon which the process closes the simulator and ends; kill the process if it does not."""
        with contextlib.suppress(OSError):  # hung up already
            self._connection.shutdown(socket.SHUT_RDWR)  # also for a process that another program forked from this one
        self._connection.close()
        self._wait()

    def _opened(self, arguments: dict[str, Any]) -> Any:
        """Load the simulator; returns its description."""
        try:
            answer = self._answer("open", arguments)
        except SimulatorError as error:
            if self._process.returncode > 0 and not self._is_late:  # an interpreter that cannot run the program at all
                raise self._unusable(str(error)) from None
            raise
        if "result" in answer:
            return answer["result"]
        if answer["missing"] is not None:
            raise self._unusable(f"cannot import {answer['missing']!r} ({answer['error']})")
        if answer["is_refusal"]:
            raise ValueError(answer["error"].partition(": ")[2])
        raise self._failed("create", answer)

    def _answer(self, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
        request = {"method": method, "arguments": arguments, "limit_s": self._limit_s}
        begin, self._is_late = time.monotonic(), False
        try:
            child.send(self._connection, request)
            self._await_answer(begin)
            return child.receive(self._connection)
        except (EOFError, ConnectionError):
            raise self._ended(method) from None
        except OSError as error:  # of a connection that was closed after an earlier error
            raise SimulatorError(f"the simulator of {self._python} has ended, so {method!r} fails: {error}") from None
        except TypeError:  # of arguments that are no message, so nothing was sent
            raise
        except BaseException:  # such as Ctrl-C: the next call must not be given the answer to this one
            self.close()
            raise

    def _await_answer(self, begin: float) -> None:
        """Wait for an answer; the process ends itself after the limit, and is killed if it does not.

        Args:
            begin: when the call began, on the monotonic clock.
        """
        answered = select.poll()
        answered.register(self._connection, select.POLLIN)
        while not answered.poll(1000):
            if time.monotonic() > begin + self._limit_s + child.GRACE_S:
                self._is_late = True
                self._process.kill()
                raise EOFError
        self._is_late = time.monotonic() >= begin + self._limit_s

    def _ended(self, method: str) -> SimulatorError:
        """The error of a process that ended in a call."""
        self._connection.close()
        self._wait()
        code = self._process.returncode
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        text = self._printed()
        if self._is_late:
            end = f"gave no answer within {self._limit_s:g} s, and was ended"
        finding = f"the simulator's process of {self._python} {end} in {method!r}"
        return SimulatorError(f"{finding}; it printed last:\n{text}" if text else f"{finding}, and printed nothing")

    def _failed(self, method: str, answer: Mapping[str, Any]) -> SimulatorError:
        error = SimulatorError(f"the simulator of {self._python} failed in {method!r}: {answer['error']}")
        error.refusal = answer["error"].partition(": ")[2] if answer["is_refusal"] else ""
        error.add_note(f"in its process:\n{answer['trace']}")
        return error

    def _unusable(self, finding: str) -> ConfigError:
        return ConfigError(f"the Python {self._python}", [finding], advice=self._advice)

    def _wait(self) -> None:
        try:
            self._process.wait(child.GRACE_S + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(child.GRACE_S)

    def _keep_tail(self) -> None:
        """Keep the last lines that the process prints."""
        with self._process.stdout as stream:
            for line in iter(functools.partial(stream.readline, 1000), b""):
                self._tail.append(line)

    def _printed(self) -> str:
        return b"".join(self._tail).decode("utf-8", "replace").strip()


_PROCESSES: weakref.WeakSet[SimulatorProcess] = weakref.WeakSet()


def _hang_up() -> None:
    """Close, in a forked process, the connections that belong to its parent, whose end would go unnoticed else."""
    for process in _PROCESSES:
        process._connection.close()


os.register_at_fork(after_in_child=_hang_up)


def environment() -> dict[str, str]:
    """The environment variables for another Python."""
    return {name: value for name, value in os.environ.items() if name not in LEFT_OUT}


@functools.cache
def versions_in(python: str, distributions: Sequence[str]) -> dict[str, str]:
    """Versions of the installed ones of some distributions in another Python; empty if the Python cannot be asked."""
    command = [python, "-c", _VERSIONS, *distributions]
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        answer = subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=60)
        return json.loads(answer.stdout.strip().rpartition(b"\n")[2])  # what a script prints comes before
    return {}
