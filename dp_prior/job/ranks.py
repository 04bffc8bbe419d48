"""The ranks of a run: `Ranks` wraps an Accelerator and is used for all communication with other ranks.

Collectives have a short time limit, so that a hanging rank is found. Work of unknown length, such as a rollout or the
last save, must therefore not lie between two collectives: the ranks first `meet`, which has no timeout, and the working
rank sends heartbeats with `beat`.
"""

from __future__ import annotations

import contextlib
import datetime
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn

from dp_prior.files.left_behind import left_behind
from dp_prior.job.accelerator import meeting
from dp_prior.job.stop import Abandoned, Stop, StoppedEarly
from dp_prior.job.work import Work

if TYPE_CHECKING:
    from dp_prior.job.stop import Verdict
    from dp_prior.job.watch.heartbeat import Heartbeat

T = TypeVar("T")


class Ranks:
    """This process among the ranks of its run. With a single process every method is trivial.

    Attributes:
        accelerator: provides autocast, gradient exchange and loss scaler to the training step.
        process_index, num_processes, is_main_process, device: named as in accelerate, so that functions of ranks also
            accept an `Accelerator`.
        num_local_processes: ranks of this machine, this one included.
        stop: the stop request of this process.
        work: how much of an evaluation is done; a trainer shows it with its tracker, on the main rank.
    """

    def __init__(self, accelerator: Accelerator, stop: Stop | None = None):
        self.accelerator = accelerator
        self.process_index, self.num_processes = accelerator.process_index, accelerator.num_processes
        self.is_main_process, self.device = accelerator.is_main_process, accelerator.device
        self.stop = stop or Stop()
        self.work = Work()
        self.num_local_processes = 1
        self._hosts: dist.ProcessGroup | None = None
        self._heartbeat: Heartbeat | None = None
        if self.num_processes > 1:
            meeting(accelerator.init_handler, self.stop).join(self._connect)

    def _connect(self) -> None:
        """Connect the devices by a first collective, as NCCL does late, and the hosts by a gloo group."""
        dist.all_reduce(torch.zeros((), device=self.device))
        self._hosts = dist.new_group(backend="gloo")
        machine = platform.node()
        self.num_local_processes = self.tell_all(machine).count(machine)

    @property
    def facts(self) -> dict[str, Any]:
        """How accelerate set up this start, under accelerate's names, as JSON values."""
        state = self.accelerator.state
        return {
            "distributed_type": state.distributed_type.value,
            "num_processes": self.num_processes,
            "mixed_precision": self.accelerator.mixed_precision,
            "device": str(self.device),
            "backend": state.backend,
        }

    def distributed(self, model: nn.Module) -> nn.Module:
        """The model, on this rank's device, such that its backward pass averages gradients over ranks.

        Parameters without a gradient stay without one. Networks of this package have none, and the search for them is
        left out.
        """
        handler = self.accelerator.ddp_handler
        if handler is not None and any(_is_foreign(part) for part in model.modules()):
            handler.find_unused_parameters = True
        return self.accelerator.prepare_model(model, device_placement=False)

    # collectives: every rank calls them, in the same order

    def gather(self, tensor: Tensor) -> Tensor:
        """(n, ...) on every rank -> (ranks * n, ...) on every rank, in order of rank. Calls `meet(may_leave=True)`."""
        self.meet(may_leave=True)
        return self.accelerator.gather(tensor)

    def share(self, tensors: list[Tensor], rank: int) -> None:
        """Overwrite tensors, whose shapes and types are the same on every rank, with those of one rank."""
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor.detach() for tensor in tensors if tensor.dtype == dtype]
            values = torch.cat([tensor.flatten() for tensor in alike])
            dist.broadcast(values, src=rank)
            parts = values.split([tensor.numel() for tensor in alike])
            torch._foreach_copy_(alike, [part.view_as(tensor) for part, tensor in zip(parts, alike, strict=True)])

    def send_to_main(self, tensor: Tensor) -> None:
        """Send a tensor to the main rank, which calls `receive`; the others need not call either."""
        dist.send(tensor.contiguous(), dst=0)

    def receive(self, shape: torch.Size, dtype: torch.dtype, rank: int) -> Tensor:
        """A tensor that a rank sends, of the shape and type that it has there."""
        received = torch.empty(shape, dtype=dtype, device=self.device)
        dist.recv(received, src=rank)
        return received

    def tell_all(self, value: T) -> list[T]:
        """The values of all ranks, which `pickle` can store, in order of rank."""
        values = [value] * self.num_processes
        if self._hosts is not None:
            dist.all_gather_object(values, value, group=self._hosts)
        return values

    def exchange(self, *numbers: float) -> Tensor:
        """(ranks, n) float64: the numbers of each rank, on the host. Does not wait for a device."""
        row = torch.tensor(numbers, dtype=torch.float64)
        if self._hosts is None:
            return row[None]
        rows = [torch.empty_like(row) for _ in range(self.num_processes)]
        dist.all_gather(rows, row, group=self._hosts)
        return torch.stack(rows)

    def meet(self, may_leave: bool = False) -> None:
        """Wait until all ranks have arrived, as long as they send heartbeats.

        Args:
            may_leave: raise `Abandoned` on all ranks if the run is asked to stop.
        """
        if self._heartbeat is not None:
            self._heartbeat.meet(may_leave)
        elif may_leave:
            self.beat()

    def decide(self, choose: Callable[[], T], patience_s: float | None = None) -> T:
        """Run `choose` on the main rank and return its result, or raise its error, on all ranks.

        Ranks thus never diverge, for example because of a file that only one rank can read.

        Args:
            patience_s: how long the other ranks wait before heartbeats begin; None for the limit of a collective.
        """
        outcome: list = [None, None, None]
        cause: Exception | None = None
        if self.is_main_process:
            try:
                with self.busy():
                    outcome[0] = choose()
            except Exception as error:  # not swallowed: raised below, on every rank
                cause = error
                outcome[1:] = type(error), str(error)  # an error with custom arguments does not pickle
        if self.num_processes > 1:
            if patience_s is not None:
                self._await_main(patience_s)
            self.meet()
            broadcast_object_list(outcome)
        result, kind, message = outcome
        if kind is None:
            return result
        if cause is None:
            cause = kind.__new__(kind, message)
            cause.is_relayed = True  # this rank's command does not print the main rank's message again
        raise cause

    def decide_unless_stopped(self, choose: Callable[[], T], patience_s: float | None = None) -> T:
        """Decide like `decide`; if the main rank is asked to stop meanwhile, all ranks end.

        Args:
            choose: raises StoppedEarly then, see `Stop.leaving`.
            patience_s: see `decide`.

        Raises:
            StoppedEarly: on all ranks.
        """

        def chosen() -> tuple[int, T | None]:
            try:
                return 0, choose()
            except StoppedEarly:
                return self.stop.encode(self.process_index), None

        code, choice = self.decide(chosen, patience_s)
        if self.stop.accept(code):
            raise StoppedEarly(self.stop.reason, self.stop.rank)
        return choice

    def unless_stopped(self, work: Callable[[], T]) -> T:
        """The result of work on each rank that waits for another machine, such as a download; see `left_behind`.

        Raises:
            StoppedEarly: a rank was asked to stop before heartbeats began; see `check_before_training`.
        """
        return left_behind(work, self.check_before_training)

    def on_main(self, work: Callable[[], T]) -> T | None:
        """Run `work` on the main rank and return its result there, None on other ranks; raises errors like `decide`."""
        done: list[T] = []
        self.decide(lambda: done.append(work()))
        return done[0] if done else None

    def _await_main(self, patience_s: float) -> None:
        """Wait for the main rank through the job's store, to which the time limit of collectives does not apply."""
        store = dist.PrefixStore("dp_prior/decisions", dist.distributed_c10d._get_default_store())
        number = store.add(f"of rank {self.process_index}", 1)
        if self.is_main_process:
            store.set(f"{number}", "made")
        else:
            store.wait([f"{number}"], datetime.timedelta(seconds=patience_s))

    def check_before_training(self) -> None:
        """Raise if a stop was requested before heartbeats began. Ranks need not call this equally often.

        Raises:
            StoppedEarly: a rank was asked to stop.
        """
        code = self.stop.encode(self.process_index)
        if self.num_processes > 1:
            store = dist.PrefixStore("dp_prior/stop", dist.distributed_c10d._get_default_store())
            if code:
                store.set("code", str(code))
            elif store.check(["code"]):
                code = int(store.get("code"))
        if self.stop.accept(code):
            raise StoppedEarly(self.stop.reason, self.stop.rank)

    # heartbeats

    def mark(self, phase: str, step: int) -> None:
        """Enter a phase of the loop; all ranks enter the same phases in the same order."""
        if self._heartbeat is not None:
            self._heartbeat.mark(phase, step)

    def beat(self) -> None:
        """Show progress inside a phase.

        Raises:
            Abandoned: the run is asked to stop.
        """
        if self._heartbeat is not None:
            self._heartbeat.beat()
        else:
            self.leave_if_asked()

    def leave_if_asked(self) -> None:
        """Leave a phase without a sign of progress, as while waiting for a simulator, which may hang.

        Raises:
            Abandoned: the run is asked to stop.
        """
        if self._heartbeat is not None:
            self._heartbeat.leave_if_asked()
        elif self.stop.is_asked():
            raise Abandoned

    def busy(self) -> contextlib.AbstractContextManager[None]:
        """Inside, this rank counts as working although `beat` cannot be called."""
        return contextlib.nullcontext() if self._heartbeat is None else self._heartbeat.busy()

    def telling(self) -> contextlib.AbstractContextManager[None]:
        """Inside, an error is passed to the other ranks at once, before anything is closed."""
        return contextlib.nullcontext() if self._heartbeat is None else self._heartbeat.telling()

    @contextlib.contextmanager
    def watched(
        self,
        timeout_s: float,
        stacks: Path,
        explain: Callable[[BaseException], Verdict],
        last_words: Callable[[Verdict], None],
    ) -> Iterator[None]:
        """Inside, several ranks exchange heartbeats and end together; see `Heartbeat` for the arguments."""
        if self.num_processes == 1:
            yield
            return
        from dp_prior.job.watch.heartbeat import Heartbeat

        heartbeat = Heartbeat(
            rank=self.process_index,
            ranks=self.num_processes,
            timeout_s=timeout_s,
            stop=self.stop,
            stacks=stacks,
            explain=explain,
            last_words=last_words,
        )
        try:
            with heartbeat:
                self._heartbeat = heartbeat
                yield
        finally:
            self._heartbeat = None

    def end(self) -> None:
        """Leave the process group; otherwise a rank can abort while the interpreter shuts down."""
        self.accelerator.end_training()


def _is_foreign(part: nn.Module) -> bool:
    """Whether a module's class is neither of this package nor of torch."""
    return type(part).__module__.partition(".")[0] not in (__package__.partition(".")[0], "torch")
