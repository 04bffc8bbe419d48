"""Simulators of a few lines, and the processes that run them."""

import sys
from pathlib import Path

from dp_prior_worlds.apart.process import SimulatorProcess

COUNTER = """
import os, select, sys, time

class Counter:
    def __init__(self, settings):
        self.count = settings["first"]

    def describe(self):
        return {"first": self.count, "variables": sorted(os.environ), "pid": os.getpid(), "path": sys.path}

    def add(self, number):
        self.count += number
        return self.count

    def greet(self, lines):
        for _ in range(lines):
            print("a warning of the simulator " * 4)
        os.write(2, b"and one of a library")
        return lines

    def stumble(self):
        raise RuntimeError("the gripper is stuck")

    def die(self, code):
        print("out of " + "memory", flush=True)
        os._exit(code)

    def kill(self):
        os.kill(os.getpid(), 9)

    def hang(self, depth=0):
        return self.hang(depth - 1) if depth else select.select([], [], [])

    def spin(self):
        while True:
            pass

    def give(self):
        return object()

    def close(self):
        print("closed")


def create(settings):
    if settings["first"] < 0:
        raise ValueError("first is -1; expected a number from 0 on")
    return Counter(settings)
"""


def program(folder: Path, text: str = COUNTER) -> Path:
    """Write a program; returns its path."""
    path = folder / "counter_program.py"
    path.write_text(text)
    return path


def opened(folder: Path, text: str = COUNTER, python: str = sys.executable, first: int = 0, limit_s: float = 60.0):
    """Start the process of a program."""
    return SimulatorProcess(python, program(folder, text), {"first": first}, 'install "counter[fast]"', limit_s)
