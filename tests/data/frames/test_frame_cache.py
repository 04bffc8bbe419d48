"""The cache holds every frame, and is complete or not at all, whatever is killed, damaged or full meanwhile."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from dp_prior.data.errors import DataError, UnreadableError, UnwritableError
from dp_prior.data.frames import build as build_module
from dp_prior.data.frames import frame_cache as cache_module
from dp_prior.data.frames.build import BuildProgress
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.frame_cache import FrameCache, cache_root
from dp_prior.data.frames.frame_rows import FrameRows
from dp_prior.data.frames.layout import Encoding, greyscale, read_index
from dp_prior.pixels.resize import Fit
from tests import forks
from tests.data.frames.recordings import MadeFrames
from tests.messages import naming

LENGTHS = [4, 1, 7, 5, 9, 2, 6, 3]
PARTS = [(0, 1, 2), (4, 3), (5,), (6, 7)]  # 4 before 3: a file need not have the order of the rows
FIT = Fit(size=(12, 16))

encodings = pytest.mark.parametrize("encoding", ["raw", "jpeg"])


@pytest.fixture
def source(tmp_path):
    (tmp_path / "set").mkdir()
    return MadeFrames(tmp_path / "set", LENGTHS, PARTS)


def cache_of(source, encoding="raw", root=None, **how):
    if encoding == "jpeg":
        pytest.importorskip("PIL")
    return FrameCache(source, FIT, root or source.root.parent / "caches", encoding=Encoding(type=encoding), **how)


def contents(cache):
    """What a cache holds, wherever its bytes lie: SHA-256 by episode, and the frames."""
    index, rows = read_index(cache.directory), cache.open()
    return index.digests, rows.rows(torch.arange(len(rows))).numpy().tobytes()


def expected_frames(source):
    return FIT.apply(torch.from_numpy(source.frames))


# Building -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_row_has_its_frame_whatever_the_number_of_workers(source, workers):
    cache = cache_of(source)
    cache.build(workers)
    rows = cache.open()
    assert len(rows) == sum(LENGTHS) and rows.shape == (12, 16, 3)
    assert torch.equal(rows.rows(torch.arange(len(rows))), expected_frames(source))
    assert sorted(file.name for file in rows._path.parent.iterdir()) == ["cache.json", "frames.u8"]


@pytest.mark.parametrize("workers", [1, 3])
def test_jpeg_stays_near(source, workers):
    pytest.importorskip("PIL")
    smooth = torch.linspace(0, 255, 32).to(torch.uint8).expand(24, 32)
    source.frames = torch.stack([smooth, smooth.flip(1), 255 - smooth], dim=-1).expand(37, 24, 32, 3).numpy()
    cache = cache_of(source, "jpeg")
    assert cache.estimate().encoding.type == "jpeg"
    cache.build(workers)
    rows = cache.open()
    found = rows.rows(torch.tensor([5, 36, 0, 5]))
    difference = (found.int() - expected_frames(source)[[5, 36, 0, 5]].int()).abs()
    assert difference.max() <= 12 and difference.float().mean() < 1.5


def test_grey_frames_take_a_byte_for_each_pixel_and_damage_is_found(source):
    cache = cache_of(source, "grey")
    rows, pixels = cache.open(), cache.directory / "frames.u8"
    assert rows.shape == cache.shape == (*FIT.size, 1) and pixels.stat().st_size == 37 * FIT.size[0] * FIT.size[1]
    assert cache.estimate().n_bytes == pixels.stat().st_size
    assert torch.equal(rows.rows(torch.arange(37)), greyscale(expected_frames(source)))
    before = contents(cache)
    flip(pixels, 300)
    assert "has changed in 1 of" in FrameRows(cache.directory).damage()
    cache.open(verify="hashes")
    assert contents(cache) == before


@encodings
def test_a_complete_cache_is_not_built_again(source, encoding):
    cache = cache_of(source, encoding)
    cache.build()
    before = contents(cache)
    source.log.unlink()
    lock = cache.directory.with_name(f"{cache.directory.name}.lock")
    lock.unlink()
    again = cache_of(source, encoding)
    assert contents(again) == before
    assert again.estimate().n_bytes == sum(file.stat().st_size for file in cache.directory.glob("*[!n]"))
    assert not source.log.exists()
    assert not lock.exists()  # nothing is written, so the place may be read-only


def test_progress_and_estimate_say_how_much_is_left(source):
    cache, seen = cache_of(source), []
    estimate = cache.estimate()
    assert (estimate.frames, estimate.frames_left, estimate.n_bytes) == (37, 37, 37 * 12 * 16 * 3)
    assert not cache.directory.exists()
    assert re.search(naming("37 of 37 frames", "0 s", "0.0213 MB", "raw"), str(estimate))
    cache.build(progress=seen.append)
    assert seen[-1].frames_done == seen[-1].frames == 37 and seen[-1].seconds_left == 0
    assert cache.estimate().frames_left == 0
    line = str(BuildProgress(1200, 54000, 310.4, 170.1))
    assert line == "1,200 of 54,000 frames, 310 frames/s, 3 min left"


@encodings
def test_a_cache_of_other_files_with_the_same_sizes_and_times_is_refused(source, encoding, tmp_path):
    def of(name, seed):
        (tmp_path / name).mkdir(exist_ok=True)
        made = MadeFrames(tmp_path / name, LENGTHS, PARTS, seed=seed)
        for path in (*source.files(), *made.files()):
            os.utime(path, ns=(1, 1))
        return cache_of(made, encoding)

    other, copy = of("other", seed=1), of("copy", seed=0)
    cache = cache_of(source, encoding)
    assert cache.directory == other.directory == copy.directory
    cache.build()
    expected = contents(cache)
    assert contents(copy) == expected
    with pytest.raises(DataError, match=naming(tmp_path / "set", "data.frame_cache")):
        other.open()
    shutil.rmtree(tmp_path / "set")
    assert contents(copy) == expected  # moved, as far as one can tell


def test_the_name_of_a_cache_follows_from_all_that_decides_about_its_pixels(source):
    root, names = source.root.parent, set()

    def add(fit=FIT, **how):
        names.add(FrameCache(source, fit, root, **how).directory.name)

    add()
    add()
    assert len(names) == 1
    add(Fit(size=(12, 17)))
    add(Fit(size=(12, 16), how="crop"))
    add(encoding=Encoding(type="grey"))
    add(encoding=Encoding(type="jpeg"))
    add(encoding=Encoding(type="jpeg", quality=92))
    assert len(names) == 6
    source.parts[0], source.parts[1] = source.parts[1], source.parts[0]
    add()
    source.ends = source.ends.copy()
    source.ends[0] -= 1
    add()
    os.utime(source.parts[2].where, ns=(1, 1))
    add()
    Path(source.parts[2].where).write_bytes(b"longer than before")
    os.utime(source.parts[2].where, ns=(1, 1))
    add()
    assert len(names) == 10


def test_the_place_is_the_given_one_or_beside_the_data_or_the_users(tmp_path, monkeypatch):
    assert cache_root(tmp_path / "x", tmp_path / "set") == tmp_path / "x"
    assert cache_root(None, tmp_path / "set") == tmp_path / ".dp_prior_frames"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root(None, tmp_path / "set") == tmp_path / ".cache/dp_prior/frames"


# What cannot be read --------------------------------------------------------------------------------------------------


class Spoiled(MadeFrames):
    """Some parts cannot be read, or give too many frames."""

    spoiled = (1, 3)
    extra = 0

    def read(self, part, skip):
        yield from super().read(part, skip)
        if int(Path(part.where).name) in self.spoiled:
            if self.extra:
                yield self.frames[: self.extra]
            else:
                raise DataError(part.where, ["is damaged at its end"])


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


def test_a_source_without_frames_or_with_missing_files_is_refused(source):
    with pytest.raises(DataError, match=naming("no frames")):
        cache_of(MadeFrames(source.root, [], []))
    os.unlink(source.parts[2].where)
    with pytest.raises(DataError, match=naming("set/2", "No such file")):
        cache_of(source)


def test_a_disk_that_is_too_small_is_refused_before_the_first_frame(source, monkeypatch):
    cache = cache_of(source)
    monkeypatch.setattr(cache_module, "_free_bytes", lambda directory: 20_000)
    with pytest.raises(UnwritableError, match=naming("0.0213 MB", "0 MB", "0.02 MB")):
        cache.build()
    assert not source.log.exists()


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


@pytest.mark.parametrize("name", ["cache.json", "episodes.jsonl", "frames.u8"])
def test_a_cache_that_cannot_be_read_now_is_not_built_again(source, monkeypatch, name):
    """A disk that is away for a moment, or too many open files, must not cost hours of decoding."""
    cache = cache_of(Spoiled(source.root, LENGTHS, PARTS) if name == "episodes.jsonl" else source)
    with contextlib.suppress(DataError):
        cache.build()
    before = {file.name: file.read_bytes() for file in cache.directory.iterdir()}
    assert name in before

    def refuse(path, *arguments, **named):
        if Path(path).name == name:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *arguments, **named)

    call = "stat" if name == "frames.u8" else "read_bytes"
    real = getattr(Path, call)
    monkeypatch.setattr(Path, call, refuse)
    with pytest.raises(UnreadableError, match=naming(os.strerror(errno.EIO), cache.directory.name)):
        cache_of(source).build()
    monkeypatch.undo()
    assert {file.name: file.read_bytes() for file in cache.directory.iterdir()} == before


def test_a_place_that_cannot_be_written_is_refused(source, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UnwritableError, match=naming(os.strerror(errno.ENOTDIR), "file/caches")):
        cache_of(source, root=tmp_path / "file/caches").build()


# Damage ---------------------------------------------------------------------------------------------------------------


def flip(path, place):
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 255]))


@encodings
@pytest.mark.parametrize("harm", ["short", "long", "gone", "index", "index gone"])
def test_damaged_sizes_and_documents_are_noticed_and_built_again(source, encoding, harm):
    cache = cache_of(source, encoding)
    cache.build()
    before, told = contents(cache), []
    pixels = cache.directory / read_index(cache.directory).encoding.files[0]
    match harm:
        case "short":
            os.truncate(pixels, pixels.stat().st_size - 1)
        case "long":
            os.truncate(pixels, pixels.stat().st_size + 1)
        case "gone":
            pixels.unlink()
        case "index":
            flip(cache.directory / "cache.json", 50)
        case "index gone":
            (cache.directory / "cache.json").unlink()
    cache_of(source, encoding).build(tell=told.append)
    assert contents(cache) == before
    assert len(told) == (harm != "index gone")
    assert all("is built again: " in line for line in told)


@encodings
def test_hashes_find_what_sizes_do_not(source, encoding, caplog):
    cache = cache_of(source, encoding)
    before = (cache.build(), contents(cache))[1]
    in_row_5 = 5 * 12 * 16 * 3
    if encoding == "jpeg":
        in_row_5 = int(np.fromfile(cache.directory / "offsets.u64", "<u8")[10])
    flip(cache.directory / read_index(cache.directory).encoding.files[0], in_row_5 + 300)
    assert cache.open().damage().endswith("has changed in 1 of 8 episodes: 2")
    rows = cache.open(verify="hashes")
    assert rows.damage() is None and contents(cache) == before
    assert [line.endswith("has changed in 1 of 8 episodes: 2") for line in caplog.messages] == [True]


def test_a_damaged_cache_whose_source_is_gone_gives_one_error(source):
    cache = cache_of(source)
    cache.build()
    os.truncate(cache.directory / "frames.u8", 7)
    os.unlink(source.parts[0].where)
    with pytest.raises(DataError, match=naming("set/0", "No such file")) as error:
        cache_of(source)
    assert error.value.problems[-1] == "a frame cache is found by the files that it was made from"


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


# Kills and several builders -------------------------------------------------------------------------------------------

KILLS = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from dp_prior.data.frames import build
from dp_prior.data.frames import frame_cache as cache
from dp_prior.data.frames.layout import Encoding
from dp_prior.pixels.resize import Fit
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
        cache.FrameCache(source, Fit(size=(12, 16)), root / "caches", encoding=Encoding(type=encoding)).build(workers)
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


@pytest.mark.parametrize("encoding, workers", [("raw", 3), pytest.param("jpeg", 1, marks=pytest.mark.slow)])
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
        " encoding=Encoding(type=encoding))\n"
        "    from dp_prior.data.frames.layout import read_index\n"
        "    import json\n    print(json.dumps(read_index(found.directory).digests))\n"
    )
    output = forks.call(["-c", program, source.root.parent, encoding, 1, 1])
    assert output.returncode == 0, output.stderr
    lines = output.stdout.splitlines()
    assert len(lines) > 30 and set(lines) == {str(expected[0]).replace("'", '"')}, at


def test_two_builders_at_once_build_once(source):
    """Two processes: each file is read by one of them, and both end with the whole cache."""
    program = f"""
import os, sys, time
from pathlib import Path
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.pixels.resize import Fit
from tests.data.frames.recordings import MadeFrames
root = Path(sys.argv[1])
source = MadeFrames(root / "set", {LENGTHS}, {PARTS})
cache = FrameCache(source, Fit(size=(12, 16)), root / "caches")
(root / f"ready_{{os.getpid()}}").touch()
while len(list(root.glob("ready_*"))) < 2:
    time.sleep(0.001)
cache.build(2)
print(len(cache.open()))
"""
    root = source.root.parent
    logs = [root / "first.txt", root / "second.txt"]
    builders = [forks.start(["-c", program, root], log, log) for log in logs]
    for builder in builders:
        builder.join(60)
    assert [log.read_text() for log in logs] == ["37\n"] * 2
    lines = source.log.read_text().splitlines()
    assert len(lines) == len(PARTS) and len({line.split()[0] for line in lines}) == 1


def test_who_waits_says_for_whom_and_then_uses_what_was_built(source):
    cache, told, waiting = cache_of(source), [], threading.Event()
    cache.directory.parent.mkdir()

    def tell(line):
        told.append(line)
        waiting.set()

    waiter = threading.Thread(target=lambda: cache.build(tell=tell))
    with build_lock(cache.directory.parent / f"{cache.directory.name}.lock", print, lambda: "", lambda: None):
        waiter.start()
        assert waiting.wait(30)
        assert not source.log.exists()
    waiter.join(30)
    assert told[0].startswith(f"waiting for the frame cache that process {os.getpid()} on host ")
    assert told[0].endswith(" builds: 0 of 37 frames are done")
    assert torch.equal(cache.open().rows(torch.arange(37)), expected_frames(source))


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_at_its_path(tmp_path):
    """Otherwise the next process would lock a new file at that path, and two would build one cache."""
    path, told = tmp_path / "lock", []
    holder = contextlib.ExitStack()
    holder.enter_context(build_lock(path, print, lambda: "", lambda: None))

    def remove():  # as whoever deletes an unused cache does, while the other one waits
        path.unlink(missing_ok=True)
        holder.close()

    def refuse():
        raise BlockingIOError

    with build_lock(path, told.append, lambda: "", remove):
        assert path.exists()
        with pytest.raises(BlockingIOError), build_lock(path, told.append, lambda: "", refuse):
            pytest.fail("two processes hold the lock")


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
    assert 0 < len(cache._plan.done()) < len(LENGTHS)
    asked.set()
    lock = cache.directory.with_name(f"{cache.directory.name}.lock")
    with build_lock(lock, print, lambda: "", lambda: None), pytest.raises(Asked):
        cache.build(check=check)
    source.log.unlink()
    assert torch.equal(cache.open().rows(torch.arange(37)), expected_frames(source))
    assert len(source.log.read_text().splitlines()) < len(PARTS)


def test_a_build_that_is_interrupted_stops_its_threads_and_goes_on_later(source):
    cache = cache_of(source)

    def interrupt(found):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build(2, interrupt)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("frames")]
    np.testing.assert_array_equal(cache.open().rows(torch.arange(37)).numpy(), expected_frames(source).numpy())
