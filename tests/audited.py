"""What a call asks of the interpreter, as an audit hook reports it.

In a fork: a hook cannot be taken out again, and two of them for good took a thirtieth of the time of all other tests.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Collection
from typing import Any

import torch


def events_of(action: Callable[[], Any], kinds: Collection[str]) -> list[tuple[str, list[str | None]]]:
    """The audit events of these kinds during a call, in order, with their arguments as text.

    Raises:
        AssertionError: the call fails; its traceback is printed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _report(action, kinds, writing)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return [(kind, arguments) for kind, arguments in json.loads(told)]


def _report(action: Callable[[], Any], kinds: Collection[str], writing: int) -> None:
    """Write the events into a pipe and end this process."""
    seen, is_over = [], False

    def note(kind: str, arguments: tuple[Any, ...]) -> None:
        if kind in kinds and not is_over:
            seen.append((kind, [None if each is None else str(each) for each in arguments]))

    code = 1
    try:
        torch.set_num_threads(torch.get_num_threads())  # renews torch's pool, which two new threads at once may not
        sys.addaudithook(note)
        action()
        is_over = True
        with os.fdopen(writing, "w") as pipe:
            json.dump(seen, pipe)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
