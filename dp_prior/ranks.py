"""Agreement between ranks: what is decided once is decided on the main rank, and its errors reach everybody."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

T = TypeVar("T")


def decide(accelerator: Accelerator, choose: Callable[[], T]) -> T:
    """Run `choose` on the main rank alone and give its result to all ranks, or raise its error on all of them.

    A collective: every rank calls it, so a file that only one rank can read never sends the ranks different ways. With
    `RanksAtWork` the others wait for the choice as long as the main rank lives, and not only as long as for a step.
    """
    outcome: list = [None, None, None]
    cause: Exception | None = None
    if accelerator.is_main_process:
        try:
            with getattr(accelerator, "busy", contextlib.nullcontext)():
                outcome[0] = choose()
        except Exception as error:  # not swallowed: raised below, here and on every other rank
            cause = error
            outcome[1:] = type(error), str(error)  # an error with arguments of its own would not survive the journey
    if accelerator.num_processes > 1:
        getattr(accelerator, "meet", lambda: None)()
        broadcast_object_list(outcome)
    result, kind, message = outcome
    if kind is not None:
        raise cause or kind.__new__(kind, message)
    return result
