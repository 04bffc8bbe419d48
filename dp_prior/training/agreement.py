"""What ranks agree on after each step: whether to stop, and whether too many steps in a row were skipped.

One number each travels between the hosts, in one message; no device is waited for.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator

from dp_prior.clock import Progress
from dp_prior.job.stop import Stop
from dp_prior.training.guard import Guard, NotFiniteError
from dp_prior.training.protocols import Loader, Tracker


class Agreement:
    """Every rank reaches it after the same step, with the same answer."""

    def __init__(
        self, accelerator: Accelerator, loader: Loader, tracker: Tracker, stop: Stop, guard: Guard, limit: int
    ):
        """
        Args:
            limit: skipped steps in a row that end the run.
        """
        self._accelerator, self._loader, self._tracker = accelerator, loader, tracker
        self._stop, self._guard, self._limit = stop, guard, limit
        self._hosts = torch.distributed.new_group(backend="gloo") if accelerator.num_processes > 1 else None

    def reach(self, progress: Progress) -> bool:
        """Whether any rank was asked to stop.

        Raises:
            NotFiniteError: on all ranks, once one of them has seen too many skipped steps in a row.
        """
        if self._stop.deadline is not None:
            self._stop.deadline.stepped()
        news = torch.tensor([self._stop.encode(self._accelerator.process_index), self._look(progress)])
        if self._hosts is not None:
            torch.distributed.all_reduce(news, torch.distributed.ReduceOp.MAX, group=self._hosts)
        asked, last_skipped = news.tolist()
        if last_skipped:
            raise self._too_many(last_skipped, progress)
        return self._stop.accept(asked)

    def _look(self, progress: Progress) -> int:
        """Report steps that were skipped. Returns the step at which they were too many in a row, else 0."""
        for step, samples_seen, in_a_row in self._guard.look():
            if self._accelerator.scaler is None or in_a_row > 1:  # a loss scaler finds its scale by overflowing once
                what = f"step {step} was skipped, the {in_a_row}. in a row: its gradient was not finite"
                ids = self._loader.ids(samples_seen).tolist()
                self._tracker.log_error(f"{what}; its samples: {ids}", progress)
            if in_a_row >= self._limit:
                return step
        return 0

    def _too_many(self, step: int, progress: Progress) -> NotFiniteError:
        behind = progress.global_step - step
        first = progress.samples_seen - (behind + self._limit) * self._loader.global_batch_size
        ids = self._loader.ids(max(0, first)).tolist()
        return NotFiniteError(
            f"the gradient was not finite in {self._limit} optimizer steps in a row, up to step {step}; none of them "
            f"changed the weights. The first of these batches held samples {ids[:8]}..., and events.jsonl lists them "
            f"all. Look at the data and the learning rate; the last good checkpoint is kept.",
            first_step=step - self._limit + 1,
        )
