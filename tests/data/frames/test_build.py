"""A build gives every frame or names what it could not read, and goes on wherever it was killed or stopped."""

import errno
import hashlib
import itertools
import os
import re
import threading

import numpy as np
import pytest
import torch

from dp_prior.data.errors import DataError, UnreadableError, UnwritableError
from dp_prior.data.frames import build as build_module
from dp_prior.data.frames.build import BuildProgress
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.layout import read_index
from tests import forks
from tests.data.frames.caches import LENGTHS, PARTS, Spoiled, cache_of, contents, encodings, expected_frames
from tests.data.frames.recordings import MadeFrames
from tests.messages import naming


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_row_has_its_frame_whatever_the_number_of_workers(source, workers):
    cache = cache_of(source)
    cache.build(workers)
    rows = cache.open()
    assert len(rows) == sum(LENGTHS) and rows.shape == (12, 16, 3)
    assert torch.equal(rows.rows(torch.arange(len(rows))), expected_frames(source))
    assert sorted(file.name for file in cache.directory.iterdir()) == ["cache.json", "frames.u8"]


@encodings
def test_a_core_without_a_file_decodes_one_block_ahead(source, encoding, monkeypatch, own_threads):
    """The cache is that of one thread."""
    whole = [tuple(range(len(LENGTHS)))]
    plain = cache_of(MadeFrames(source.root, LENGTHS, whole), encoding, root=source.root.parent / "plain")
    plain.build(1)
    decoded, is_building = threading.Semaphore(0), threading.Event()
    counts = {"decoded": 0, "fitted": 0}

    class Watched(MadeFrames):
        def read(self, part, skip):
            for block in super().read(part, skip):
                for row in range(len(block)):
                    counts["decoded"] += is_building.is_set()
                    decoded.release()
                    yield block[row : row + 1]
            decoded.release()

    cache = cache_of(Watched(source.root, LENGTHS, whole), encoding)
    pixels = type(cache._plan.encoding).pixels

    def fitted(encoding, frames):
        if is_building.is_set():
            assert decoded.acquire(timeout=60) and (counts["fitted"] or decoded.acquire(timeout=60))
            counts["fitted"] += 1
            assert counts["decoded"] <= counts["fitted"] + 1
        return pixels(encoding, frames)

    monkeypatch.setattr(type(cache._plan.encoding), "pixels", fitted)
    monkeypatch.setattr(cache, "_refuse_small_disk", lambda workers: is_building.set())
    cache.build(2)
    assert counts == {"decoded": 37, "fitted": 37} and contents(cache) == contents(plain)
    assert not own_threads("frames_ahead")


@pytest.mark.parametrize("fault", [UnreadableError(errno.EIO, "cannot be read now", "a"), DataError("a", ["is torn"])])
def test_a_fault_that_is_decoded_ahead_is_that_of_one_thread(source, fault, own_threads):
    class Torn(MadeFrames):
        def read(self, part, skip):
            yield from itertools.islice((block[:1] for block in super().read(part, skip)), 1)
            raise fault

    problems = []
    for workers in (1, 2):
        torn = Torn(source.root, LENGTHS, [tuple(range(len(LENGTHS)))])
        cache = cache_of(torn, root=source.root.parent / str(workers))
        with pytest.raises(type(fault)) as error:
            cache.build(workers)
        problems.append((str(error.value), [*cache._plan.done()]))
    assert problems[0] == problems[1]
    assert not own_threads("frames_ahead")


def test_a_disk_that_is_full_ends_the_thread_that_decodes_ahead(source, monkeypatch, own_threads):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = cache_of(MadeFrames(source.root, LENGTHS, [tuple(range(len(LENGTHS)))]))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UnwritableError):
        cache.build(2)
    assert not own_threads("frames_ahead")


def test_progress_and_estimate_say_how_much_is_left(source):
    cache, seen = cache_of(source), []
    estimate = cache.estimate()
    assert (estimate.frames, estimate.frames_left, estimate.n_bytes) == (37, 37, 37 * 12 * 16 * 3)
    assert not cache.directory.exists()
    assert re.search(naming("37 of 37 frames", "1 s", "0.0213 MB", "raw"), str(estimate))
    cache.build(progress=seen.append)
    assert seen[-1].frames_done == seen[-1].frames == 37 and seen[-1].seconds_left == 0
    assert cache.estimate().frames_left == 0
    line = str(BuildProgress(1200, 54000, 310.4, 170.1))
    assert line == "1,200 of 54,000 frames, 310 frames/s, 3 min left"


@encodings
@pytest.mark.parametrize("workers", [1, 3])
def test_all_files_that_cannot_be_read_are_in_one_report_and_the_rest_stays(source, encoding, workers):
    spoiled = Spoiled(source.root, LENGTHS, PARTS)
    cache = cache_of(spoiled, encoding)
    with pytest.raises(DataError, match=naming("set/1", "set/3")) as error:
        cache.build(workers)
    assert sorted(error.value.problems) == [f"{source.root}/{n}: is damaged at its end" for n in (1, 3)]
    assert set(cache._plan.done()) >= {0, 1, 2, 5}  # and never the last episode of a file that was refused
    assert not set(cache._plan.done()) & {3, 7}
    with pytest.raises(DataError, match=naming("cache.json", "No such file")):
        read_index(cache.directory)
    assert torch.equal(torch.from_numpy(source.frames), torch.from_numpy(spoiled.frames))
    source.log.unlink()
    fresh = cache_of(source, encoding, root=source.root.parent / "other")
    fresh.build()
    source.log.unlink()
    again = cache_of(source, encoding)
    again.build(workers)
    assert contents(again) == contents(fresh)
    read = {tuple(line.split()[1:]) for line in source.log.read_text().splitlines()}
    sampled = {(f"{source.root}/0", "0")} if encoding == "jpeg" else set()  # to know how large JPEGs are
    assert read == {(f"{source.root}/1", "9"), (f"{source.root}/3", "6")} | sampled


def test_frames_behind_the_last_row_are_refused(source):
    spoiled = Spoiled(source.root, LENGTHS, PARTS)
    spoiled.extra = 2
    with pytest.raises(DataError, match=naming("/1", "2 frames")):
        cache_of(spoiled).build()


def test_a_disk_that_fills_up_meanwhile_keeps_what_is_stored(source, monkeypatch):
    cache, write, count = cache_of(source), os.pwrite, []

    def full(*args):
        count.append(args)
        if len(count) > 8:
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UnwritableError, match=naming(os.strerror(errno.ENOSPC), "GB")):
        cache.build()
    monkeypatch.undo()
    assert cache._plan.done()
    assert torch.equal(cache.open().rows(torch.arange(37)), expected_frames(source))


def test_a_file_of_the_source_that_cannot_be_read_now_is_no_fault_of_the_cache(source):
    """It is told as what it is, and the next build needs the other files no more."""

    class Refused(MadeFrames):
        def read(self, part, skip):
            if part.episodes == PARTS[3]:
                raise UnreadableError(errno.EIO, "cannot be read now: Input/output error", part.where)
            yield from super().read(part, skip)

    cache = cache_of(Refused(source.root, LENGTHS, PARTS))
    with pytest.raises(UnreadableError, match=naming(os.strerror(errno.EIO), "set/3")) as error:
        cache.build()
    assert error.value.errno == errno.EIO and len(cache._plan.done()) == 6


def test_a_journal_whose_frames_are_gone_is_not_believed(source):
    spoiled = Spoiled(source.root, LENGTHS, PARTS)
    cache = cache_of(spoiled)
    with pytest.raises(DataError):
        cache.build()
    (cache.directory / "frames.u8").unlink()
    assert not cache._plan.done()
    assert torch.equal(cache_of(source).open().rows(torch.arange(37)), expected_frames(source))


@pytest.mark.parametrize("tail", [b'{"number": 3, "sha', b"\xff\xfe\n", b"[]\n", b'{"number": 3}\n', b"\n"])
def test_a_torn_line_in_the_journal_ends_it(source, tail):
    spoiled = Spoiled(source.root, LENGTHS, PARTS)
    cache = cache_of(spoiled)
    with pytest.raises(DataError):
        cache.build()
    done = cache._plan.done()
    with open(cache.directory / "episodes.jsonl", "ab") as file:
        file.write(tail)
    assert cache._plan.done() == done
    assert torch.equal(cache_of(source).open().rows(torch.arange(37)), expected_frames(source))


KILLS = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from dp_prior.data.frames import build
from dp_prior.data.frames import frame_cache as cache
from dp_prior.tensors.pixels.resize import Fit
from tests.data.frames.caches import ENCODINGS
from tests.data.frames.recordings import MadeFrames
root, encoding, workers, every = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
LENGTHS, PARTS = {lengths}, {parts}
build.SYNC_EVERY_S = 0.0
if encoding == "jpeg":
    import PIL.Image
names = ["pwrite", "write", "fsync", "ftruncate", "rename", "unlink", "mkdir", "lseek"]
real = {{name: getattr(os, name) for name in names}}

def attempt(at):
    "Build in a process that dies at system call `at`, before it or, every second time, after it; how it ended."
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0
    def dying(name):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            here = count
            if here == at and at % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            found = real[name](*args, **kwargs)
            if here == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return found
        return call
    for name in names:
        setattr(os, name, dying(name))
    source = MadeFrames(root / "set", LENGTHS, PARTS)
    try:
        cache.FrameCache(source, Fit(size=(12, 16)), root / "caches", encoding=ENCODINGS[encoding]).build(workers)
    except BaseException:
        import traceback; traceback.print_exc(); os._exit(3)
    os._exit(0)

at, kills = 1, 0
while True:
    status = attempt(at)
    if status == 0:
        break
    assert status == -signal.SIGKILL, status
    kills, at = kills + 1, at + every if every else at
    if every == 0 and kills > 200:
        raise SystemExit("no end")
print(kills)
"""


def run_kills(tmp_path, encoding, workers, every):
    program = KILLS.format(lengths=LENGTHS, parts=PARTS)
    output = forks.call(["-c", program, tmp_path, encoding, workers, every])
    assert output.returncode == 0, output.stderr
    return int(output.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("encoding, workers", [("raw", 3), ("jpeg", 1)])
def test_builds_killed_again_and_again_end_with_the_cache_of_one_that_was_not(source, encoding, workers):
    """Each attempt dies a call later than the one before, and goes on with what those left."""
    fresh = cache_of(source, encoding, root=source.root.parent / "fresh")
    fresh.build()
    expected = contents(fresh)
    assert run_kills(source.root.parent, encoding, workers, every=1) >= 8
    cache = cache_of(source, encoding)
    source.log.unlink()
    assert contents(cache) == expected and not source.log.exists()
    if encoding == "raw":
        pixels = [hashlib.sha256((c.directory / "frames.u8").read_bytes()).hexdigest() for c in (cache, fresh)]
        assert pixels[0] == pixels[1]


@pytest.mark.slow
@encodings
def test_a_build_killed_at_each_system_call_is_finished_by_the_next(source, encoding):
    """From nothing each time, so that every moment of a whole build is met."""
    fresh = cache_of(source, encoding, root=source.root.parent / "fresh")
    fresh.build()
    expected, at = contents(fresh), 0
    program = KILLS.format(lengths=LENGTHS, parts=PARTS).split("at, kills = 1, 0")[0] + (
        "import shutil\nfor at in range(1, 500):\n"
        "    shutil.rmtree(root / 'caches', ignore_errors=True)\n"
        "    if attempt(at) == 0:\n        break\n"
        "    assert attempt(-1) == 0\n"
        "    found = cache.FrameCache(MadeFrames(root / 'set', LENGTHS, PARTS), Fit(size=(12, 16)), root / 'caches',"
        " encoding=ENCODINGS[encoding])\n"
        "    from dp_prior.data.frames.layout import read_index\n"
        "    import json\n    print(json.dumps(read_index(found.directory).digests))\n"
    )
    output = forks.call(["-c", program, source.root.parent, encoding, 1, 1])
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    assert len(lines) > 30 and set(lines) == {str(expected[0]).replace("'", '"')}, at


def test_a_request_to_stop_ends_the_build_and_the_waiting(source, monkeypatch):
    """The episodes that were read stay, and the next build reads the others only."""

    class Asked(Exception):
        pass

    cache, asked = cache_of(source), threading.Event()

    def check():
        if cache._plan.done() or asked.is_set():
            raise Asked

    monkeypatch.setattr(build_module, "SYNC_EVERY_S", 0.0)
    with pytest.raises(Asked):
        cache.build(1, check=check)
    done = cache._plan.done()
    assert 0 < len(done) < len(LENGTHS)
    asked.set()
    lock = cache.directory.with_name(f"{cache.directory.name}.lock")
    with build_lock(lock, print, lambda: "", lambda: None), pytest.raises(Asked):
        cache.build(check=check)
    source.log.unlink()
    assert torch.equal(cache.open().rows(torch.arange(37)), expected_frames(source))
    skipped = {where: int(rows) for _, where, rows in map(str.split, source.log.read_text().splitlines())}
    for part in source.parts:
        lengths = {episode: LENGTHS[episode] for episode in part.episodes}
        rows = sum(length for episode, length in lengths.items() if episode in done)
        assert skipped.get(part.where, sum(lengths.values())) == rows


def test_a_build_that_is_interrupted_stops_its_threads_and_goes_on_later(source, own_threads):
    cache = cache_of(source)

    def interrupt(found):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build(2, interrupt)
    assert not own_threads("frames")
    np.testing.assert_array_equal(cache.open().rows(torch.arange(37)).numpy(), expected_frames(source).numpy())


def test_a_line_of_the_journal_is_written_after_its_frames_are_on_the_disk(source, monkeypatch):
    calls, sync, write = [], os.fsync, build_module.write_all
    names = {}

    def noted(file):
        names.setdefault(file, os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        calls.append(("sync", names[file]))
        sync(file)

    monkeypatch.setattr(build_module.os, "fsync", noted)
    monkeypatch.setattr(build_module, "write_all", lambda file, lines: calls.append(("line", "")) or write(file, lines))
    cache_of(source).build()
    lines = [number for number, call in enumerate(calls) if call[0] == "line"]
    assert lines
    for number in lines:
        assert calls[number - 1] == ("sync", "frames.u8") and calls[number + 1] == ("sync", "episodes.jsonl")


def test_the_rate_is_that_of_this_build_and_the_time_left_that_of_the_rest(source):
    seen = []
    build = build_module._Build(cache_of(source)._plan, None, seen.append, lambda: None)
    build._report(30, 2.0)
    build._read = 4
    build._report(30, 2.0)
    assert seen == [BuildProgress(30, 37, 0.0, float("inf")), BuildProgress(34, 37, 2.0, 1.5)]
