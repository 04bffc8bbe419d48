"""Chunking in real time: the robot goes on acting while the next chunk is predicted, d control steps long.

A chunk predicted from the observation of step t replaces the last one at step t + d, from its index n_obs_steps - 1 + d
on. `next_chunk` predicts the new chunk, given the unfinished chunk; the records of `MergeConfig` are the ways of
merging both.
With n_action_steps s and room = horizon - n_obs_steps + 1 actions from the present on: d <= s <= room - d.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config
from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.diffusion.target import Target
from dp_prior.tensors.batch import Spec
from dp_prior.tensors.randomness import Randomness


class Policy(Protocol):
    """The interface of a policy that an agent uses; a policy is also a `torch.nn.Module`."""

    spec: Spec
    horizon: int
    n_obs_steps: int
    n_action_steps: int
    max_delay: int | None
    """Longest delay that it was trained to continue a chunk at; None for a policy that continues none."""

    def draw(self, cond: dict[str, Tensor], random: Randomness, how: Draw) -> Tensor:
        """(B, horizon, action_dim) from observations (B, n_obs_steps, ...) by key; see `DiffusionPolicy.predict`."""


class _Merge(Config):
    """How a new chunk and the unfinished one are merged."""

    stalls: ClassVar[bool] = False
    """Whether the robot holds its last action while a chunk is predicted."""

    continues: ClassVar[bool] = False
    """Whether a prediction depends on the unfinished chunk."""

    averages: ClassVar[bool] = False
    """Whether `combine` computes an action that no chunk holds."""

    def continued(self, how: Draw, policy: Policy, unfinished: Tensor, delay: int) -> Draw:
        """How a chunk that follows the unfinished one is drawn; by default as any other.

        Args:
            unfinished: (B, n, action_dim), see `next_chunk`.
        """
        return how

    def combine(self, actions: Sequence[Tensor]) -> Tensor:
        """(n, action_dim) the action of a step, from the actions of the chunks for this step, oldest first."""
        return actions[-1]


class Naive(_Merge):
    """The new chunk is predicted from observations alone, and the robot jumps to it."""

    type: Literal["naive"] = "naive"


class Synchronous(_Merge):
    """The robot holds its last action for the d steps of a prediction: for position targets, not for velocities."""

    type: Literal["synchronous"] = "synchronous"

    stalls: ClassVar[bool] = True


class Guided(_Merge):
    """Sampling is guided toward the unfinished chunk, on any trained policy: inference-time real-time chunking (Black
    et al. 2025, arXiv:2506.07339). A prediction costs a backward pass of the network at every sampling step."""

    type: Literal["guided"] = "guided"

    continues: ClassVar[bool] = True

    max_weight: float = Field(default=5.0, ge=0)
    """Largest weight of the guidance, beta in the paper; 0 is naive."""

    def continued(self, how: Draw, policy: Policy, unfinished: Tensor, delay: int) -> Draw:
        """See `_Merge.continued`."""
        if next(policy.parameters(), None) is None or torch.is_inference_mode_enabled():
            other = "'naive'" if policy.max_delay is None else "'prefix' or 'naive'"
            raise ValueError(
                "merge 'guided' differentiates the network, which this policy or torch.inference_mode does not allow; "
                f"use a policy loaded from a checkpoint (and torch.no_grad), or merge {other}"
            )
        length = unfinished.shape[1]
        values = F.pad(unfinished, (0, 0, 0, policy.horizon - length))
        weights = soft_weights(policy.horizon, policy.n_obs_steps - 1, delay, length).to(values)
        return how._replace(target=Target(values, weights, self.max_weight))


class Prefix(_Merge):
    """The policy continues the actions under way, as it was trained to: training-time chunking, see `task.prefix`."""

    type: Literal["prefix"] = "prefix"

    continues: ClassVar[bool] = True

    def continued(self, how: Draw, policy: Policy, unfinished: Tensor, delay: int) -> Draw:
        """See `_Merge.continued`."""
        return how._replace(prefix=unfinished[:, : policy.n_obs_steps - 1 + delay]) if delay else how


class Ensemble(_Merge):
    """The action of a step is the mean over all chunks that reach the step, the i-th oldest weighted by exp(-decay i):
    temporal ensembling (Zhao et al. 2023, arXiv:2304.13705, algorithm 2, where n_action_steps is 1)."""

    type: Literal["ensemble"] = "ensemble"

    averages: ClassVar[bool] = True

    decay: float = 0.01
    """Above 0 older chunks count more, below 0 newer ones."""

    def combine(self, actions: Sequence[Tensor]) -> Tensor:
        """See `_Merge.combine`."""
        weights = actions[0].new_tensor([math.exp(-self.decay * i) for i in range(len(actions))])
        return torch.tensordot(weights / weights.sum(), torch.stack(list(actions)), 1)


MergeConfig = Annotated[Naive | Synchronous | Guided | Prefix | Ensemble, Field(discriminator="type")]


def soft_weights(horizon: int, present: int, delay: int, length: int) -> Tensor:
    """(horizon, 1) weights of the actions of the unfinished chunk (arXiv:2506.07339, equation 5).

    1 up to the last action executed before the new chunk begins, then a fall that ends with the unfinished chunk.

    Args:
        present: index of the present action; earlier ones are executed and count fully.
        length: of the unfinished chunk.
    """
    n_unfinished = length - present
    c = ((n_unfinished - torch.arange(-present, horizon - present)) / (n_unfinished - delay + 1)).clamp(0, 1)
    return (c * torch.expm1(c) / math.expm1(1))[:, None]


def delay_fault(merge: MergeConfig | None, delay: int, n_action_steps: int, room: int) -> str | None:
    """Why a policy cannot act with this delay, or None.

    Args:
        room: actions of a chunk from the present on.
    """
    if delay and merge is None:
        return f"delay is {delay}, but nothing says how a late chunk is merged; set merge, for example to 'naive'"
    if delay < 0:
        return f"delay is {delay}; it is a number of control steps, 0 or more"
    if merge is not None and not merge.stalls and not delay <= n_action_steps <= room - delay:
        which = (
            f"n_action_steps must lie from {delay} to {room - delay}, and is {n_action_steps}"
            if 2 * delay <= room
            else f"no n_action_steps is possible; the longest delay is {room // 2}"
        )
        return (
            f"with delay {delay} {which}: a chunk holds {room} actions from the present on, of which the first {delay} "
            f"are past when it arrives"
        )
    return None


def next_chunk(
    policy: Policy,
    obs: dict[str, Tensor],
    random: Randomness,
    how: Draw = AS_CONFIGURED,
    *,
    merge: MergeConfig | None = None,
    unfinished: Tensor | None = None,
    delay: int = 0,
) -> Tensor:
    """Predict the chunks that follow unfinished ones.

    Args:
        obs: (B, n_obs_steps, ...) by key, data units, newest last.
        random: B rows.
        how: the chunks are drawn, apart from what `merge` adds.
        merge: None for naive.
        unfinished: (B, n, action_dim) in data units: the action of the oldest observation's step, and so on: the first
            n_obs_steps - 1 are executed, all others under way or planned; see `check_unfinished`. None where there are
            none.
        delay: actions from the present on that will be executed before the new chunk replaces them.

    Returns:
        (B, horizon, action_dim) in data units; index n_obs_steps - 1 + delay is the first to be executed.

    Raises:
        ValueError: an observation is refused, or the policy cannot merge in this way.
    """
    if merge is not None and merge.continues and unfinished is not None:
        how = merge.continued(how, policy, unfinished, delay)
    return policy.draw(obs, random, how)


def held(chunk: Tensor, horizon: int) -> Tensor:
    """(B, horizon, action_dim) a chunk, at least one action long, whose last action is held to the horizon."""
    return torch.cat([chunk, chunk[:, -1:].expand(-1, horizon - chunk.shape[1], -1)], dim=1)
