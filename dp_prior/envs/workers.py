"""Workers: the rows of one VectorEnv in several processes, for environments whose steps cost more than messages.

A worker creates the same environment with fewer rows, so results equal a single process, bit for bit. Messages
are pickled arrays over a socket: sending a Push-T frame of 96 x 96 takes 0.1 ms of CPU time, the step itself 1.0 ms.

gymnasium's AsyncVectorEnv is not used, since AsyncVectorEnv starts a process per episode rather than per core, steps
finished episodes, always runs as many episodes as processes, and imports the main script again in each process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from dp_prior.config import ConfigError
from dp_prior.envs import EnvConfig
from dp_prior.envs.vector import EnvStep, VectorEnv, check_actions, check_seeds

WORKER_GRACE_S = 5.0
"""Seconds for an abandoned worker to close its environment; afterwards the worker is killed."""


class WorkerError(RuntimeError):
    """A worker raised an error, or died."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def is_divisible(record: EnvConfig) -> bool:
    """Whether workers can share the rows of an environment: its rows are stepped in turn, and a worker can import the
    record's module, unlike the main script."""
    return record.steps_in_turn and type(record).__module__ != "__main__"


class Workers:
    """See `VectorEnv`. After an error all workers are closed."""

    def __init__(self, record: EnvConfig, n_workers: int, waiting: Callable[[], object] = lambda: None):
        """
        Args:
            record: the environment.
            n_workers: number of processes, 1 to `record.n_envs`.
            waiting: called every second during the wait for an answer; an error of this call ends the wait, also for a
                simulator that hangs.

        Raises:
            WorkerError: a worker cannot make the environment.
        """
        self.n_envs = record.n_envs
        self.is_watched, self.n_filmed = True, 0
        self._waiting = waiting
        share = record.model_copy(update={"n_envs": -(-self.n_envs // n_workers)})
        self._workers: list[_Worker] = []
        with self._closed_on_error():
            for number in range(1, n_workers + 1):
                self._workers.append(_Worker(f"{number} of {n_workers}"))
            made = self._call("create", dict.fromkeys(range(n_workers), share.maker()))
        self.max_steps, self.fps, self.obs_shapes, self.action_dim = made[0]

    def reset(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """See `VectorEnv`."""
        check_seeds(seeds, self.n_envs)
        self._bounds = np.arange(len(self._workers) + 1) * len(seeds) // len(self._workers)
        parts = self._call("reset", self._watched([int(seed) for seed in seeds]))
        return _joined(list(parts.values()))

    def step(self, actions: np.ndarray) -> EnvStep:
        """See `VectorEnv`."""
        actions = check_actions(actions, self._bounds[-1], self.action_dim)
        steps = self._call("step", self._watched(actions)).values()
        obs, reward, done, info = zip(*steps, strict=True)
        if any("stage" in row for row in info):
            info = [{"stage": np.full(len(stage), ""), **row} for stage, row in zip(done, info, strict=True)]
        return EnvStep(_joined(obs), np.concatenate(reward), np.concatenate(done), _joined(info))

    def render(self, rows: Sequence[int]) -> np.ndarray:
        """See `VectorEnv`."""
        rows = np.asarray(rows)
        owner = np.searchsorted(self._bounds, rows, side="right") - 1
        shares = {worker: rows[owner == worker] - self._bounds[worker] for worker in np.unique(owner).tolist()}
        pictures = self._call("render", shares)
        order = np.argsort(np.argsort(owner, kind="stable"))
        return np.concatenate(list(pictures.values()))[order]

    def close(self) -> None:
        """See `VectorEnv`."""
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.join()

    def _watched(self, rows: Any) -> dict[int, Any]:
        """Each worker's share of the rows, for workers with a share, whether pictures are used afterwards, and the
        number of filmed rows in the share."""
        shares = {i: rows[self._bounds[i] : self._bounds[i + 1]] for i in range(len(self._workers))}
        filmed = np.clip(self.n_filmed - self._bounds, 0, None).tolist()
        return {i: (share, self.is_watched, filmed[i]) for i, share in shares.items() if len(share)}

    def _call(self, method: str, arguments: Mapping[int, Any]) -> dict[int, Any]:
        """Call a method of several workers at the same time; returns each worker's result."""
        with self._closed_on_error():
            for number, argument in arguments.items():
                self._workers[number].send(method, argument)
            return {number: self._workers[number].receive(self._waiting) for number in arguments}

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


_PROGRAM = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)  # the parent decides what they mean
sys.path[:] = {path!r}
from dp_prior.envs.workers import serve
serve({descriptor})
"""


class _Worker:
    """The parent's handle of a worker process."""

    def __init__(self, name: str):
        self._name = name
        self._pipe, worker_end = Pipe()
        program = _PROGRAM.format(path=sys.path, descriptor=worker_end.fileno())
        with worker_end:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[worker_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # greetings of packages
                start_new_session=True,  # only the parent receives Ctrl-C
            )

    def send(self, method: str, argument: Any) -> None:
        try:
            self._pipe.send((method, argument))
        except ConnectionError:
            raise self._ended() from None

    def receive(self, waiting: Callable[[], object]) -> Any:
        try:
            while not self._pipe.poll(1.0):
                waiting()
            is_answer, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise self._ended() from None
        if is_answer:
            return answer
        if isinstance(answer, ConfigError):
            raise answer
        problem, trace = answer
        error = WorkerError(f"environment worker {self._name} failed: {problem}")
        error.add_note(f"in the worker:\n{trace}")
        raise error

    def hang_up(self) -> None:
        """Close the connection; the worker then closes its environment and exits."""
        self._pipe.close()

    def join(self) -> None:
        """Wait until the process has ended."""
        try:
            self._process.wait(WORKER_GRACE_S + 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self) -> WorkerError:
        self.join()
        code = self._process.returncode
        end = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return WorkerError(f"environment worker {self._name} {end}; if memory ran out, lower the evaluator's workers")


def serve(descriptor: int) -> None:
    """Run a worker process: create an environment and call its methods, until the parent hangs up or dies.

    Args:
        descriptor: the socket to the parent.
    """
    threading.Thread(target=_end_with_parent, args=(descriptor,), daemon=True).start()
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError, ConnectionError):
        parent = stack.enter_context(Connection(descriptor))
        methods: dict[str, Callable[[Any], Any]] = {}

        def create(maker: Callable[[], VectorEnv]) -> tuple[Any, ...]:
            env = stack.enter_context(contextlib.closing(maker()))
            methods.update(reset=partial(_reset, env), step=partial(_step, env), render=env.render)
            return env.max_steps, env.fps, env.obs_shapes, env.action_dim

        methods["create"] = create
        while True:
            parent.send(_answer(parent.recv_bytes(), methods))


def _reset(env: VectorEnv, argument: tuple[list[int], bool, int]) -> dict[str, np.ndarray]:
    """Reset, with seeds, whether the pictures are used, and the number of filmed rows."""
    return env.reset(_watching(env, *argument))


def _step(env: VectorEnv, argument: tuple[np.ndarray, bool, int]) -> EnvStep:
    """Step, with actions, whether the pictures are used, and the number of filmed rows."""
    return env.step(_watching(env, *argument))


def _watching(env: VectorEnv, rows: Any, is_watched: bool, n_filmed: int) -> Any:
    """The rows, after the environment was told which pictures are used."""
    if hasattr(env, "n_filmed"):
        env.n_filmed, n_filmed = n_filmed, 0
    env.is_watched = is_watched or n_filmed > 0
    return rows


def _answer(message: bytes, methods: Mapping[str, Callable[[Any], Any]]) -> tuple[bool, Any]:
    """Answer a call: True and the result; False and the error of a configuration, or another error with its
    traceback."""
    try:
        name, argument = ForkingPickler.loads(message)
        return True, methods[name](argument)
    except ConfigError as error:
        return False, error
    except Exception as error:
        return False, (f"{type(error).__name__}: {error}", traceback.format_exc())


def _end_with_parent(descriptor: int) -> None:
    """Kill a worker that is still busy `WORKER_GRACE_S` after the parent closed the connection."""
    closed = select.poll()
    closed.register(descriptor, 0)  # waits only for the end of the connection
    closed.poll()
    time.sleep(WORKER_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _joined(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Concatenate the rows of several workers by key."""
    arrays = {}
    for key in parts[0]:
        arrays[key] = np.concatenate([part[key] for part in parts])
    return arrays
