"""The robot's end of `dp-prior serve`: observation history and action queue here, the policy on another machine.

`act` gives bit for bit the actions of `Agent` in one process. A request holds everything that its answer depends on,
the whole history, episode and step, so it can be sent again after the line dropped, and to a server that was restarted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from dp_prior_client.attempts import Attempts, FailedAttempt
from dp_prior_client.onboard.action_limits import check_dry_limits
from dp_prior_client.onboard.broker import ChunkBroker
from dp_prior_client.onboard.obs_spec import ObsSpec
from dp_prior_client.server_check import ServerError, check_metadata, checked_chunk, checked_timing, printable
from dp_prior_client.wire import OWN_FIELDS, PROTOCOL, WireError, pack, unpack

if TYPE_CHECKING:
    from typing import Unpack

    from dp_prior_client.onboard.broker import AgentOptions

log = logging.getLogger(__name__)

_silent = logging.getLogger(f"{__name__}.websockets")
_silent.setLevel(logging.CRITICAL)  # its thread logs a traceback for a line that is down; `_persist` tells of the line

FINAL = (1002, 1003, 1007, 1008, 1009)
"""Codes of a closed connection that would close again: the request breaks the protocol or is too large."""


LARGEST_ANSWER = 128 << 20
"""Most bytes of an answer."""

MOST_WARNINGS = 100
"""Most different warnings of a server that are logged."""


class PolicyClient(ChunkBroker):
    """One robot's connection to a policy: `reset()` at the start of an episode, then `act(obs)` once per control step.

    Attributes:
        metadata: the server's description of its policy, see docs/robot.md.
        timing: of the last request, in ms: `round_trip_ms`, and those of the server.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        token: str | None = None,
        timeout_s: float = 10.0,
        patience_s: float = 30.0,
        **options: Unpack[AgentOptions],
    ):
        """Connect.

        Args:
            host: name or address, with its port or without (`gpu-box:8000`, `gpu-box`), or a whole address that begins
                with ws:// or wss://.
            port: of the server, where `host` names none.
            token: content of the server's token file; white space around it is left out, as by the server. By ws:// it
                crosses the network in clear text, and the log warns.
            timeout_s: seconds that one attempt waits for its answer.
            patience_s: seconds to keep trying to connect, and to have a request answered, before giving up; 0 for one
                attempt. The log reports a silent server within a second, with the reason.
            options: limits of the checks of observations and actions, and the log, by name.

        Raises:
            ValueError: the host is no name or address, or `actions` clip the commands of a server's dry run.
            ConnectionError: no server answered in time, or it refuses the connection; the text has its reason.
            ServerError: it is another kind of server, or speaks another version.
            ImportError: websockets or msgpack is missing.
        """
        self.url = _address(host, port)
        self.metadata: dict[str, Any] = {}
        self.timing: dict[str, float] = {}
        self._token, self._timeout_s = token and token.strip(), timeout_s
        self._attempts = Attempts(self.url, patience_s, timeout_s)
        self._socket: Any = None
        self._open = contextlib.ExitStack()
        self._warnings: set[str] = set()
        host_in_clear = _network_host(self.url) if self._token else None
        if host_in_clear is not None:
            log.warning(
                "the key goes to %s in clear text, as observations do; take wss:// or a tunnel where others listen",
                host_in_clear,
            )
        self._persist(self._connect)
        if self._is_server_dry:
            check_dry_limits(options.get("actions"))
        reads = ObsSpec.from_metadata(self.metadata)
        super().__init__(reads, self.metadata["n_obs_steps"], self.metadata["n_action_steps"], **options)

    def infer(
        self, obs: Mapping[str, Any], prefix: np.ndarray | None = None, delay: int = 0, *, step: int | None = None
    ) -> dict[str, Any]:
        """Ask for a chunk, and judge it; see `ChunkBroker.infer` and `_predict`."""
        answer, present = super().infer(obs, prefix, delay, step=step), self.n_obs_steps - 1
        return {**answer, "actions": answer["chunk"][present : present + self.n_action_steps]}

    def _predict(
        self, obs: Mapping[str, Any], prefix: np.ndarray | None = None, delay: int = 0, *, step: int | None = None
    ) -> dict[str, Any]:
        """Ask for a chunk; see `ChunkBroker.infer`.

        Args:
            prefix: actions for the chunk to continue; only for servers whose metadata list `prefix` among `fields`.

        Returns:
            chunk; actions (n_action_steps, action_dim), the part to execute, which begins at the newest observation;
            server_timing; round_trip_ms.

        Raises:
            ValueError: an observation is no array of numbers, or exceeds a limit that refuses.
            ServerError: the server refuses the request, or its answer is no chunk of finite actions.
            ConnectionError: there is no answer within `patience_s`.
        """
        self.monitor.check_obs({key: self.reads.array(key, obs[key]) for key in self.monitor.keys if key in obs})
        self._check_newest(obs)
        counter = self._counter
        fields: dict[str, Any] = {"episode": self.episode, "step": counter.step if step is None else step}
        if prefix is not None:
            fields.update(prefix=np.asarray(prefix, np.float32), delay=delay)
        message: dict[str, Any] = {key: _sendable(value) for key, value in obs.items()}
        request = pack({**message, OWN_FIELDS: fields})
        start = time.monotonic()
        answer = self._persist(lambda: self._ask(request))
        if isinstance(answer, str):
            raise ServerError(printable(answer))
        try:
            content = unpack(answer)
        except WireError as error:
            raise ServerError(f"the server's answer is refused: {printable(str(error))}") from None
        chunk = checked_chunk(content, self.n_obs_steps - 1 + self.n_action_steps, self.reads.action.shape[0])
        if step is None:
            counter.step += self.n_action_steps
        self._log(content.get("warning"))
        round_trip_ms = 1e3 * (time.monotonic() - start)
        self.timing = {**checked_timing(content), "round_trip_ms": round_trip_ms}
        return {**content, "chunk": chunk, "round_trip_ms": round_trip_ms}

    @property
    def is_dry(self) -> bool:
        """See `ChunkBroker.is_dry`; also where the server runs dry."""
        return self.rehearses or self._is_server_dry

    @property
    def _is_server_dry(self) -> bool:
        return self.metadata.get("dry", False)

    @property
    def trouble(self) -> str | None:
        """Since when and why the server does not answer, in one line; None while it answers."""
        return self._attempts.trouble

    def close(self) -> None:
        """Close the connection; another `infer` opens it again."""
        self._socket = None
        self._open.close()

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _checked(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See `ChunkBroker._checked`; texts are left for the server to embed. The server checks everything again, but
        sees an observation only when a chunk is due."""
        checked = self.reads.check(self._row(obs), rows=1, texts=True)
        newest = {key: value[0] for key, value in checked.items()}
        for key, value in newest.items():
            if self._history and value.shape != self._history[-1][key].shape:
                shape = self._history[-1][key].shape
                raise ValueError(f"observation {key!r} has shape {value.shape}; expected {shape}, as before")
        return newest

    def _actions(self, obs: dict[str, np.ndarray]) -> Iterable[np.ndarray]:
        """See `ChunkBroker._actions`.

        Raises:
            ServerError: the server refuses the observations, such as an instruction that it does not know, perhaps of
                an earlier call; all are forgotten, and the next one begins a history as at the start of an episode.
            ConnectionError: there is no answer within `patience_s`.
        """
        try:
            return super()._actions(obs)
        except ServerError:
            self._history = []  # otherwise a refused observation would stay and be refused for ever
            raise

    def _log(self, warning: Any) -> None:
        """Log each line of a server's warning once."""
        for line in warning.splitlines() if isinstance(warning, str) else ():
            if line not in self._warnings and len(self._warnings) < MOST_WARNINGS:
                self._warnings.add(line)
                self.monitor.tell(printable(line), f"{self.url}: ")

    def _ask(self, request: bytes) -> bytes | str:
        """One attempt."""
        if self._socket is None:
            self._connect()
        self._socket.send(request)
        return self._socket.recv(timeout=self._timeout_s)

    def _connect(self) -> None:
        """Open the connection and read the metadata."""
        from websockets.sync.client import connect

        headers = {"Authorization": f"Api-Key {self._token}"} if self._token else None
        options: dict[str, Any] = {
            "additional_headers": headers,
            "compression": None,
            "max_size": LARGEST_ANSWER,
            "open_timeout": self._timeout_s,
            "close_timeout": 1,
            "logger": _silent,
        }
        with contextlib.ExitStack() as opening:
            socket = opening.enter_context(connect(self.url, **options))
            self._check_server(socket.recv(timeout=self._timeout_s))
            self._socket, self._open = socket, opening.pop_all()

    def _check_server(self, answer: bytes | str) -> None:
        try:
            metadata = unpack(answer) if isinstance(answer, bytes) else {}
        except WireError:
            metadata = {}
        if metadata.get("protocol") != PROTOCOL:
            protocol = printable(str(metadata.get("protocol", "no protocol of its own")))
            raise ServerError(
                f"{self.url} speaks {protocol}; this client speaks {PROTOCOL}: use the client of the server's version, "
                f"or openpi-client for a server of openpi's"
            )
        check_metadata(metadata)
        fixed = ("obs", "n_obs_steps", "n_action_steps", "action_dim")  # as the loop was made for
        changed = [key for key in fixed if self.metadata.get(key) != metadata[key]]
        if self.metadata and _names(metadata) != _names(self.metadata):
            changed.append("order of numbers")
        if self.metadata and metadata.get("dry", False) != self._is_server_dry:
            changed.append("dry run")
        if self.metadata and changed:
            raise ServerError(f"{self.url} now serves otherwise: its {', '.join(changed)} changed; make a new client")
        self.metadata = metadata

    def _persist(self, request: Callable[[], Any]) -> Any:
        """The result of a request, which is repeated while the line is down."""
        try:
            from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
        except ImportError as error:
            raise ImportError(f'the client needs websockets ({error}): pip install "dp_prior[serve]"') from error

        def attempt() -> Any:
            try:
                return request()
            except (ConnectionClosed, InvalidHandshake, OSError, EOFError) as error:
                self.close()
                reason, is_final = str(error) or type(error).__name__, False
                if isinstance(error, InvalidStatus):  # its line says more than its number
                    reason = (error.response.body or b"").decode(errors="replace").strip() or reason
                    is_final = 400 <= error.response.status_code < 500
                elif isinstance(error, ConnectionClosed) and error.rcvd is not None:
                    is_final = error.rcvd.code in FINAL
                raise FailedAttempt(printable(reason), is_final) from error
            except BaseException:  # such as Ctrl-C: the next request must not be given the answer of this one
                self.close()
                raise

        return self._attempts.persist(attempt, self._hang_up)

    def _hang_up(self) -> None:
        """End a `send` that blocks because the server does not read; websockets gives it no time limit."""
        connection = self._socket
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)


def _address(host: str, port: int) -> str:
    """The whole address of a server; see `PolicyClient`."""
    is_whole = host.startswith(("ws://", "wss://"))
    url = host
    if not is_whole:
        place = f"[{host}]" if host.count(":") > 1 and "[" not in host else host  # an address of IPv6
        has_port = ":" in place.rpartition("]")[2]
        url = f"ws://{place}" if has_port else f"ws://{place}:{port}"
    try:
        parts = urlsplit(url)
        if "[" in parts.netloc:
            ipaddress.IPv6Address((parts.hostname or "").partition("%")[0])
        if not parts.hostname or parts.port == 0 or not (is_whole or (parts.port and not parts.path)):
            raise ValueError
    except ValueError:  # of the port, too
        raise ValueError(
            f"host is {host!r} and port {port!r}; expected a name or an address, such as 'gpu-box' or 'gpu-box:8000', "
            f"or a whole address, such as ws://gpu-box:8000"
        ) from None
    return url


def _network_host(url: str) -> str | None:
    """The host of another machine that is reached without TLS; None for loopback and for wss://."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:  # a name
        is_loopback = host == "localhost"
    return None if is_loopback or parts.scheme == "wss" else host


def _names(metadata: Mapping[str, Any]) -> list[Sequence[str]]:
    """The names of the numbers of all vectors."""
    reads = ObsSpec.from_metadata(metadata)
    return [observation.names for observation in (*reads.observations.values(), reads.action)]


def _sendable(value: Any) -> Any:
    """An observation as messages hold it: an array of texts becomes a list, or one text where all are equal."""
    if not (isinstance(value, np.ndarray) and value.dtype.kind == "U"):
        return value
    texts = value.tolist()
    return texts[0] if isinstance(texts, list) and len(set(texts)) == 1 else texts
