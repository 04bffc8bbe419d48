"""Processes that begin with the libraries imported, which costs most ranks of the tests more than their work."""

import multiprocessing
import os
import runpy
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

_FORKING, _FRESH = (multiprocessing.get_context(method) for method in ("forkserver", "spawn"))
_FORKING.set_forkserver_preload(["accelerate", "dp_prior.run.run"])


def start_script(script: Path, arguments: list[str], environment: dict[str, str], log: Path) -> BaseProcess:
    """Start a Python script with these environment variables, whose output goes into `log`."""
    method = _FRESH if "HF_ENDPOINT" in environment else _FORKING  # the Hub's client reads its settings at its import
    process = method.Process(target=_run, args=(script, arguments, environment, log))
    process.start()
    return process


def _run(script: Path, arguments: list[str], environment: dict[str, str], log: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    with log.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")
