"""A cache is found by what decides about its pixels, built once by whoever comes first, and again if damaged."""

import contextlib
import errno
import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dp_prior.data.errors import DataError, UnreadableError, UnwritableError
from dp_prior.data.frames import frame_cache as cache_module
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.encodings import Grey, Jpeg, greyscale
from dp_prior.data.frames.frame_cache import FrameCache, cache_root
from dp_prior.data.frames.frame_rows import FrameRows
from dp_prior.data.frames.layout import read_index
from dp_prior.tensors.pixels.resize import Fit
from tests import forks
from tests.data.frames.caches import FIT, LENGTHS, PARTS, Spoiled, cache_of, contents, encodings, expected_frames
from tests.data.frames.recordings import MadeFrames
from tests.messages import naming, told

# Building -------------------------------------------------------------------------------------------------------------


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
    assert told(FrameRows(cache.directory).damage(), "1 of", "0")
    cache.open(verify="hashes")
    assert contents(cache) == before


def test_the_data_may_lie_in_a_folder_whose_name_is_no_unicode(source):
    root = Path(os.fsdecode(os.fsencode(source.root) + b"/\xff"))
    try:
        root.mkdir()
    except OSError:
        pytest.skip("this file system takes Unicode alone")
    every = torch.arange(sum(LENGTHS))
    found = cache_of(MadeFrames(root, LENGTHS, PARTS)).open().rows(every)
    assert torch.equal(found, cache_of(source).open().rows(every))


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
    add(Fit(size=(12, 16), region=(0.0, 0.0, 0.5, 1.0)))
    add(Fit(size=(12, 16), region=(0.5, 0.0, 1.0, 1.0)))
    add(encoding=Grey())
    add(encoding=Jpeg())
    add(encoding=Jpeg(quality=92))
    assert len(names) == 8
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
    assert len(names) == 12


def test_the_place_is_the_given_one_or_beside_the_data_or_the_users(tmp_path, monkeypatch):
    assert cache_root(tmp_path / "x", tmp_path / "set") == tmp_path / "x"
    assert cache_root(None, tmp_path / "set") == tmp_path / ".dp_prior_frames"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root(None, tmp_path / "set") == tmp_path / ".cache/dp_prior/frames"


# What cannot be read --------------------------------------------------------------------------------------------------


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
    before, lines = contents(cache), []
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
    cache_of(source, encoding).build(tell=lines.append)
    assert contents(cache) == before
    assert len(lines) == (harm != "index gone")
    assert all(told(line, cache.directory, "again") for line in lines)


@encodings
def test_hashes_find_what_sizes_do_not(source, encoding, caplog):
    cache = cache_of(source, encoding)
    before = (cache.build(), contents(cache))[1]
    in_row_5 = 5 * 12 * 16 * 3
    if encoding == "jpeg":
        in_row_5 = int(np.fromfile(cache.directory / "offsets.u64", "<u8")[10])
    flip(cache.directory / read_index(cache.directory).encoding.files[0], in_row_5 + 300)
    assert told(cache.open().damage(), "1 of 8", 2)
    rows = cache.open(verify="hashes")
    assert rows.damage() is None and contents(cache) == before
    assert [told(line, "1 of 8", 2) for line in caplog.messages] == [True]


def test_a_damaged_cache_whose_source_is_gone_gives_one_error(source):
    cache = cache_of(source)
    cache.build()
    os.truncate(cache.directory / "frames.u8", 7)
    os.unlink(source.parts[0].where)
    with pytest.raises(DataError, match=naming("set/0", "No such file")) as error:
        cache_of(source)
    assert told(error.value.problems[-1], "frame cache", "files")


# Several builders -----------------------------------------------------------------------------------------------------


def test_two_builders_at_once_build_once(source):
    """Two processes: each file is read by one of them, and both end with the whole cache."""
    program = f"""
import os, sys, time
from pathlib import Path
from dp_prior.data.frames.encodings import Grey, Jpeg, greyscale
from dp_prior.data.frames.frame_cache import FrameCache
from dp_prior.tensors.pixels.resize import Fit
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
        builder.join()
    assert [log.read_text() for log in logs] == ["37\n"] * 2
    lines = source.log.read_text().splitlines()
    assert len(lines) == len(PARTS) and len({line.split()[0] for line in lines}) == 1


def test_who_waits_says_for_whom_and_then_uses_what_was_built(source):
    cache, lines, waiting = cache_of(source), [], threading.Event()
    cache.directory.parent.mkdir()

    def tell(line):
        lines.append(line)
        waiting.set()

    waiter = threading.Thread(target=lambda: cache.build(tell=tell))
    with build_lock(cache.directory.parent / f"{cache.directory.name}.lock", print, lambda: "", lambda: None):
        waiter.start()
        assert waiting.wait(200)
        assert not source.log.exists()
    waiter.join()
    assert told(lines[0], "waiting", f"process {os.getpid()}", "0 of 37")
    assert torch.equal(cache.open().rows(torch.arange(37)), expected_frames(source))


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_at_its_path(tmp_path):
    """Otherwise the next process would lock a new file at that path, and two would build one cache."""
    path, said = tmp_path / "lock", []
    holder = contextlib.ExitStack()
    holder.enter_context(build_lock(path, print, lambda: "", lambda: None))

    def remove():  # as whoever deletes an unused cache does, while the other one waits
        path.unlink(missing_ok=True)
        holder.close()

    def refuse():
        raise BlockingIOError

    with build_lock(path, said.append, lambda: "", remove):
        assert path.exists()
        with pytest.raises(BlockingIOError), build_lock(path, said.append, lambda: "", refuse):
            pytest.fail("two processes hold the lock")


@pytest.mark.parametrize(("workers", "share"), [(1, 1), (2, 2), (4, 4), (100, 4)])
def test_an_estimate_is_of_the_frames_that_are_left_by_as_many_threads_as_there_are_files(
    source, monkeypatch, workers, share
):
    cache = cache_of(Spoiled(source.root, LENGTHS, PARTS))
    with pytest.raises(DataError):
        cache.build()
    left = 37 - sum(LENGTHS[number] for number in cache._plan.done())
    times = iter([0.0, 6.0])
    monkeypatch.setattr("dp_prior.data.frames.frame_cache.time", SimpleNamespace(monotonic=lambda: next(times)))
    estimate = cache_of(source).estimate(workers)
    assert 0 < left < 37 and estimate.frames_left == left
    assert estimate.seconds == pytest.approx(6.0 / sum(LENGTHS[:3]) * left / share)  # half a second for each frame


def test_the_size_of_jpegs_is_estimated_from_a_few_of_them(source):
    pytest.importorskip("PIL")
    cache = cache_of(source, "jpeg")
    expected = cache.estimate().n_bytes
    cache.build()
    assert 0.5 < expected / sum(file.stat().st_size for file in cache.directory.glob("*[!n]")) < 2
