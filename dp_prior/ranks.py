"""Agreement between ranks: what is decided once is decided on the main rank, and its errors reach everybody."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

T = TypeVar("T")


def decide(accelerator: Accelerator, choose: Callable[[], T]) -> T:
    """Run `choose` on the main rank alone and give its result to all ranks, or raise its error on all of them.

    A collective: every rank calls it, so a file that only one rank can read never sends the ranks different ways.
    """
    outcome: list = [None, None]
    if accelerator.is_main_process:
        try:
            outcome[0] = choose()
        except Exception as error:  # not swallowed: raised below, here and on every other rank
            outcome[1] = error
    if accelerator.num_processes > 1:
        broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]
