"""Agents: a policy plus observation history plus action queue. The published score and the robot run this same code.

A chunk is predicted from the newest `n_obs_steps` observations; of it the actions from index `n_obs_steps - 1` on (the
first that belongs to the present) are executed, `n_action_steps` of them, before the next prediction.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.batch import Spec
from dp_prior.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.diffusion.sampler import SamplerConfig


class Policy(Protocol):
    """What an agent needs of a policy, which is also a `torch.nn.Module`."""

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
    """One policy in n episodes that run in lockstep, a row each.

    What a row does depends on the seed, its episode number and its observations; not on its neighbours beyond the
    rounding of a matrix product.
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
            n_action_steps: actions executed before the next prediction; None for the policy's own.
            seed: with an episode's number and step it fixes all noise.
            sampler: replaces the policy's own, for example with fewer steps.
            warm_start: begin each prediction but the first from what is left of the last one, noised as far as the
                sampler's `renoise` says: fewer steps, and a plan that changes less from chunk to chunk.

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
        self.obs_shapes = {key: shape[1:] for key, shape in policy.spec.cond_shapes.items()}
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
            active: (n,) bool, rows to go on predicting for, None for all. The others get a meaningless finite action.

        Returns:
            (n, action_dim) float32, data units.

        Raises:
            ValueError: an observation is missing, no array of numbers, or has the wrong shape.
            RuntimeError: `reset` was not called.
        """
        if self._episodes is None:
            raise RuntimeError("act was called before reset; a VectorAgent must know its episodes first")
        self._remember(self._checked(obs))
        place = self._step % self.n_action_steps
        if place == 0:
            rows = np.arange(len(self._episodes)) if active is None else np.flatnonzero(active)
            if len(rows):
                self._queue[rows] = self._predict(torch.from_numpy(rows))
        self._step += 1
        return self._queue[:, place].copy()

    @torch.no_grad()
    def _predict(self, rows: Tensor) -> np.ndarray:
        """(rows, n_action_steps, action_dim): the executed part of a new chunk. The copy home is the only wait."""
        device = next((parameter.device for parameter in self.policy.parameters()), torch.device("cpu"))
        obs = {
            key: torch.stack([past[key][rows.to(past[key].device)] for past in self._history], dim=1).to(
                device, torch.float32
            )
            for key in self.obs_shapes
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
        """(rows, horizon, action_dim): the last chunk as seen from now, its last action held to the end."""
        if self._chunks is None:
            return None
        left = self._chunks[rows][:, self.n_action_steps :]
        return torch.cat([left, self._chunks[rows][:, -1:].expand(-1, self.n_action_steps, -1)], dim=1)

    def _remember(self, obs: dict[str, Tensor]) -> None:
        """Append to the history; before the first observation it was always like the first."""
        for _ in range(1 if self._history else self.policy.n_obs_steps):
            self._history.append(obs)

    def _checked(self, obs: Mapping[str, np.ndarray | Tensor]) -> dict[str, Tensor]:
        """Copies of the observations that the policy reads, for environments write into their arrays again."""
        missing = [key for key in self.obs_shapes if key not in obs]
        if missing:
            close = difflib.get_close_matches(missing[0], list(obs), n=1)
            raise ValueError(
                f"observation {missing[0]!r} is missing; the policy reads {_listing(self.obs_shapes)}, "
                f"found {', '.join(obs) or 'none'}." + (f" Is {close[0]!r} meant?" if close else "")
            )
        checked = {}
        for key, shape in self.obs_shapes.items():
            value = _copied(_numbers(key, obs[key]))
            if tuple(value.shape[1:]) != shape:
                raise ValueError(
                    f"observation {key!r} has shape {tuple(value.shape[1:])}; the policy was trained on {shape}"
                )
            if len(value) != len(self._episodes):
                raise ValueError(
                    f"observation {key!r} has {len(value)} rows, but the agent was reset for {len(self._episodes)} "
                    f"episodes; call reset with one episode number per row"
                )
            checked[key] = value
        return checked


class Agent:
    """A policy that runs one robot: `reset()` where an episode starts, then `act(obs)` once per control step."""

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
        """Start an episode: the next one, or that of a given number, whose noise is then repeated."""
        self.episode = self.episode + 1 if episode is None else episode
        self._one.reset([self.episode])

    def act(self, obs: Mapping[str, np.ndarray | Tensor]) -> np.ndarray:
        """The next action.

        Args:
            obs: (*shape) by key, data units; keys the policy does not know are ignored.

        Returns:
            (action_dim,) float32, data units.

        Raises:
            ValueError: an observation is missing, no array of finite numbers, or has the wrong shape; nothing changed.
            RuntimeError: the policy's action is not finite; a robot must not be given that.
        """
        read = self._one.obs_shapes
        batched = {key: _numbers(key, value)[None] if key in read else value for key, value in obs.items()}
        for key in read:
            if key in batched and not _is_finite(batched[key]):
                raise ValueError(
                    f"observation {key!r} holds NaN or infinity. It is not remembered: act can be called again with a "
                    f"good one"
                )
        action = self._one.act(batched)[0]
        if not np.isfinite(action).all():
            raise RuntimeError(
                f"the policy's action is {action.tolist()}, which is not finite, though all observations are: the "
                f"weights are damaged"
            )
        return action


def _numbers(key: str, value: Any) -> np.ndarray | Tensor:
    """An observation as it came, or as an array where it came as a list; only numbers get through."""
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"observation {key!r} is no array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise ValueError(f"observation {key!r} holds {array.dtype}, expected numbers")
    return array


def _is_finite(value: np.ndarray | Tensor) -> bool:
    if isinstance(value, Tensor):
        return not value.is_floating_point() or bool(value.isfinite().all())
    return value.dtype.kind != "f" or bool(np.isfinite(value).all())


def _copied(value: np.ndarray | Tensor) -> Tensor:
    """Float32 in memory of its own, or uint8 where it was; arrays may have any layout, width and byte order."""
    if isinstance(value, Tensor):
        return value.detach().to(value.dtype if value.dtype == torch.uint8 else torch.float32, copy=True)
    return torch.from_numpy(np.array(value, np.uint8 if value.dtype == np.uint8 else np.float32, order="C"))


def _listing(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {tuple(shape)}" for key, shape in shapes.items()) or "none"
