"""A policy whose predictions for several robots share one batch of the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor, nn

from dp_prior.diffusion.draw import AS_CONFIGURED, Draw
from dp_prior.inference.chunking import Policy
from dp_prior.tensors.observations import policy_reads
from dp_prior.tensors.randomness import Randomness


class BatchedPolicy(nn.Module):
    """A policy as one `Policy` for several threads: `draw` waits for the draws of other threads, and all that wait are
    drawn at once. Noise depends on a row alone, so chunks equal those of single draws, up to rounding.

    Attributes:
        largest: rows of the largest batch so far.
    """

    def __init__(self, policy: Policy, most_rows: int, wait_s: float = 0.005):
        """
        Args:
            most_rows: rows of a batch at most.
            wait_s: seconds to wait for further rows.
        """
        super().__init__()
        self.policy, self._most_rows, self._wait_s, self.largest = policy, most_rows, wait_s, 0
        self.spec, self.horizon, self.max_delay = policy.spec, policy.horizon, policy.max_delay
        self.n_obs_steps, self.n_action_steps = policy.n_obs_steps, policy.n_action_steps
        self.reads = policy_reads(policy)
        self._waiting: list[tuple[dict[str, Tensor], Randomness, Draw, Future[Tensor]]] = []
        self._changed = threading.Condition()
        self._is_drawing = False

    def draw(self, cond: dict[str, Tensor], random: Randomness, how: Draw = AS_CONFIGURED) -> Tensor:
        """See `Policy.draw`; a draw with tensors of its own, such as a prefix, has a batch to itself."""
        result: Future[Tensor] = Future()
        with self._changed:
            self._waiting.append((cond, random, how, result))
            self._changed.notify_all()
            self._changed.wait_for(lambda: result.done() or not self._is_drawing)
            is_first = not result.done()
            self._is_drawing = self._is_drawing or is_first
        if is_first:  # this thread draws for all that wait
            try:
                self._draw_waiting(result)
            finally:
                with self._changed:
                    self._is_drawing = False
                    self._changed.notify_all()
        return result.result()

    def _draw_waiting(self, result: Future[Tensor]) -> None:
        """Draw in batches until a result is there."""
        end = time.monotonic() + self._wait_s
        while not result.done():
            with self._changed:
                self._changed.wait_for(
                    lambda: len(self._waiting) >= self._most_rows, timeout=max(0.0, end - time.monotonic())
                )
                batch = self._taken()
            try:
                chunks = self._drawn(batch)
            except Exception as error:
                for *_, waiting in batch:
                    waiting.set_exception(error)
            else:
                for (*_, waiting), chunk in zip(batch, chunks, strict=True):
                    waiting.set_result(chunk)
            with self._changed:
                self._changed.notify_all()

    def _taken(self) -> list[tuple[dict[str, Tensor], Randomness, Draw, Future[Tensor]]]:
        """Take the draws of the next batch from those that wait."""
        first, *others = self._waiting
        batch, rest = [first], []
        for draw in others:
            if len(batch) < self._most_rows and _is_shareable(draw[2], first[2]):
                batch.append(draw)
            else:
                rest.append(draw)
        self._waiting = rest
        return batch

    def _drawn(self, batch: Sequence[Any]) -> tuple[Tensor, ...]:
        conds, randoms, hows, _ = zip(*batch, strict=True)
        rows = [len(random) for random in randoms]
        self.largest = max(self.largest, sum(rows))
        cond = {key: torch.cat([single[key] for single in conds]) for key in conds[0]}
        with torch.no_grad():
            chunks = self.policy.draw(cond, Randomness(torch.cat([random.keys for random in randoms])), hows[0])
        return chunks.split(rows)


def _is_shareable(how: Draw, first: Draw) -> bool:
    """Whether two draws may share a batch: both without tensors, and with the same sampler and guidance."""
    is_alike = (how.sampler, how.guidance_scale) == (first.sampler, first.guidance_scale)
    return is_alike and _is_plain(how) and _is_plain(first)


def _is_plain(how: Draw) -> bool:
    """Whether a draw has no tensors of its own."""
    tensors = (how.previous, how.known, how.shown, how.prefix, how.target, how.noise)
    return all(tensor is None for tensor in tensors)
