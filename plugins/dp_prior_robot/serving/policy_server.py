"""The policy server: websockets in an event loop, and a separate thread that predicts for one request at a time.

Each request gets one answer, in order: a binary frame with actions, or a text frame with the reason for a refusal in
one line. Of the requests that arrive during a prediction only the newest is predicted, since a robot has no use for
actions from old observations; earlier ones are answered as superseded.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Unpack

from dp_prior.config import ConfigError, errors_of
from dp_prior.files.entry_points import needing
from dp_prior.inference.chunking import MergeConfig, Policy
from dp_prior.inference.instructions import Instructions
from dp_prior.tensors.batch import Spec
from dp_prior_client.onboard.broker import AgentOptions
from dp_prior_client.onboard.tick_log import TickLog
from dp_prior_client.wire import OWN_FIELDS, pack
from dp_prior_robot.listener import authority
from dp_prior_robot.serving.inbox import Arrival, IdleError, Inbox
from dp_prior_robot.serving.renames import check_renames
from dp_prior_robot.serving.session import UNJUDGED, History, Session, blank, metadata
from dp_prior_robot.serving.telemetry import Telemetry

SEND_S = 10.0
"""Seconds after which a client that does not read its answer is disconnected."""

DRAIN_S = 30.0
"""Seconds after which a stop drops the requests whose prediction has not begun."""

HANGS_S = 60.0
"""Seconds of one prediction after which the server is no longer ready, so that a supervisor restarts the process; and
seconds after the drain for which a stop waits for the running prediction."""

MOST_UNREAD = 64 << 20
"""Bytes of answers waiting for a client at which the next frame from it ends the connection."""

ABNORMAL = 1006
"""Code of a connection that ended without a farewell."""

LARGEST_FRAME = 1920 * 1200 * 3
"""Bytes of the largest camera frame of a policy that resizes frames, in the default limit of a message."""

LARGEST_CLOUD = 1280 * 720
"""Points of the largest cloud there, which the policy thins."""

log = logging.getLogger(__name__)


class HangError(RuntimeError):
    """A prediction outlasts the stop. Its thread cannot be ended and holds up the end of the interpreter."""


@dataclass(frozen=True)
class ServerLimits:
    """Limits on the resources that clients may use."""

    connections: int = 16
    message_bytes: int = 1 << 20
    idle_s: float = 3600.0
    """Seconds without a request after which a connection is closed."""


def most_bytes(spec: Spec) -> int:
    """Default limit of a message: twice what the policy reads, in float64, full HD and whole clouds of a depth camera,
    and 1 MiB for other keys."""
    total = 0
    for key, shape in spec.cond_shapes.items():
        size = math.prod(shape)
        if key in spec.fits:
            size = shape[0] * LARGEST_FRAME // 3 * shape[-1]
        elif spec.kind(key) == "points":
            size = shape[0] * max(LARGEST_CLOUD, shape[1]) * shape[-1]
        total += size if spec.kind(key) == "image" else 8 * size
    return (1 << 20) + 2 * total


@dataclass(frozen=True)
class _SessionSettings:
    """The arguments of the session of every connection, see `Session`."""

    seed: int
    history: History
    merge: MergeConfig | None
    instructions: Instructions
    renames: Mapping[str, str] | None
    is_open: bool
    options: Mapping[str, Any]

    def session(self, policy: Policy, **options: Any) -> Session:
        """A session. Args: options: replace those of `options`."""
        return Session(
            policy,
            seed=self.seed,
            history=self.history,
            merge=self.merge,
            instructions=self.instructions,
            renames=self.renames,
            is_open=self.is_open,
            **{**self.options, **options},
        )


class PolicyServer:
    """Serves one policy until it is stopped.

    Attributes:
        ready: set once requests are answered.
        on_lost: called when a connection ends without a farewell.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        name: str = "policy",
        seed: int = 0,
        history: History = "client",
        merge: MergeConfig | None = None,
        instructions: Instructions | None = None,
        renames: Mapping[str, str] | None = None,
        token: str | None = None,
        limits: ServerLimits | None = None,
        report: Callable[[str], None] = lambda line: None,
        least_s: float | None = None,
        **options: Unpack[AgentOptions],
    ):
        """
        Args:
            name: of the policy, for its clients.
            seed, history, merge, instructions, renames, options: see `Session`.
            token: what clients must show; None for nothing.
            limits: None for the defaults, with room for the policy's observations.
            report: receives lines for the operator.
            least_s: seconds from a request to its answer at least. Then nothing states how long the policy takes,
                neither answers nor /metrics. None for answers at once, with their timings.

        Raises:
            ConfigError: the policy reads an observation whose name the protocol uses, or `renames` do not fit.
            ValueError: `dry` cannot be, see `ChunkBroker`.
        """
        if OWN_FIELDS in policy.spec.cond_shapes:
            raise ConfigError("the policy", [f"reads an observation {OWN_FIELDS!r}, which is a name of the protocol"])
        check_renames(renames or {}, policy.spec)
        self.policy = policy
        self.telemetry = Telemetry()
        self._metadata = pack(metadata(policy, name, history, merge, renames, is_dry=bool(options.get("dry"))))
        instructions = instructions or Instructions(policy.spec)
        self._settings = _SessionSettings(seed, history, merge, instructions, renames, least_s is None, options)
        self._settings.session(policy).close()  # refuses options that do not fit the policy
        self._token = token
        self._limits = limits or ServerLimits(message_bytes=most_bytes(policy.spec))
        self._report, self._least_s = report, least_s
        self.on_lost: Callable[[], None] = lambda: None
        self._refusal: str | None = None
        self._inboxes: dict[asyncio.Task[None], Inbox] = {}  # by the task of the connection
        self.ready = threading.Event()
        self._is_stopping = self._is_late = False
        self._predicts_since = math.inf  # in the time of the monotonic clock

    def refuse(self, reason: str) -> None:
        """Answer requests with this line until `begin`."""
        self._refusal = reason

    def begin(self, seed: int, log: TickLog | None = None) -> None:
        """Answer the requests of every connection in a new session: with a history that is empty, and other noise.

        Args:
            log: where the session is logged; None for nowhere.
        """
        options = {**self._settings.options, "log": log}
        self._settings, self._refusal = replace(self._settings, seed=seed, options=options), None

    async def run(self, listener: socket.socket, stop: asyncio.Event) -> None:
        """Serve on a bound socket until `stop` is set; then answer what has arrived and close with 1001.

        Raises:
            ImportError: websockets is missing.
            ConfigError: the policy refuses observations of zeros, or cannot merge chunks in this way.
            HangError: a prediction did not end.
            RuntimeError: the policy fails on zeros.
        """
        with needing("serve", "the server needs websockets"):
            from websockets.asyncio.server import serve
        silent = logging.getLogger(f"{__name__}.websockets")
        silent.setLevel(logging.CRITICAL)  # else port scanners fill the log with tracebacks
        self._worker = ThreadPoolExecutor(1, "predict")
        try:
            async with serve(
                self._converse,
                sock=listener,
                process_request=self._respond,
                create_connection=_get_only(),
                compression=None,  # a bomb of a few kB would unpack to gigabytes
                max_size=self._limits.message_bytes,
                max_queue=2,
                origins=[None],  # browsers name one: no page may talk to a server on loopback
                close_timeout=5,
                server_header=None,
                logger=silent,
            ) as server:
                request = blank(self.policy, self._settings.merge)
                with errors_of("the policy"):
                    await self._work(self._settings.session(self.policy, **UNJUDGED).answer, request)
                refusal = await self._work(self._settings.instructions.warm_up)
                if refusal is not None:
                    self._report(f"only embeddings are answered: {refusal}")
                self.ready.set()
                self._report(f"ready: ws://{authority(listener)}")
                await stop.wait()
                self._is_stopping = True
                await self._drain(server)
        finally:
            self._worker.shutdown(wait=False)

    async def _drain(self, server: Any) -> None:
        """Answer the received requests, close the connections, and wait for the running prediction.

        Raises:
            HangError: it did not end.
        """
        for inbox in self._inboxes.values():
            inbox.close()
        if self._inboxes:
            await asyncio.wait(set(self._inboxes), timeout=DRAIN_S)
        self._is_late = True
        server.close()
        try:
            async with asyncio.timeout(HANGS_S):
                await self._work(lambda: None)  # behind it in the thread that predicts
        except TimeoutError:
            for connection in self._inboxes:
                connection.cancel()
            raise HangError(f"stopped while a prediction hangs; waited {HANGS_S:g} s for its end") from None

    async def run_until_signal(self, listener: socket.socket) -> None:
        """`run` until SIGTERM or SIGINT; see `until_signal`."""
        await until_signal(self.run, listener)

    async def _work(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run in the one thread that predicts, in the order of asking."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *arguments)

    def _respond(self, connection: Any, request: Any) -> Any:
        """The answer to an HTTP request; None to go on to a websocket."""
        path = request.path.partition("?")[0]
        if path == "/healthz":
            return connection.respond(200, "OK\n")
        if path == "/readyz":
            state = self._state()
            return connection.respond(200 if state == "ready" else 503, f"{state}\n")
        if self._token is not None:
            keys = [value.encode(errors="surrogateescape") for value in request.headers.get_all("Authorization")]
            if len(keys) != 1 or not hmac.compare_digest(keys[0], f"Api-Key {self._token}".encode()):
                refusal = connection.respond(
                    401, "expected the header `Authorization: Api-Key KEY` with this server's key\n"
                )
                refusal.headers["WWW-Authenticate"] = "Api-Key"
                return refusal
        if path == "/metrics" and self._least_s is None:
            is_ready = self._state() == "ready"
            return connection.respond(200, self.telemetry.text(connections=len(self._inboxes), is_ready=is_ready))
        if self._is_stopping:
            return connection.respond(503, "shutting down\n")
        if len(self._inboxes) >= self._limits.connections:
            line = f"{len(self._inboxes)} clients are connected, which is the limit (--max-connections)\n"
            return connection.respond(503, line)
        return None

    def _state(self) -> str:
        """The state of the server in a word, or why it does not answer."""
        if self._is_stopping:
            return "shutting down"
        if not self.ready.is_set():
            return "warming up"
        lasts_s = time.monotonic() - self._predicts_since
        return "ready" if lasts_s < HANGS_S else f"a prediction hangs, for {lasts_s:.0f} s so far"

    async def _converse(self, connection: Any) -> None:
        """One connection, from metadata to close."""
        from websockets.exceptions import ConnectionClosed

        inbox, task = Inbox(), asyncio.current_task()
        self._inboxes[task] = inbox
        reader = asyncio.create_task(inbox.fill(connection))
        try:
            await self._send(connection, self._metadata)
            with contextlib.ExitStack() as sessions:
                await self._answer_all(connection, inbox, sessions)
            if self._is_stopping:
                await connection.close(1001, "the server is shutting down")
        except ConnectionClosed:
            pass
        except IdleError:
            await connection.close(1000, f"no request for {self._limits.idle_s:g} s")
        except TimeoutError:
            connection.transport.abort()  # the client does not read, so a farewell would be lost too
        finally:
            reader.cancel()
            del self._inboxes[task]
            if connection.close_code == ABNORMAL:
                self.on_lost()

    async def _answer_all(self, connection: Any, inbox: Inbox, sessions: contextlib.ExitStack) -> None:
        """Args: sessions: closes the session under way at the end of the connection."""
        settings, timing = None, {}
        while (request := await inbox.take(self._limits.idle_s)) is not None:
            for _ in range(request.superseded):
                self.telemetry.requests["superseded"] += 1
                await self._send(connection, "superseded: a newer request arrived before this one was predicted")
            if settings is not self._settings:
                settings = self._settings
                sessions.close()
                session = sessions.enter_context(contextlib.closing(settings.session(self.policy)))
            reply = await self._work(self._answer, session, request, timing, inbox)
            await asyncio.sleep(request.arrived + (self._least_s or 0) - time.perf_counter())
            start = time.perf_counter()
            await self._send(connection, reply)
            end = time.perf_counter()
            self.telemetry.took("send", end - start)
            timing = {"prev_total_ms": 1e3 * (end - request.arrived)}

    def _answer(self, session: Session, request: Arrival, timing: dict[str, float], inbox: Inbox) -> bytes | str:
        """The answer to one request; runs in the predicting thread."""
        if self._is_late or inbox.is_gone:  # a client that waited too long asks again, on another connection
            return "nobody waits for this answer"
        if self._refusal is not None:
            self.telemetry.requests["refused"] += 1
            return self._refusal
        wait = time.perf_counter() - request.arrived
        self._predicts_since = time.monotonic()
        try:
            answer = session.answer(request.message, {**timing, "wait_ms": 1e3 * wait})
        except ValueError as error:
            self.telemetry.requests["refused"] += 1
            return " ".join(str(error).split())[:1000]
        except Exception as error:  # a failure of the policy must neither end the server nor leave the machine
            self.telemetry.requests["failed"] += 1
            log.exception("the policy failed")
            return f"the policy failed: {type(error).__name__}; the log of the server has more"
        finally:
            self._predicts_since = math.inf
        self.telemetry.requests["answered"] += 1
        for stage, seconds in {"wait": wait, **answer.seconds}.items():
            self.telemetry.took(stage, seconds)
        return answer.reply

    async def _send(self, connection: Any, message: bytes | str) -> None:
        async with asyncio.timeout(SEND_S):
            await connection.send(message)


async def until_signal(run: Callable[[socket.socket, asyncio.Event], Awaitable[None]], listener: socket.socket) -> None:
    """Run a server until SIGTERM or SIGINT; a second SIGINT raises KeyboardInterrupt."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def ask() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    await run(listener, stop)


def _get_only() -> type:
    """The class of connections. websockets itself hangs up on other methods than GET without a word, and queues answers
    to pings without limit."""
    from websockets.asyncio.server import ServerConnection

    line = b"expected a websocket, or GET /healthz, /readyz or /metrics\n"

    class GetOnly(ServerConnection):
        has_begun = False

        def data_received(self, data: bytes) -> None:
            if not self.has_begun and not data.startswith(b"GET "[: len(data)]):
                head = (
                    b"HTTP/1.1 405 Method Not Allowed\r\nAllow: GET\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                )
                self.transport.write(head % len(line) + line)
                self.transport.close()
                return
            self.has_begun = True
            if self.transport.get_write_buffer_size() > MOST_UNREAD:  # pings, whose answers it does not read
                self.transport.abort()
                return
            super().data_received(data)

    return GetOnly
