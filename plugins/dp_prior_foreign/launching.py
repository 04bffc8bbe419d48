"""The command line of the launcher that started this process, read from the launcher's process."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping
from pathlib import PurePath

from dp_prior.job.launcher import LAUNCHERS, lineage, program_of


def launching(environment: Mapping[str, str]) -> str | None:
    """The command line by which the user started this training, without `--check` and `--resume`; None if no known
    launcher started it.

    Args:
        environment: see `lineage`.
    """
    if not (ancestors := lineage(environment)):
        return None
    import psutil

    words: list[str] = []
    with contextlib.suppress(psutil.Error, OSError, RuntimeError):
        words = psutil.Process(ancestors[-1]).cmdline()
    program = program_of(words)
    if program not in LAUNCHERS:
        return None
    place = [PurePath(word).name for word in words].index(program)
    command = words if words[place - 1] == "-m" else [program, *words[place + 1 :]]
    return re.sub(r" --check\b| --resume[= ]\w+", "", shlex.join(command))
