"""The session of one connection: a request's bytes in, an answer's bytes out, without sockets.

Requests are openpi's, a map of observations. A request of our client holds everything that its answer depends on; stock
clients send the newest observation alone, and then the session supplies the rest: history, episode and step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import numpy as np
import torch

from dp_prior.config import an
from dp_prior.inference.agent import Agent
from dp_prior.inference.chunking import MergeConfig, Naive, Policy
from dp_prior.inference.instructions import Instructions
from dp_prior.tensors.observations import policy_reads
from dp_prior.tensors.six_d import from_6d
from dp_prior_client.onboard.action_limits import ActionLimits
from dp_prior_client.onboard.broker import AgentOptions
from dp_prior_client.onboard.frame_watch import UNWATCHED
from dp_prior_client.wire import OWN_FIELDS, PROTOCOL, pack, unpack
from dp_prior_robot.serving.renames import refuse_other_names, renamed

History = Literal["client", "server"]
FIELDS = ("episode", "step", "prefix", "delay")
"""The fields that a request may have in the map `OWN_FIELDS`; the last two are arguments of `Agent.infer`."""

REPEATED_OBSERVATION = (
    "the policy reads {0} observations and was given 1, which is repeated: send the last {0}, stacked, or ask at every "
    "step and serve with --history server"
)

UNJUDGED = {"actions": ActionLimits(factor=math.inf), "frames": UNWATCHED, "log": None, "dry": False}
"""Settings of a session for the answer to `blank`, which no robot executes."""

MOST_WARNINGS = 20
"""Lines of a warning; the server's log has all."""


@dataclass(frozen=True)
class Answer:
    """A reply and the seconds of each stage."""

    reply: bytes
    seconds: dict[str, float]


class Session:
    """One connection's agent, its episode and its step."""

    def __init__(
        self,
        policy: Policy,
        *,
        seed: int = 0,
        history: History = "client",
        merge: MergeConfig | None = None,
        instructions: Instructions | None = None,
        renames: Mapping[str, str] | None = None,
        is_open: bool = True,
        **options: Unpack[AgentOptions],
    ):
        """
        Args:
            seed: determines all noise, together with episode and step.
            history: who keeps it for requests with a single observation. `server`: each is one control step and gets
                the one action of `Agent.act`. `client`: nobody does; the observation is repeated, as at the start of an
                episode, and the answer is a whole chunk.
            merge: how a chunk follows the unfinished one that a request holds as `prefix`; None for naive.
            instructions: embeds texts; connections share it.
            renames: names of the policy by names of clients, see `check_renames`; None for no renames.
            is_open: whether answers have `server_timing` and the warnings of this server's log; not in a blind trial.
            options: limits of the checks of observations and actions, log and dry run, by name.
        """
        self.agent = Agent(policy, seed=seed, merge=merge, instructions=instructions, **options)
        self._history, self._renames, self._is_open = history, renames or {}, is_open
        self._has_warned = False

    def close(self) -> None:
        """Finish the log of the episode."""
        if self.agent.recorder is not None:
            self.agent.recorder.end()

    def answer(self, message: bytes | str, timing: Mapping[str, float] | None = None) -> Answer:
        """Predict what a request asks for.

        Args:
            timing: further entries of the answer's `server_timing`.

        Raises:
            ValueError: the request is refused; the text is for its sender.
        """
        start = time.perf_counter()
        if isinstance(message, str):
            raise ValueError("the request is a text frame; expected one binary frame with a msgpack map")
        request = unpack(message)
        decoded = time.perf_counter()
        content = self._predict(request)
        predicted = time.perf_counter()
        seconds = {"decode": decoded - start, "predict": predicted - decoded}
        if self._is_open:
            timing = {} if timing is None else timing
            stages = {"infer_ms": 1e3 * seconds["predict"], "decode_ms": 1e3 * seconds["decode"]}
            content["server_timing"] = {**stages, **timing}
        reply = pack(content)
        return Answer(reply, {**seconds, "encode": time.perf_counter() - predicted})

    def _predict(self, request: dict[str, Any]) -> dict[str, Any]:
        fields, policy = _own_fields(request), self.agent.policy
        request = renamed(request, self._renames)
        refuse_other_names(request, policy.spec.cond_shapes)
        obs = {key: _as_array(value) if key in policy.spec.cond_shapes else value for key, value in request.items()}
        if fields.get("episode", self.agent.episode) != self.agent.episode:
            self.agent.reset(fields["episode"])
        is_single = not any(np.ndim(obs[key]) == len(shape) for key, shape in self._arrays(obs))
        if is_single and self._history == "server":
            if "step" in fields:
                raise ValueError(f"{OWN_FIELDS!r} gives a step, but this server counts the steps: --history server")
            return {"actions": self.agent.act(obs)[None], **self._warning()}
        if is_single:
            n = policy.n_obs_steps
            obs |= {key: np.repeat(obs[key][None], n, axis=0) for key, _ in self._arrays(obs)}
        chunk = self.agent.infer(obs, fields.get("prefix"), fields.get("delay", 0), step=fields.get("step"))["chunk"]
        first = policy.n_obs_steps - 1
        content = {"actions": chunk[first : first + policy.n_action_steps], "chunk": chunk}
        if is_single and policy.n_obs_steps > 1 and not self._has_warned:
            self._has_warned = True
            return {**content, **self._warning(REPEATED_OBSERVATION.format(policy.n_obs_steps))}
        return {**content, **self._warning()}

    def _warning(self, *lines: str) -> dict[str, str]:
        """The entry of an answer with further lines for its client, and those that went to the log of this server;
        the latter not in a blind trial."""
        logged = self.agent.monitor.take_lines()
        all_lines = [*lines, *(logged if self._is_open else ())]
        return {"warning": "\n".join(all_lines[:MOST_WARNINGS])} if all_lines else {}

    def _arrays(self, obs: Mapping[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
        """Key and shape of the observations that the policy reads and the request has as arrays."""
        return [item for item in self.agent.policy.spec.cond_shapes.items() if isinstance(obs.get(item[0]), np.ndarray)]


def metadata(
    policy: Policy,
    name: str,
    history: History,
    merge: MergeConfig | None,
    renames: Mapping[str, str] | None = None,
    is_dry: bool = False,
) -> dict[str, Any]:
    """The first message of a connection: the inputs and outputs of the policy, see docs/robot.md."""
    message: dict[str, Any] = {
        "protocol": PROTOCOL,
        "policy": name,
        **policy_reads(policy).metadata(),
        "n_obs_steps": policy.n_obs_steps,
        "horizon": policy.horizon,
        "n_action_steps": policy.n_action_steps,
        "action_dim": policy.spec.x_shape[-1],
        "history": history,
        "merge": (merge or Naive()).type,
        "fields": list(FIELDS),
    }
    if renames:
        message["renames"] = dict(renames)
    if is_dry:
        message["dry"] = True
    return message


def blank(policy: Policy, merge: MergeConfig | None) -> bytes:
    """A request to warm up: values of training nearest to zero, and rotations by nothing; with a way of merging also a
    chunk to continue."""
    reads, request = policy_reads(policy), {}
    for key, shape in policy.spec.cond_shapes.items():
        observation = reads.observations[key]
        request[key] = np.zeros((policy.n_obs_steps, *shape[1:]), observation.dtype)
        if observation.range is not None:  # zeros outside of it would be logged
            request[key] = np.clip(request[key], *observation.range).astype(observation.dtype)
        for start, stop, form in observation.rotations:
            request[key][:, start:stop] = from_6d(torch.tensor([1.0, 0, 0, 0, 1, 0]), form)
    if merge is not None:
        request[OWN_FIELDS] = {"prefix": np.zeros((policy.n_obs_steps, policy.spec.x_shape[-1])), "delay": 1}
    return pack(request)


def _own_fields(request: dict[str, Any]) -> dict[str, Any]:
    """Take the fields that are no observations out of a request."""
    fields = request.pop(OWN_FIELDS, {})
    if not isinstance(fields, dict):
        raise ValueError(f"{OWN_FIELDS!r} is {an(type(fields).__name__)}; expected a map with {', '.join(FIELDS)}")
    for name, value in fields.items():
        if name not in FIELDS:
            raise ValueError(f"{OWN_FIELDS!r} has {name!r}, which this server does not know; known: {list(FIELDS)}")
        if name == "prefix":
            if not isinstance(value, np.ndarray):
                raise ValueError(f"{OWN_FIELDS!r} gives {an(type(value).__name__)} for prefix; expected an array")
        elif type(value) is not int or not 0 <= value < 2**53:
            raise ValueError(f"{OWN_FIELDS!r} gives {value!r:.40} for {name}; expected a number from 0 to 2**53")
    return fields


def _as_array(value: Any) -> Any:
    """A list as an array; a text, and ragged lists, which `check_obs` names, stay."""
    if isinstance(value, str):
        return value
    try:
        return np.asarray(value)
    except ValueError:
        return value
