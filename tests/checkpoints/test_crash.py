"""Killed at any instant, the next start finds the newest checkpoint that was reported saved.

A forked child saves, and reports each durable step through a pipe. It dies by itself at the k-th call that touches
the disk, for every k, or is killed at a random moment. What it leaves is then opened as a restart would open it.
"""

import builtins
import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from dp_prior.checkpoints.clock import Progress
from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.snapshot import Snapshot
from dp_prior.checkpoints.store import CheckpointStore
from dp_prior.checkpoints.writer import CheckpointWriter
from dp_prior.files.temporary import is_temporary
from tests.checkpoints.documents import progress_of, recover

CALLS = ("mkdir", "open", "write", "fsync", "rename", "unlink", "rmdir", "ftruncate")
SAVES = 3  # the third one deletes the first


def snapshot_of(step, size=3000):
    tensors = {
        "model.safetensors": {"w": torch.from_numpy(np.full((20, 5), step, np.float32))},
        "training.safetensors": {"m": torch.from_numpy(np.full(size, step, np.float32))},
    }
    return Snapshot(tensors, {"progress.json": progress_of(step)})


def open_store(run):
    store = CheckpointStore(run / "checkpoints", RetentionConfig(max_failed_saves=1), monitor="loss")
    return store, store.lock(wait_s=5)


def save_repeatedly(run, report, count, size=3000, first=1):
    """Saves steps first, first + 1, ...; the metric makes the second one best."""
    store, lock = open_store(run)
    writer = CheckpointWriter(store, lambda saved: os.write(report, b"%d\n" % saved.progress.global_step))
    for step in range(first, first + count):
        writer.submit(snapshot_of(step, size), Progress(step, step), {"loss": abs(step - 2.0)})
    writer.close()
    lock.release()


def at_every_call(hook):
    """Have `hook(name, function, arguments)` called before every call that touches the disk.

    Returns a list for one descriptor, of a pipe, whose writes do not count.
    """
    reports = [None]

    def watched(name, function):
        def call(*arguments, **options):
            if name != "write" or arguments[0] != reports[0]:
                hook(name, function, arguments)
            return function(*arguments, **options)

        return call

    for name in CALLS:
        setattr(os, name, watched(name, getattr(os, name)))
    builtins.open = watched("open", builtins.open)
    return reports


def die_at(number):
    """Let this process die in its `number`-th call that touches the disk; a write is then half done."""
    count = [0]

    def dying(name, function, arguments):
        count[0] += 1
        if count[0] == number:
            if name == "write":
                function(arguments[0], arguments[1][: len(arguments[1]) // 2])
            os._exit(77)

    return at_every_call(dying)


def in_child(run, number=None, **options):
    """Save in a child that dies at its `number`-th call. Returns its exit code and the steps it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            if number is not None:
                die_at(number)[0] = writing
            save_repeatedly(run, writing, SAVES, **options)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        reported = [int(line) for line in pipe.read().split()]
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), reported


def assert_nothing_is_lost(run, reported):
    """What a restart must find, whatever happened. Returns the step it goes on from."""
    store, lock = open_store(run)
    with lock:
        found = recover(store)
        assert found is not None or not reported, "every checkpoint is gone"
        names = [path.name for path in store.root.iterdir()]
        assert not [path for path in store.root.iterdir() if is_temporary(path)], names
        assert not [name for name in names if name.startswith("damaged")], names
        if found is None:
            return 0
        path, snapshot = found
        step = snapshot.documents["progress.json"]["global_step"]
        assert step >= max(reported, default=0), f"{reported} were reported, {step} was found"
        for stored in store.good():
            whole = read_checkpoint(stored.path)
            for tensors in whole.tensors.values():
                assert all((tensor == stored.manifest.step).all() for tensor in tensors.values())
        if 2 in reported:
            assert store.best().name == "step_00000002", names
        return step


@pytest.mark.promise("A1")
@pytest.mark.parametrize("stride", [12, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_call_that_touches_the_disk(tmp_path, stride):
    """Enumerates the calls of a start, three saves, the pointers and a deletion, until one child survives; by default
    every twelfth of them."""
    codes, lengths = [], []
    for number in range(1, 400, stride):
        run = tmp_path / str(number)
        code, reported = in_child(run, number)
        codes.append(code)
        lengths.append(len(reported))
        assert_nothing_is_lost(run, reported)
        if code == 0:
            break
    assert codes[-1] == 0 and set(codes[:-1]) == {77}
    assert number > 100, "the calls of a save are not seen any more"
    assert lengths == sorted(lengths) and lengths[-1] == SAVES


@pytest.mark.promise("A1")
@pytest.mark.parametrize("deaths", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_killed_again_and_again_while_it_goes_on(tmp_path, deaths):
    """The same directory through many deaths at random calls; each start goes on from what it finds."""
    rng = random.Random(0)
    step = 0
    for _ in range(deaths):
        _, reported = in_child(tmp_path, rng.randint(1, 150), first=step + 1)
        after = assert_nothing_is_lost(tmp_path, reported)
        assert after >= step
        step = after
    assert step > 0.4 * deaths


def kill_at_random(run, count, size, longest_s, seed):
    """Kill a saving child `count` times, some moments after it has reported some saves."""
    rng = random.Random(seed)
    step = 0
    for _ in range(count):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                save_repeatedly(run, writing, 10_000, size=size, first=step + 1)
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            reported = [int(pipe.readline()) for _ in range(rng.randint(0, 3))]
            time.sleep(rng.uniform(0.0, longest_s))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            reported += [int(line) for line in pipe.read().split()]
        after = assert_nothing_is_lost(run, reported)
        assert after >= step
        step = after
    return step


@pytest.mark.promise("A1")
def test_sigkill_at_random_moments(tmp_path):
    assert kill_at_random(tmp_path, count=6, size=3000, longest_s=0.05, seed=1) > 5


@pytest.mark.promise("A1", "C5")
@pytest.mark.slow
def test_sigkill_at_random_moments_of_long_saves(tmp_path):
    assert kill_at_random(tmp_path, count=40, size=4_000_000, longest_s=0.5, seed=2) > 40
