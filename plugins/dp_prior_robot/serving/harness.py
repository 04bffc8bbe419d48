"""A server of vla-evaluation-harness's protocol: its benchmarks play a policy, one action for each observation.

Messages are msgpack maps of `type`, `payload`, `seq` and `timestamp` on a websocket. An episode begins with its task;
the agent of a connection keeps the history of observations and the chunk under way.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from dp_prior.files.entry_points import needing
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import Policy
from dp_prior.tensors.pixels.picture_files import PictureError, opened_picture
from dp_prior_client.wire import WIRE_DTYPES
from dp_prior_robot.listener import authority
from dp_prior_robot.serving.batched_policy import BatchedPolicy
from dp_prior_robot.serving.policy_server import most_bytes
from dp_prior_robot.serving.renames import check_renames, renamed

PROTOCOL_VERSION = 1

ARRAY, PICTURE = "__ndarray__", "__image__"

LARGEST_PICTURE = 4096
"""Height and width of a picture at most."""

ASKED_FOR = {"send_wrist_image": "wrist", "send_state": "state", "quat_no_antipodal": "state"}
"""Settings of a benchmark that adds observations, and the word in an observation's name that needs the setting.
`quat_no_antipodal` asks LIBERO's benchmark for rotation vectors as recorded, which may be longer than pi."""

log = logging.getLogger(__name__)


class MessageError(ValueError):
    """A message that does not follow the protocol."""


def pack(kind: str, payload: Mapping[str, Any], seq: int = 0) -> bytes:
    """Encode a message."""
    import msgpack

    message = {"type": kind, "payload": payload, "seq": seq, "timestamp": time.time()}
    return msgpack.packb(message, default=_array_fields, use_bin_type=True)


def unpack(data: bytes | str) -> tuple[str, dict[str, Any], int]:
    """Decode a message of any origin: its type, payload and number.

    Raises:
        MessageError: the message does not follow the protocol.
    """
    import msgpack

    if isinstance(data, str):
        raise MessageError("a message is a text frame; expected one msgpack map")
    try:
        raw = msgpack.unpackb(data, object_hook=_restored, raw=False)
    except MessageError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise MessageError(f"a message is not one msgpack value ({type(error).__name__})") from None
    expected = {"type": str, "payload": dict, "seq": int}
    for name, kind in expected.items():
        if not isinstance(raw, dict) or not isinstance(raw.get(name), kind):
            raise MessageError(f"a message has no {name} that is {kind.__name__}; expected type, payload, seq")
    return raw["type"], raw["payload"], raw["seq"]


def flat(observation: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Name every observation by its path, such as `images/agentview`."""
    values: dict[str, Any] = {}
    for name, value in observation.items():
        values |= flat(value, f"{path}{name}/") if isinstance(value, Mapping) else {f"{path}{name}": value}
    return values


class HarnessServer:
    """Serves one policy to the harness until it is stopped."""

    def __init__(
        self,
        policy: Policy,
        *,
        name: str = "policy",
        seed: int = 0,
        renames: Mapping[str, str] | None = None,
        connections: int = 16,
        report: Callable[[str], None] = lambda line: None,
        **options: Any,
    ):
        """
        Args:
            renames: the policy's names by paths of the harness, see `flat`.
            connections: clients at once, whose predictions share a batch.
            options: see `Agent`.

        Raises:
            ConfigError: `renames` do not fit the policy.
        """
        check_renames(renames or {}, policy.spec)
        self.policy = BatchedPolicy(policy, connections)
        self._name, self._seed, self._renames = name, seed, dict(renames or {})
        self._connections, self._report, self._options = connections, report, options
        Agent(policy, seed=seed, **options)  # refuses options that do not fit the policy, and gives it its runtime

    async def run(self, listener: Any, stop: asyncio.Event) -> None:
        """Serve on a bound socket until `stop` is set.

        Raises:
            ImportError: websockets or msgpack is missing.
        """
        with needing("serve", "the server needs websockets and msgpack"):
            import msgpack  # noqa: F401
            from websockets.asyncio.server import serve
        silent = logging.getLogger(f"{__name__}.websockets")
        silent.setLevel(logging.CRITICAL)  # else port scanners fill the log with tracebacks
        self._pool = ThreadPoolExecutor(self._connections, "predict")
        try:
            async with serve(
                self._converse,
                sock=listener,
                process_request=_respond,
                compression=None,
                max_size=most_bytes(self.policy.spec),
                ping_interval=None,  # a simulator does not answer while it steps
                logger=silent,
            ):
                self._report(f"ready: ws://{authority(listener)}, for vla-eval")
                await stop.wait()
        finally:
            self._pool.shutdown(wait=False)

    def hello(self) -> dict[str, Any]:
        """The answer to a harness that presents itself: what its benchmark has to send."""
        sources = " ".join(self._renames or self.policy.spec.cond_shapes)
        params = {setting: True for setting, word in ASKED_FOR.items() if word in sources}
        return {
            "harness_version": "dp_prior",
            "protocol_version": PROTOCOL_VERSION,
            "model_server": self._name,
            "capabilities": {},
            "observation_params": params,
        }

    def _agent(self) -> Agent:
        return Agent(self.policy, seed=self._seed, **self._options)

    async def _converse(self, connection: Any) -> None:
        """One connection: the harness asks for one action at a time."""
        from websockets.exceptions import ConnectionClosed

        agent, loop = self._agent(), asyncio.get_running_loop()
        try:
            async for data in connection:
                seq = 0
                try:
                    kind, payload, seq = unpack(data)
                    answer = await loop.run_in_executor(self._pool, self._answer, agent, kind, payload)
                except ValueError as error:
                    answer = "error", {"error": " ".join(str(error).split())[:1000]}
                except Exception as error:  # a failure of the policy must not end the server
                    log.exception("the policy failed")
                    answer = "error", {"error": f"the policy failed: {type(error).__name__}; see the server's log"}
                if answer is not None:
                    await connection.send(pack(*answer, seq))
        except ConnectionClosed:
            pass

    def _answer(self, agent: Agent, kind: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
        """The type and payload of an answer; None for a message without one."""
        if kind == "hello":
            return "hello", self.hello()
        if kind == "episode_start":
            agent.reset(_episode_number(payload.get("task")))
        elif kind == "observation":
            return "action", {"actions": agent.act(renamed(flat(payload), self._renames))}
        elif kind == "error":
            log.warning("the harness tells of an error: %s", str(payload)[:1000])
        elif kind != "episode_end":
            raise MessageError(f"a message has the type {kind!r:.40}; expected hello, episode_start or observation")
        return None


def _episode_number(task: Any) -> int | None:
    """A number of an episode, so that its noise does not depend on the connection; None for a task without a name."""
    if not isinstance(task, Mapping) or not task:
        return None
    return zlib.crc32(json.dumps(task, sort_keys=True, default=str).encode())


def _respond(connection: Any, request: Any) -> Any:
    """The answer to the harness's question whether the server is ready; None to go on to a websocket."""
    return connection.respond(200, '{"status": "ok"}\n') if request.path.partition("?")[0] == "/health" else None


def _array_fields(value: Any) -> Any:
    """Encode an array, a type that msgpack does not know."""
    array = np.asarray(value)
    return {ARRAY: True, "data": array.tobytes(), "dtype": array.dtype.str, "shape": list(array.shape)}


def _restored(raw: dict[str, Any]) -> Any:
    """An array or a picture in place of its map."""
    if PICTURE in raw:
        return _picture(raw)
    if ARRAY not in raw:
        return raw
    dtype, shape, data = raw.get("dtype"), raw.get("shape"), raw.get("data")
    if dtype not in WIRE_DTYPES or not isinstance(data, bytes) or not _is_shape(shape):
        raise MessageError(f"an array has dtype {dtype!r:.40} and shape {shape!r:.80}; expected numbers")
    kind = np.dtype(np.uint8 if dtype == "|b1" else dtype)
    if len(data) % kind.itemsize:
        raise MessageError(f"an array of {dtype} and shape {shape!r:.80} has {len(data)} bytes")
    array = np.frombuffer(data, kind)
    if array.size != int(np.prod(shape, dtype=object)):
        raise MessageError(f"an array of shape {shape!r:.80} has {array.size} numbers")
    try:
        array = array.reshape(shape)
    except ValueError:  # of no numbers, and yet too large
        raise MessageError(f"an array has shape {shape!r:.80}, which is too large") from None
    return array != 0 if dtype == "|b1" else array


def _picture(raw: dict[str, Any]) -> np.ndarray:
    if raw.get("format") == "raw":
        return _restored({ARRAY: True, "dtype": raw.get("dtype"), "shape": raw.get("shape"), "data": raw.get("data")})
    if not isinstance(raw.get("data"), bytes):
        raise MessageError("a picture has no data")
    try:
        with opened_picture(raw["data"]) as picture:
            if max(picture.size) > LARGEST_PICTURE:
                raise ValueError(f"it has {picture.size} pixels; expected at most {LARGEST_PICTURE} a side")
            return np.asarray(picture)
    except PictureError as error:
        raise MessageError(f"a picture {error}") from None


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, list) and len(shape) <= 8 and all(type(length) is int and length >= 0 for length in shape)
