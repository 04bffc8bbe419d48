"""Agents: a policy, its observation history and its action queue. Evaluation and the robot run the same code.

A chunk is predicted from the newest `n_obs_steps` observations. `n_action_steps` of its actions are executed before the
next prediction, beginning at index `n_obs_steps - 1`, which is the present.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.diffusion.draw import Draw
from dp_prior.inference.chunking import (
    MergeConfig,
    Naive,
    Policy,
    Prefix,
    check_unfinished,
    delay_fault,
    held,
    next_chunk,
)
from dp_prior.inference.instructions import Instructions
from dp_prior.observations import check_obs
from dp_prior.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.diffusion.sampler import SamplerConfig


class _Plan(NamedTuple):
    """A chunk and when it is executed."""

    present: int
    """Control step that its action at index n_obs_steps - 1 is meant for."""

    begin: int
    """First control step at which it may be executed."""

    chunk: Tensor
    """(n, horizon, action_dim) on the CPU."""


class VectorAgent:
    """One policy in n episodes that run in lockstep, one row each.

    A row's actions depend on the seed, its episode number and its observations, and on other rows only through rounding
    in matrix products.
    """

    def __init__(
        self,
        policy: Policy | nn.Module,
        *,
        n_action_steps: int | None = None,
        seed: int = 0,
        sampler: SamplerConfig | None = None,
        warm_start: bool = False,
        merge: MergeConfig | None = None,
        delay: int = 0,
        instructions: Instructions | None = None,
        guidance_scale: float | None = None,
    ):
        """
        Args:
            n_action_steps: actions executed before the next prediction; None for the policy's setting.
            seed: determines all noise, together with the episode's number and step.
            sampler: replaces the policy's sampler, for example with fewer steps.
            warm_start: start each prediction but the first from the rest of the last chunk, noised to the sampler's
                `renoise`: fewer steps, and smaller changes from chunk to chunk.
            merge: how a chunk follows the unfinished one, see `dp_prior.inference.chunking`; None for naive.
            delay: control steps from an observation to the first executed action of its chunk, to simulate a robot that
                acts meanwhile; the first chunk of an episode is waited for.
            instructions: embeds texts among the observations; None for the model of the policy's spec.
            guidance_scale: replaces the policy's, see `DiffusionPolicy.predict`.

        Raises:
            ValueError: n_action_steps or delay does not fit into the chunk, or a delay is given without merge.
        """
        if isinstance(policy, str | PathLike):
            given = f'load_policy("{policy}")'
            raise TypeError(f"policy is a {type(policy).__name__}; expected a policy, as {given} gives")
        if isinstance(sampler, str | Mapping):
            expected = "an object of dp_prior.diffusion.sampler, for example DDIM(steps=8)"
            raise TypeError(f"sampler is a {type(sampler).__name__}; expected {expected}")
        room = policy.horizon - policy.n_obs_steps + 1
        n_action_steps = policy.n_action_steps if n_action_steps is None else n_action_steps
        if not 1 <= n_action_steps <= room:
            raise ValueError(
                f"n_action_steps is {n_action_steps}, but horizon {policy.horizon} and n_obs_steps "
                f"{policy.n_obs_steps} leave room for 1 to {room} actions"
            )
        fault = delay_fault(merge, delay, n_action_steps, room)
        if fault:
            raise ValueError(fault)
        self.policy = policy
        self.n_action_steps = n_action_steps
        self.seed = int(seed)
        self.how = Draw(sampler, guidance_scale=guidance_scale)
        self.warm_start = warm_start
        self.merge = merge or Naive()
        self.delay = delay
        self.instructions = instructions or Instructions(policy.spec)
        self._episodes: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the policy predicts; the CPU for one without parameters."""
        return next((parameter.device for parameter in self.policy.parameters()), torch.device("cpu"))

    def reset(self, episodes: Sequence[int]) -> None:
        """Start one episode per number; forgets observations and queued actions."""
        self._episodes = torch.tensor(list(episodes), dtype=torch.int64, device="cpu")
        self._history: deque[dict[str, Tensor]] = deque(maxlen=self.policy.n_obs_steps)
        nothing = torch.zeros(len(self._episodes), self.policy.spec.x_shape[-1], device="cpu", dtype=torch.float32)
        starts = self.policy.spec.previous_actions
        self._previous = {key: torch.tensor(start, device="cpu") + nothing for key, start in starts.items()}
        self._executed = deque([nothing], maxlen=self.policy.n_obs_steps)
        self._plans: deque[_Plan] = deque(maxlen=2 + self.policy.horizon // self.n_action_steps)
        self._step = self._due = 0

    def act(self, obs: Mapping[str, np.ndarray | Tensor], active: np.ndarray | None = None) -> np.ndarray:
        """The next action of every row.

        Args:
            obs: (n, *shape) by key, data units; keys the policy does not know are ignored. An instruction may be given
                as texts (n,) or as their embeddings. The previous action, if the policy sees it, may be left out: it is
                then what `act` returned last; give it where the robot did something else.
            active: (n,) bool, rows to predict for, None for all. The others get a meaningless finite action.

        Returns:
            (n, action_dim) float32, data units.

        Raises:
            ValueError: an observation is refused by `check_obs`; nothing of it is remembered.
            RuntimeError: `reset` was not called.
            Exception: whatever the policy raised; nothing is remembered, and the next call predicts.
        """
        if self._episodes is None:
            raise RuntimeError("act was called before reset; a VectorAgent must know its episodes first")
        rows = np.arange(len(self._episodes)) if active is None else np.flatnonzero(active)
        obs = {**self._previous, **self.instructions.embedded(obs)}
        checked = check_obs(obs, self.policy.spec, rows=len(self._episodes), active=None if active is None else rows)
        before = self._history.copy()
        self._remember({key: value.clone() for key, value in checked.items()})  # environments reuse their arrays
        if self._step == self._due:
            begin = self._step + (self.delay if self._plans else 0)  # the robot waits for its first chunk
            present = begin if self.merge.stalls else self._step
            try:
                plans = [_Plan(present, begin, self._predict(torch.from_numpy(rows)))] if len(rows) else []
            except BaseException:  # the chunk is still due, with whatever observation comes next
                self._history = before
                raise
            self._plans.extend(plans)
            self._due = present + self.n_action_steps
        action = self._action()
        self._executed.append(action)
        self._previous = dict.fromkeys(self._previous, action)
        self._step += 1
        return action.numpy().copy()

    def _action(self) -> Tensor:
        """(n, action_dim) of this step: what the running chunks hold for it, or else the last action again."""
        first = self.policy.n_obs_steps - 1
        last = first + self.n_action_steps - 1 if self.merge.stalls else self.policy.horizon - 1
        indices = [first + self._step - plan.present for plan in self._plans]
        actions = [
            plan.chunk[:, index]
            for plan, index in zip(self._plans, indices, strict=True)
            if plan.begin <= self._step and index <= last
        ]
        if not actions:
            return self._executed[-1]
        layout = self.policy.spec.layout("x")
        if layout is None or not self.merge.averages:
            return self.merge.combine(actions)
        inside = [layout.encode(action) for action in actions]
        return layout.decode(self.merge.combine(inside))  # a mean of 6D is a rotation

    @torch.no_grad()
    def _predict(self, rows: Tensor) -> Tensor:
        """(n, horizon, action_dim) on the CPU: new chunks of these rows, zeros for the others."""
        device = self.device
        obs = {
            key: torch.stack([past[key][rows.to(past[key].device)] for past in self._history], dim=1).to(device)
            for key in self.policy.spec.cond_shapes
        }  # (rows, n_obs_steps, *shape)
        random = Randomness.from_counts(self.seed, "agent", self._episodes[rows].to(device))
        past = self.policy.n_obs_steps - 1
        unfinished = previous = None
        if self._plans:
            plan = self._plans[-1]
            shift = self._step - plan.present
            left = plan.chunk[rows, shift:]
            if self.warm_start:
                previous = held(left, self.policy.horizon).to(device)
            if self.merge.continues and self._step >= past:
                executed = [action[rows] for action in self._executed][len(self._executed) - past :]
                unfinished = torch.stack([*executed, *left[:, past:].unbind(1)], dim=1).to(device)
        chunk = next_chunk(
            self.policy,
            obs,
            random.stream("chunk", self._step),
            self.how._replace(previous=previous),
            merge=self.merge,
            unfinished=unfinished,
            delay=self.delay,
        )
        chunks = torch.zeros(len(self._episodes), *chunk.shape[1:], device="cpu", dtype=torch.float32)
        chunks[rows] = chunk.float().cpu()
        return chunks

    def _remember(self, obs: dict[str, Tensor]) -> None:
        """Append to the history; the first observation fills it."""
        for _ in range(1 if self._history else self.policy.n_obs_steps):
            self._history.append(obs)


class _OneRobot(VectorAgent):
    """Refuses a chunk that is not finite before it is remembered: no later prediction begins from it."""

    def _predict(self, rows: Tensor) -> Tensor:
        return _finite(super()._predict(rows))


class Agent:
    """A policy that runs one robot: `reset()` at the start of an episode, then `act(obs)` once per control step."""

    def __init__(
        self,
        policy: Policy | nn.Module,
        n_action_steps: int | None = None,
        seed: int = 0,
        sampler: SamplerConfig | None = None,
        warm_start: bool = False,
        merge: MergeConfig | None = None,
        instructions: Instructions | None = None,
        guidance_scale: float | None = None,
    ):
        """See `VectorAgent`. The ways `synchronous` and `ensemble` of merging concern `act` alone."""
        self._one = _OneRobot(
            policy,
            n_action_steps=n_action_steps,
            seed=seed,
            sampler=sampler,
            warm_start=warm_start,
            merge=merge,
            instructions=instructions,
            guidance_scale=guidance_scale,
        )
        self.episode = -1
        self.reset()

    @property
    def policy(self) -> Policy | nn.Module:
        """The policy that acts."""
        return self._one.policy

    def reset(self, episode: int | None = None) -> None:
        """Start the next episode, or the one of a given number, which repeats its noise."""
        self.episode = self.episode + 1 if episode is None else episode
        self._next_step = [0]  # of `infer`; a list of its own, so that a prediction under way counts on in the old one
        self._one.reset([self.episode])

    def act(self, obs: Mapping[str, np.ndarray | Tensor]) -> np.ndarray:
        """The next action.

        Args:
            obs: (*shape) by key, data units; keys the policy does not know are ignored. An instruction may be given as
                a text or as its embedding; the previous action may be left out, see `VectorAgent.act`.

        Returns:
            (action_dim,) float32, data units.

        Raises:
            ValueError: an observation is refused by `check_obs`; nothing of it is remembered.
            RuntimeError: the policy's actions are not finite, which a robot must never execute; nothing is remembered,
                and the next call predicts.
        """
        return self._one.act(self._rows(obs))[0]

    def infer(
        self,
        obs: Mapping[str, Any],
        prefix: np.ndarray | None = None,
        delay: int = 0,
        *,
        step: int | None = None,
    ) -> dict[str, np.ndarray]:
        """A chunk of this episode, for a caller that keeps history and queue itself: a server, or `client.realtime`.

        Args:
            obs: (n_obs_steps, *shape) by key, data units, newest last. An instruction may be one text for all steps.
            prefix: (n, action_dim) the unfinished chunk from the oldest observation's step on, see `next_chunk`. A warm
                start begins from it, its last action held to the horizon.
            delay: how many of its actions from the present on are executed before the new chunk replaces them. Of more
                than a policy with `task.prefix` was trained for, it continues the first `max_delay`.
            step: control step of the newest observation, which with seed and episode determines the noise; None counts
                n_action_steps for every call since `reset`.

        Returns:
            `chunk` (horizon, action_dim) float32, data units.

        Raises:
            ValueError: see `next_chunk` and `check_unfinished`.
            RuntimeError: the chunk is not finite.
        """
        policy, one = self.policy, self._one
        next_step = self._next_step
        step = next_step[0] if step is None else step
        device = one.device
        rows = one.instructions.embedded(self._rows(obs))
        for key, value in obs.items():
            if isinstance(value, str) and key in policy.spec.cond_shapes and policy.spec.kind(key) == "text":
                rows[key] = np.repeat(rows[key][:, None], policy.n_obs_steps, axis=1)
        checked = check_obs(rows, policy.spec, rows=1, steps=[policy.n_obs_steps])
        unfinished = previous = None
        if prefix is not None:
            given = np.array(prefix, np.float32)
            check_unfinished(policy, given, delay)
            unfinished = torch.from_numpy(given)[None].to(device)
            previous = held(unfinished, policy.horizon) if one.warm_start and len(given) else None
            if isinstance(one.merge, Prefix) and policy.max_delay is not None:
                delay = min(delay, policy.max_delay)
        random = Randomness.from_counts(one.seed, "agent", torch.tensor([self.episode], device=device))
        with torch.no_grad():
            chunk = next_chunk(
                policy,
                {key: value.to(device) for key, value in checked.items()},
                random.stream("chunk", step),
                one.how._replace(previous=previous),
                merge=one.merge,
                unfinished=unfinished,
                delay=delay,
            )
        actions = _finite(chunk.float().cpu())[0].numpy()
        next_step[0] = step + one.n_action_steps
        return {"chunk": actions}

    def _rows(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """The observations that the policy reads as the only row of a batch; the others as they are."""
        read = self.policy.spec.cond_shapes
        if not isinstance(obs, Mapping):
            wanted = ", ".join(f"{key} {shape[1:]}" for key, shape in read.items())
            raise TypeError(f"observations are a {type(obs).__name__}; expected a dict of arrays by key: {wanted}")
        return {
            key: value if key not in read else value[None] if isinstance(value, (np.ndarray, Tensor)) else [value]
            for key, value in obs.items()
        }


def _finite(chunks: Tensor) -> Tensor:
    """Chunks (n, horizon, action_dim). Raises RuntimeError if an action is not finite."""
    wrong = chunks[~chunks.isfinite().all(-1)]
    if len(wrong):
        raise RuntimeError(
            f"the policy's action is {wrong[0].tolist()}, which is not finite, though all observations are: the "
            f"weights are damaged, or float16 overflows"
        )
    return chunks
