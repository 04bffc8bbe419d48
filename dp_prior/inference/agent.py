"""Agent: a policy in this process that runs one robot. Evaluation runs the same code, see `Plans` and `VectorAgent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from dp_prior.inference.chunking import MergeConfig, Policy, Prefix, held
from dp_prior.inference.instructions import Instructions
from dp_prior.inference.plans import Plans
from dp_prior.tensors.observations import check_obs, policy_reads
from dp_prior_client.onboard.broker import AgentOptions, ChunkBroker

if TYPE_CHECKING:
    from dp_prior.diffusion.sampler import SamplerConfig


class _FinitePlans(Plans):
    """Refuses a chunk that is not finite before it is stored, so that no later prediction begins from such a chunk."""

    def draw(self, *arguments: Any) -> Tensor:
        """See `Plans.draw`. Raises RuntimeError if an action is not finite."""
        chunks = super().draw(*arguments)
        wrong = chunks[~chunks.isfinite().all(-1)]
        if len(wrong):
            raise RuntimeError(
                f"the policy's action is {wrong[0].tolist()}, which is not finite, though all observations are: the "
                f"weights are damaged, or float16 overflows"
            )
        return chunks


class Agent(ChunkBroker):
    """A policy in this process that runs one robot: `reset()` at the start of an episode, then `act(obs)` once per
    control step. Observations may be tensors."""

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
        **options: Unpack[AgentOptions],
    ):
        """See `Plans` and `ChunkBroker`. Merging by `synchronous` and `ensemble` concerns `act`, not `infer`."""
        self.policy = policy
        self._plans = _FinitePlans(
            policy, n_action_steps, seed, sampler, warm_start, merge, instructions, guidance_scale
        )
        if getattr(policy, "region", None) is not None:
            policy.region.prepare(policy.spec, self._plans.draw)
        super().__init__(policy_reads(policy), policy.n_obs_steps, self._plans.n_action_steps, **options)

    def reset(self, episode: int | None = None) -> None:
        """See `ChunkBroker.reset`."""
        super().reset(episode)
        self._plans.reset([self.episode])

    def drop_queued_actions(self) -> None:
        """See `ChunkBroker.drop_queued_actions`; the next chunk continues none of the chunks before."""
        super().drop_queued_actions()
        self._plans.restart(self._step, [torch.from_numpy(command)[None] for command in self._commands])

    def _predict(
        self, obs: Mapping[str, Any], prefix: np.ndarray | None = None, delay: int = 0, *, step: int | None = None
    ) -> dict[str, np.ndarray]:
        """See `ChunkBroker._predict`.

        Args:
            prefix: also what a warm start begins from, its last action held to the horizon; see `next_chunk`.
            delay: if longer than a policy with `task.prefix` was trained for, the first `max_delay` are continued.

        Raises:
            ValueError: see `next_chunk`, `check_unfinished` and `SafetyMonitor`.
            RuntimeError: the chunk is not finite.
        """
        policy, plans, counter = self.policy, self._plans, self._counter
        step = counter.step if step is None else step
        rows = plans.embedded(self._row(obs))
        for key, value in obs.items():
            if isinstance(value, str) and key in policy.spec.cond_shapes and policy.spec.kind(key) == "text":
                rows[key] = np.repeat(rows[key][:, None], policy.n_obs_steps, axis=1)
        checked = check_obs(rows, policy.spec, rows=1, steps=[policy.n_obs_steps])
        self.monitor.check_obs({key: checked[key].cpu().numpy() for key in self.monitor.keys})
        self._check_newest(obs)
        unfinished = previous = None
        if prefix is not None:
            actions = np.array(prefix, np.float32)
            check_unfinished(policy, actions, delay)
            unfinished = torch.from_numpy(actions)[None]
            previous = held(unfinished, policy.horizon) if plans.warm_start and len(actions) else None
            if isinstance(plans.merge, Prefix) and policy.max_delay is not None:
                delay = min(delay, policy.max_delay)
        chunk = plans.draw(checked, torch.tensor([self.episode], device="cpu"), step, unfinished, delay, previous)
        counter.step = step + self.n_action_steps
        return {"chunk": chunk[0].numpy()}

    def _row(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """See `ChunkBroker._row`; accepts tensors."""
        return super()._row(obs) | {key: obs[key][None] for key in self.reads.observations if torch.is_tensor(obs[key])}

    def _frames(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """See `ChunkBroker._frames`; accepts tensors on any device."""
        tensors = {key: obs[key] for key in self.monitor.frames.keys if torch.is_tensor(obs.get(key))}
        arrays = {key: frame.detach().cpu().numpy() for key, frame in tensors.items()}
        return super()._frames({**obs, **arrays})

    def _checked(self, obs: Mapping[str, Any]) -> dict[str, np.ndarray]:
        checked = check_obs(self._plans.embedded(self._row(obs)), self.policy.spec, rows=1)
        return {key: value[0].cpu().numpy().copy() for key, value in checked.items()}

    def _array(self, key: str, value: Any) -> np.ndarray:
        return super()._array(key, value.cpu() if torch.is_tensor(value) else value)

    def _actions(self, obs: dict[str, np.ndarray]) -> list[np.ndarray]:
        """See `ChunkBroker._actions`; of an ensemble they are means of several chunks."""
        row = torch.zeros(1, dtype=torch.int64, device="cpu")
        self._plans.predict({key: torch.from_numpy(value)[None] for key, value in obs.items()}, row)
        return [self._plans.next()[0].numpy() for _ in range(self.n_action_steps)]


def check_unfinished(policy: Policy, unfinished: np.ndarray, delay: int) -> None:
    """Whether one robot's unfinished chunk and its delay fit the policy.

    Args:
        unfinished: (n, action_dim), see `next_chunk`.

    Raises:
        ValueError: it has a wrong shape or is not finite, or the delay leaves nothing to execute.
    """
    past, (horizon, action_dim) = policy.n_obs_steps - 1, policy.spec.x_shape
    if not 0 <= delay < horizon - past:
        raise ValueError(
            f"delay is {delay}, but a chunk has {horizon - past} actions from the present on; expected 0 to "
            f"{horizon - past - 1}, so that one is left to execute"
        )
    fits = unfinished.ndim == 2 and past + delay <= len(unfinished) <= horizon and unfinished.shape[1] == action_dim
    if not fits:
        raise ValueError(
            f"the unfinished chunk has shape {unfinished.shape}; expected (n, {action_dim}) with n from {past + delay} "
            f"(n_obs_steps - 1 + delay) to {horizon} (horizon)"
        )
    if not np.isfinite(unfinished).all():
        raise ValueError("the unfinished chunk holds a number that is not finite; give the actions as executed")
