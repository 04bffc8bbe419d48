"""A training step by how often a waiting thread spins before it sleeps: GNU OpenMP's default, ours of 1,000, and 0.

Alone, and while another process keeps one core busy. The smaller the network, the more its threads wait; the main job's
is `--widths 32,64,128`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.measure import Case, Options, Timing
from benchmarks.subjects.heap import training_steps

NAMES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
SPINS = (1000, 0)


@contextlib.contextmanager
def a_busy_process() -> Iterator[None]:
    """Another process that never rests."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        child.kill()
        child.wait()


def run(options: Options) -> list[Case]:
    plain = {name: value for name, value in os.environ.items() if name not in NAMES}
    policies = {"300,000 spins": plain}
    policies |= {f"{count:,} spins": plain | {"GOMP_SPINCOUNT": str(count)} for count in SPINS}
    cases = []
    for beside in ("alone", "beside a busy process"):
        variants: dict[str, list[float]] = {name: [] for name in policies}
        for _ in range(1 if options.quick else 3):
            for name, environment in policies.items():
                with a_busy_process() if beside != "alone" else contextlib.nullcontext():
                    variants[name] += training_steps(environment, options)
        timings = {name: Timing(values) for name, values in variants.items()}
        cases.append(Case(f"training step of waiting threads, {beside}", "ms", timings))
    return cases
