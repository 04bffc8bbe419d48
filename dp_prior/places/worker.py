"""The process that sends one checkpoint away: reads a job from standard input, writes lines of JSON, and ends.

It ends with the process that started it, however that one dies, so that no upload outlives its run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dp_prior.places.delivery import DeliveryError, Parcel


def perform(job: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Make one attempt. Whatever happens is told in one last line.

    Args:
        job: the saver's record; the entry of the outbox to send, or None to try only whether that would be allowed.
    """
    from pydantic import TypeAdapter

    from dp_prior.places import SaverConfig

    outcome: dict[str, Any] = {"trouble": None, "retry_after": None, "remark": None}
    try:
        destination = TypeAdapter(SaverConfig).validate_python(job["saver"]).destination()
        if job["entry"] is None:
            outcome["message"] = destination.check()
        else:
            parcel = Parcel(Path(job["entry"]), tuple(job["kinds"]))
            parcel.verify()
            outcome["message"], outcome["remark"] = destination.deliver(parcel, lambda: tell({"commit": 1}))
    except DeliveryError as error:
        outcome |= {"message": str(error), "trouble": error.trouble, "retry_after": error.retry_after}
    except ImportError as error:
        outcome |= {"message": str(error), "trouble": "refused"}
    except Exception as error:  # unforeseen: told by its kind alone, for its text may quote what is secret
        outcome |= {"message": f"{type(error).__name__} in the uploader", "trouble": "unavailable"}
    tell(outcome)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """See the module."""
    os.nice(10)  # training goes first
    job = json.load(sys.stdin)
    threading.Thread(target=_end_with, args=(job["parent"],), daemon=True).start()

    def tell(line: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    perform(job, tell)


if __name__ == "__main__":
    main()
