"""The power is cut at every call that touches the disk: a restart finds what was synced, and nothing is lost.

A small ext4 image is loop-mounted with its journal's timer far away, so that only what is synced reaches the image. The
image is copied, unsynced, before each call: that copy is the disk after a power cut. Needs root for the mounts.
"""

import contextlib
import itertools
import os
import posix
import shutil
import subprocess
import threading

import pytest

from dp_prior.checkpoints.retention import RetentionConfig
from dp_prior.checkpoints.store import CheckpointStore
from tests.checkpoints.documents import recover
from tests.checkpoints.test_crash import SAVES, assert_nothing_is_lost, at_every_call, save_repeatedly

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT CHECKED: power cuts, mounting needs root"),
]
SIZE = 300_000  # float32: large enough to be written past the page cache


@pytest.fixture(autouse=True)
def disk_that_is_waited_for(monkeypatch):
    """Syncing is what is tested."""
    monkeypatch.setattr(os, "fsync", posix.fsync)


@pytest.fixture(autouse=True)
def every_process_is_dead(monkeypatch):
    """As it is after a power cut; the owner of the temporaries in the copy lives on in this test."""
    monkeypatch.setattr("dp_prior.checkpoints.store.is_alive", lambda host, pid: False)


@contextlib.contextmanager
def mounted(image, place, options="loop"):
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", options, str(image), str(place)], capture_output=True, timeout=30)
    if done.returncode:
        pytest.skip(f"NOT CHECKED: power cuts, cannot mount: {done.stderr.decode()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=30)


@pytest.fixture
def disk(tmp_path):
    """(image, mount point) of an ext4 disk whose journal is committed by syncs alone."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("NOT CHECKED: power cuts, mkfs.ext4 is not on PATH")
    image = tmp_path / "image"
    with open(image, "wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-J", "size=4", str(image)], check=True, timeout=30)
    with mounted(image, tmp_path / "disk", "loop,commit=900") as place:
        (place / "run").mkdir()
        subprocess.run(["sync", "-f", str(place)], check=True, timeout=30)
        yield image, place


def cuts(disk, is_synced=True):
    """Save in a child; yields (number of the cut, steps reported by then) with the copied image at hand."""
    image, place = disk
    talk, answer = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            turn = threading.Lock()

            def pause(name, function, arguments):
                with turn:  # the writing thread and the one that trains
                    os.writev(talk[1], [b"cut\n"])
                    os.read(answer[0], 1)

            if not is_synced:
                os.fsync = lambda descriptor: None
            at_every_call(pause)[0] = talk[1]
            save_repeatedly(place / "run", talk[1], SAVES, size=SIZE)
        finally:
            os._exit(0)
    os.close(talk[1])
    reported, numbers = [], itertools.count(1)
    try:
        with os.fdopen(talk[0]) as messages:
            for message in messages:
                if message != "cut\n":
                    reported.append(int(message))
                    continue
                number = next(numbers)
                subprocess.run(["cp", "--sparse=always", str(image), str(image) + ".cut"], check=True, timeout=30)
                yield number, list(reported)
                os.write(answer[1], b".")
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        for descriptor in (answer[0], answer[1]):
            os.close(descriptor)


@pytest.mark.promise("A2")
def test_power_cut_at_every_call_loses_no_reported_checkpoint(disk, tmp_path):
    steps, last = set(), 0
    for number, reported in cuts(disk):
        with mounted(f"{disk[0]}.cut", tmp_path / "after") as place:
            steps.add(assert_nothing_is_lost(place / "run", reported))
        last = number
    assert last > 60 and steps == {0, 1, 2, 3}


@pytest.mark.promise("A2")
def test_the_same_without_syncs_loses_checkpoints(disk, tmp_path):
    """The method sees what it is meant to see."""
    lost = 0
    for _, reported in itertools.islice(cuts(disk, is_synced=False), 0, None, 10):
        with mounted(f"{disk[0]}.cut", tmp_path / "after") as place:
            store = CheckpointStore(place / "run" / "checkpoints", RetentionConfig())
            found = recover(store)
            lost += bool(reported) and (found is None or int(found[0].name[5:13]) < max(reported))
    assert lost
