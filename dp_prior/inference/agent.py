"""Agents: a policy, its observation history and its action queue. Evaluation and the robot run the same code.

A chunk is predicted from the newest `n_obs_steps` observations. `n_action_steps` of its actions are executed before the
next prediction, beginning at index `n_obs_steps - 1`, which is the present.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.batch import Spec
from dp_prior.observations import check_obs
from dp_prior.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.diffusion.sampler import SamplerConfig


class Policy(Protocol):
    """The interface of a policy that an agent uses; a policy is also a `torch.nn.Module`."""

    spec: Spec
    horizon: int
    n_obs_steps: int
    n_action_steps: int

    def predict(
        self,
        obs: dict[str, Tensor],
        random: Randomness,
        sampler: SamplerConfig | None = None,
        *,
        previous: Tensor | None = None,
    ) -> Tensor:
        """(B, horizon, action_dim) from observations (B, n_obs_steps, ...) by key; see `DiffusionPolicy.predict`."""


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
    ):
        """
        Args:
            n_action_steps: actions executed before the next prediction; None for the policy's setting.
            seed: determines all noise, together with the episode's number and step.
            sampler: replaces the policy's sampler, for example with fewer steps.
            warm_start: start each prediction but the first from the rest of the last chunk, noised to the sampler's
                `renoise`: fewer steps, and smaller changes from chunk to chunk.

        Raises:
            ValueError: n_action_steps does not fit into the chunk.
        """
        room = policy.horizon - policy.n_obs_steps + 1
        n_action_steps = policy.n_action_steps if n_action_steps is None else n_action_steps
        if not 1 <= n_action_steps <= room:
            raise ValueError(
                f"n_action_steps is {n_action_steps}, but horizon {policy.horizon} and n_obs_steps "
                f"{policy.n_obs_steps} leave room for 1 to {room} actions"
            )
        self.policy = policy
        self.n_action_steps = n_action_steps
        self.seed = int(seed)
        self.sampler = sampler
        self.warm_start = warm_start
        self._episodes: Tensor | None = None

    def reset(self, episodes: Sequence[int]) -> None:
        """Start one episode per number; forgets observations and queued actions."""
        self._episodes = torch.tensor(list(episodes), dtype=torch.int64, device="cpu")
        self._history: deque[dict[str, Tensor]] = deque(maxlen=self.policy.n_obs_steps)
        action_dim = self.policy.spec.x_shape[-1]
        self._queue = np.zeros((len(self._episodes), self.n_action_steps, action_dim), dtype=np.float32)
        self._chunks: Tensor | None = None
        self._step = 0

    def act(self, obs: Mapping[str, np.ndarray | Tensor], active: np.ndarray | None = None) -> np.ndarray:
        """The next action of every row.

        Args:
            obs: (n, *shape) by key, data units; keys the policy does not know are ignored.
            active: (n,) bool, rows to predict for, None for all. The others get a meaningless finite action.

        Returns:
            (n, action_dim) float32, data units.

        Raises:
            ValueError: an observation is refused by `check_obs`; nothing of it is remembered.
            RuntimeError: `reset` was not called.
        """
        if self._episodes is None:
            raise RuntimeError("act was called before reset; a VectorAgent must know its episodes first")
        rows = np.arange(len(self._episodes)) if active is None else np.flatnonzero(active)
        checked = check_obs(obs, self.policy.spec, rows=len(self._episodes), active=None if active is None else rows)
        self._remember({key: value.clone() for key, value in checked.items()})  # environments reuse their arrays
        place = self._step % self.n_action_steps
        if place == 0 and len(rows):
            self._queue[rows] = self._predict(torch.from_numpy(rows))
        self._step += 1
        return self._queue[:, place].copy()

    @torch.no_grad()
    def _predict(self, rows: Tensor) -> np.ndarray:
        """(rows, n_action_steps, action_dim): the executed part of a new chunk, on the CPU."""
        device = next((parameter.device for parameter in self.policy.parameters()), torch.device("cpu"))
        obs = {
            key: torch.stack([past[key][rows.to(past[key].device)] for past in self._history], dim=1).to(device)
            for key in self.policy.spec.cond_shapes
        }  # (rows, n_obs_steps, *shape)
        episodes, rows = self._episodes[rows].to(device), rows.to(device)
        random = Randomness.from_counts(self.seed, "agent", episodes).stream("chunk", self._step)
        chunk = self.policy.predict(obs, random, self.sampler, previous=self._previous(rows))
        if self.warm_start:
            if self._chunks is None:
                self._chunks = chunk.new_zeros(len(self._episodes), *chunk.shape[1:])
            self._chunks[rows] = chunk
        first = self.policy.n_obs_steps - 1
        return chunk[:, first : first + self.n_action_steps].float().cpu().numpy()

    def _previous(self, rows: Tensor) -> Tensor | None:
        """(rows, horizon, action_dim): the last chunk shifted to the present, padded with its last action."""
        if self._chunks is None:
            return None
        left = self._chunks[rows][:, self.n_action_steps :]
        return torch.cat([left, self._chunks[rows][:, -1:].expand(-1, self.n_action_steps, -1)], dim=1)

    def _remember(self, obs: dict[str, Tensor]) -> None:
        """Append to the history; the first observation fills it."""
        for _ in range(1 if self._history else self.policy.n_obs_steps):
            self._history.append(obs)


class Agent:
    """A policy that runs one robot: `reset()` at the start of an episode, then `act(obs)` once per control step."""

    def __init__(
        self,
        policy: Policy | nn.Module,
        n_action_steps: int | None = None,
        seed: int = 0,
        sampler: SamplerConfig | None = None,
        warm_start: bool = False,
    ):
        """See `VectorAgent`."""
        self._one = VectorAgent(
            policy, n_action_steps=n_action_steps, seed=seed, sampler=sampler, warm_start=warm_start
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
        self._one.reset([self.episode])

    def act(self, obs: Mapping[str, np.ndarray | Tensor]) -> np.ndarray:
        """The next action.

        Args:
            obs: (*shape) by key, data units; keys the policy does not know are ignored.

        Returns:
            (action_dim,) float32, data units.

        Raises:
            ValueError: an observation is refused by `check_obs`; nothing of it is remembered.
            RuntimeError: the policy's action is not finite, which a robot must never execute.
        """
        return _finite(self._one.act(self._rows(obs))[0])

    def infer(self, obs: Mapping[str, Any], *, step: int) -> dict[str, np.ndarray]:
        """A chunk of this episode, for a caller that keeps history and queue itself, such as a policy server.

        Args:
            obs: (n_obs_steps, *shape) by key, data units, newest last.
            step: control step of the newest observation; with seed and episode it determines the noise.

        Returns:
            `chunk` (horizon, action_dim) float32, data units.

        Raises:
            ValueError: an observation is refused by `check_obs`.
            RuntimeError: the chunk is not finite.
        """
        policy = self.policy
        device = next((parameter.device for parameter in policy.parameters()), torch.device("cpu"))
        checked = check_obs(self._rows(obs), policy.spec, rows=1, steps=[policy.n_obs_steps])
        random = Randomness.from_counts(self._one.seed, "agent", torch.tensor([self.episode], device=device))
        on_device = {key: value.to(device) for key, value in checked.items()}
        with torch.no_grad():
            chunk = policy.predict(on_device, random.stream("chunk", step), self._one.sampler)
        return {"chunk": _finite(chunk[0].float().cpu().numpy())}

    def _rows(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """The observations that the policy reads as the only row of a batch; the others as they are."""
        return {key: _row(value) if key in self.policy.spec.cond_shapes else value for key, value in obs.items()}


def _finite(actions: np.ndarray) -> np.ndarray:
    """The actions. Raises RuntimeError if one is not finite."""
    if not np.isfinite(actions).all():
        raise RuntimeError(
            f"the policy's action is {actions.tolist()}, which is not finite, though all observations are: the "
            f"weights are damaged"
        )
    return actions


def _row(value: Any) -> Any:
    """An observation as the only row of a batch."""
    return value[None] if isinstance(value, (np.ndarray, Tensor)) else [value]
