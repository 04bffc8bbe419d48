"""Plans: the chunks that episodes in lockstep execute, and how a chunk follows the one under way."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from dp_prior.diffusion.draw import Draw
from dp_prior.files.entry_points import listeners
from dp_prior.inference.chunking import MergeConfig, Naive, Policy, delay_fault, held, next_chunk
from dp_prior.tensors.compilation import COMPILED
from dp_prior.tensors.randomness import Randomness
from dp_prior_client.onboard.action_limits import checked_action_steps

if TYPE_CHECKING:
    from dp_prior.diffusion.sampler import SamplerConfig
    from dp_prior.inference.instructions import Instructions


class _Plan(NamedTuple):
    """A chunk and when it is executed."""

    present: int
    """Control step that its action at index n_obs_steps - 1 is meant for."""

    begin: int
    """First control step at which it may be executed."""

    chunk: Tensor
    """(n, horizon, action_dim) on the CPU."""


class Plans:
    """The chunks of n episodes that run in lockstep, one row each: `predict` when `is_due`, and `next` every step.

    A row's actions depend on the seed, its episode number and its observations, and on other rows only through rounding
    in matrix products.
    """

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
        delay: int = 0,
    ):
        """
        Args:
            n_action_steps: actions executed before the next prediction; None for the policy's setting.
            seed: determines all noise, together with the episode's number and step.
            sampler: replaces the policy's sampler, for example with fewer steps.
            warm_start: start each prediction but the first from the rest of the last chunk, noised to the sampler's
                `renoise`: fewer steps, and smaller changes from chunk to chunk.
            merge: how a chunk follows the unfinished one, see `dp_prior.inference.chunking`; None for naive.
            instructions: embeds texts among the observations; None for the model of the policy's spec.
            guidance_scale: replaces the policy's, see `Draw`.
            delay: control steps from an observation to the first executed action of its chunk, to simulate a robot that
                acts meanwhile; the first chunk of an episode is waited for.

        Raises:
            ValueError: n_action_steps or delay does not fit into the chunk, or a delay is given without merge.
        """
        if isinstance(policy, str | PathLike):
            loading = f'load_policy("{policy}")'
            raise TypeError(f"policy is a {type(policy).__name__}; expected a policy, as {loading} gives")
        if isinstance(sampler, str | Mapping):
            expected = "an object of dp_prior.diffusion.sampler, for example DDIM(steps=8)"
            raise TypeError(f"sampler is a {type(sampler).__name__}; expected {expected}")
        self.n_action_steps = checked_action_steps(policy, n_action_steps)
        fault = delay_fault(merge, delay, self.n_action_steps, policy.horizon - policy.n_obs_steps + 1)
        if fault:
            raise ValueError(fault)
        self.policy = policy
        if getattr(policy, "is_loaded", False):
            for accelerate in listeners("runtimes"):
                accelerate(policy)
        if self.device.type in COMPILED:
            for compile_network in listeners("compilers"):
                compile_network(policy, sampler)
        self.seed = int(seed)
        self.how = Draw(sampler, guidance_scale=guidance_scale)
        self.warm_start = warm_start
        self.merge = merge or Naive()
        self.delay = delay
        self.instructions = instructions
        if instructions is None and policy.spec.texts:
            from dp_prior.inference.instructions import Instructions

            self.instructions = Instructions(policy.spec)
        self._episodes: Tensor | None = None

    @property
    def device(self) -> torch.device:
        """Where the policy predicts; the CPU for one without parameters."""
        return next((parameter.device for parameter in self.policy.parameters()), torch.device("cpu"))

    def embedded(self, obs: Mapping[str, Any]) -> dict[str, Any]:
        """The observations with embeddings in place of texts; see `Instructions`."""
        return {**obs} if self.instructions is None else self.instructions.embedded(obs)

    @property
    def is_due(self) -> bool:
        """Whether this step needs a prediction."""
        return self._step == self._due

    def reset(self, episodes: Sequence[int]) -> None:
        """Start one episode per number; forgets all chunks."""
        self._episodes = torch.tensor(list(episodes), dtype=torch.int64, device="cpu")
        nothing = torch.zeros(len(self._episodes), self.policy.spec.x_shape[-1], device="cpu", dtype=torch.float32)
        self._executed = deque([nothing], maxlen=self.policy.n_obs_steps + self.n_action_steps)
        self._plans: deque[_Plan] = deque(maxlen=2 + self.policy.horizon // self.n_action_steps)
        self._step = self._due = 0

    def restart(self, step: int, executed: Sequence[Tensor]) -> None:
        """Go on at a step without the chunks predicted so far.

        Args:
            step: the next control step, which needs a prediction.
            executed: (n, action_dim) of the last steps, newest last.
        """
        self._plans.clear()
        self._executed.clear()
        self._executed.extend(executed)
        self._step = self._due = step

    def predict(self, obs: dict[str, Tensor], rows: Tensor) -> None:
        """Predict the chunks that are due; after an error they still are.

        Args:
            obs: (len(rows), n_obs_steps, *shape) by key.
            rows: (m,) int64 rows to predict for, in order. The others get a meaningless finite action.
        """
        begin = self._step + (self.delay if self._plans else 0)  # the robot waits for its first chunk
        present = begin if self.merge.stalls else self._step
        if len(rows):
            self._plans.append(_Plan(present, begin, self._chunks(obs, rows)))
        self._due = present + self.n_action_steps

    def drop_queued_actions(self) -> None:
        """Forget all chunks, so that a prediction is due, which continues none of them."""
        if self._episodes is not None:  # before the first episode nothing is planned
            self._plans.clear()
            self._due = self._step

    def next(self) -> Tensor:
        """(n, action_dim) of this step, merged from the running chunks; without these the last action again."""
        self._executed.append(self._action())
        self._step += 1
        return self._executed[-1]

    def _action(self) -> Tensor:
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

    def _chunks(self, obs: dict[str, Tensor], rows: Tensor) -> Tensor:
        """(n, horizon, action_dim) on the CPU: new chunks of these rows, zeros for the others."""
        past = self.policy.n_obs_steps - 1
        unfinished = previous = None
        if self._plans:
            plan = self._plans[-1]
            remainder = plan.chunk[rows, self._step - plan.present :]
            if self.warm_start and remainder.shape[1]:  # nothing is left of a chunk that was executed to its end
                previous = held(remainder, self.policy.horizon)
            if self.merge.continues and self._step >= past:
                executed = [action[rows, None] for action in self._executed][len(self._executed) - past :]
                unfinished = torch.cat([*executed, remainder[:, past:]], dim=1)
        chunk = self.draw(obs, self._episodes[rows], self._step, unfinished, self.delay, previous)
        chunks = torch.zeros(len(self._episodes), *chunk.shape[1:], device="cpu", dtype=torch.float32)
        chunks[rows] = chunk
        return chunks

    @torch.no_grad()
    def draw(
        self,
        obs: dict[str, Tensor],
        episodes: Tensor,
        step: int,
        unfinished: Tensor | None,
        delay: int,
        previous: Tensor | None,
    ) -> Tensor:
        """(m, horizon, action_dim) float32 on the CPU: chunks of some episodes; see `next_chunk`."""
        device = self.device
        random = Randomness.from_counts(self.seed, "agent", episodes.to(device)).stream("chunk", step)
        chunk = next_chunk(
            self.policy,
            {key: obs[key].to(device) for key in self.policy.spec.cond_shapes},
            random,
            self.how._replace(previous=None if previous is None else previous.to(device)),
            merge=self.merge,
            unfinished=None if unfinished is None else unfinished.to(device),
            delay=delay,
        )
        return chunk.float().cpu()
