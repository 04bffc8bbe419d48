"""How the ranks of a launcher meet: within a limit, ended by a stop request, and with one line if they do not."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import torch.distributed as dist

from dp_prior.files.left_behind import left_behind
from dp_prior.job.launch_faults import apart
from dp_prior.job.stop import Stop, StoppedEarly

T = TypeVar("T")

ANSWER_S = 2.0
"""How long a rank that gives up waits for an answer of the address, to name what is wrong."""


class Meeting(NamedTuple):
    """Where ranks meet, and how long each waits there for the others.

    Attributes:
        variables: by which ranks find each other; empty texts for those that are not set.
        limit_s: of each wait. torch's own limits are longer, since torch then tries again and prints stacks.
        stop: a request ends the meeting.
    """

    variables: Mapping[str, str]
    limit_s: float
    stop: Stop

    def join(self, connect: Callable[[], T]) -> T:
        """Return the result of `connect`, which waits for all ranks; a stop request or the limit leaves it behind.

        Raises:
            ConfigError: the port is taken.
            RankLostError: the ranks did not meet.
            StoppedEarly: a stop was requested before they met.
        """
        try:
            return self._within(self.limit_s, connect)
        except TimeoutError as error:
            raise apart(f"after {self.limit_s:g} s {self._obstacle()}", self.variables) from error
        except RuntimeError as error:
            torch_message = " ".join(str(error).partition("Exception raised from")[0].split())
            raise apart(torch_message, self.variables) from error

    @contextlib.contextmanager
    def connecting(self) -> Iterator[None]:
        """Inside, `init_process_group`, which accelerate calls and which answers no signal, is called by `join`."""
        connect = dist.init_process_group
        dist.init_process_group = lambda *arguments, **options: self.join(lambda: connect(*arguments, **options))
        try:
            yield
        finally:
            dist.init_process_group = connect

    def _within(self, limit_s: float, work: Callable[[], T]) -> T:
        """The result of work that waits for another machine; raises TimeoutError after a limit."""
        end = time.monotonic() + limit_s

        def look() -> None:
            if self.stop.is_asked():
                raise StoppedEarly(self.stop.reason, int(self.variables["RANK"] or 0))
            if time.monotonic() > end:
                raise TimeoutError("no answer")

        return left_behind(work, look)

    def _obstacle(self) -> str:
        """Diagnose by a connection to the address why this rank does not reach the others."""
        address = self.variables["MASTER_ADDR"], int(self.variables["MASTER_PORT"])
        try:
            self._within(ANSWER_S, lambda: socket.create_connection(address, ANSWER_S).close())
        except OSError as error:
            return f"that address gives: {error.strerror or error}"
        return f"that address answers, but not all of the {self.variables['WORLD_SIZE']} ranks came there"
