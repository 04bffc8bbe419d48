"""The effect of glibc's heap settings, which ./demo and ./runtests make, on a training step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping

from benchmarks.measure import Case, Options, Timing

PROGRAM = """
import json, sys, time
from benchmarks import setting
from benchmarks.measure import Options
options = Options(widths=tuple(json.loads(sys.argv[1])), batch_size=int(sys.argv[2]))
trainer = setting.trainer(options)
parts = trainer.loader.from_sample(0)
times = []
for _ in range(int(sys.argv[3]) + 1):
    start = time.perf_counter()
    trainer.step(next(parts))
    times.append(1e3 * (time.perf_counter() - start))
print(json.dumps(times[1:]))
"""
NAMES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
KEPT = {"MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_MMAP_THRESHOLD_": "1073741824"}


def training_steps(environment: Mapping[str, str], options: Options) -> list[float]:
    """Durations in ms of the training steps of a new process with this environment, the first one left out."""
    arguments = [json.dumps(options.widths), str(options.batch_size), str(options.times(5))]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    return json.loads(output.stdout.splitlines()[-1])


def run(options: Options) -> list[Case]:
    plain = {name: value for name, value in os.environ.items() if name not in NAMES}
    variants: dict[str, list[float]] = {"glibc's default": [], "heap kept": []}
    for _ in range(1 if options.quick else 3):
        for name, environment in (("glibc's default", plain), ("heap kept", plain | KEPT)):
            variants[name] += training_steps(environment, options)
    return [Case("training step and the heap", "ms", {name: Timing(values) for name, values in variants.items()})]
