import errno
import json
import os
import pickle
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dp_prior.config import ConfigError
from dp_prior.data.errors import UnwritableError
from dp_prior_streams import part_cache
from dp_prior_streams.part_cache import NoRoomError, PartCache, budget_bytes, too_small
from dp_prior_streams.sealed_folder import SIZES
from tests.forks import call, start
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.damages import DAMAGES, rot, swap

SIZE = 300_000


def content_of(size):
    return (bytes(range(250)) * (size // 250 + 1))[:size]


def filled(size):
    return lambda folder: (folder / "content").write_bytes(content_of(size)) and None


def cache_of(tmp_path, budget=1_000_000):
    return PartCache(tmp_path / "cache", budget)


def names(cache):
    return sorted(path.name for path in cache.path("x").parent.iterdir())


def test_the_least_recently_used_folder_makes_room(tmp_path):
    cache = cache_of(tmp_path)
    for number, name in enumerate("abc"):
        cache.make(name, SIZE, filled(SIZE), ())
        os.utime(cache.path(name), (number, number))
    cache._touched.clear()
    assert cache.has("a")
    cache.make("d", SIZE, filled(SIZE), ())
    assert names(cache) == ["a", "c", "d"]
    sizes = sum((cache.path(name) / SIZES).stat().st_size for name in "acd")
    assert cache.used() == 3 * SIZE + sizes + cache.permanent_bytes()


def test_folders_that_are_needed_stay_and_without_room_nothing_is_removed(tmp_path):
    cache = cache_of(tmp_path)
    for name in "abc":
        cache.make(name, SIZE, filled(SIZE), ())
    with pytest.raises(NoRoomError, match=naming("disk_gb", "d", f"{SIZE:,} bytes", tmp_path)) as error:
        cache.make("d", SIZE, filled(SIZE), {"a", "b", "c"})
    least = float(re.search(r"(\S+) or more", str(error.value))[1]) * 1e9
    assert 4 * SIZE < least < 5 * SIZE and pickle.loads(pickle.dumps(error.value)).problems == error.value.problems
    with pytest.raises(NoRoomError, match=naming("statistics/x.json", "disk_gb")):
        cache.keep("statistics/x.json", bytes(9 * SIZE))
    assert names(cache) == ["a", "b", "c"]
    cache.make("d", SIZE, filled(SIZE), {"a", "c"})
    assert names(cache) == ["a", "c", "d"]


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    cache = cache_of(tmp_path)

    def fail(folder):
        (folder / "half").write_bytes(bytes(10))
        raise RuntimeError

    with pytest.raises(RuntimeError):
        cache.make("a", SIZE, fail, ())
    assert names(cache) == [] and not cache.has("a")


def test_what_is_being_made_holds_its_room_from_the_start(tmp_path):
    cache, begun, end = cache_of(tmp_path), threading.Event(), threading.Event()

    def slow(folder):
        begun.set()
        end.wait()

    thread = threading.Thread(target=cache.make, args=("a", 3 * SIZE, slow, ()))
    thread.start()
    begun.wait()
    assert cache.used() > 3 * SIZE
    with pytest.raises(NoRoomError):
        cache.make("b", SIZE, filled(SIZE), (), waits=False)
    end.set()
    cache.make("b", SIZE, filled(SIZE), ())  # waits until "a" is complete, and as small as it is
    thread.join()
    assert names(cache) == ["a", "b"]


MAKE_SLOWLY = f"""
import sys, time
from pathlib import Path
from dp_prior_streams.part_cache import PartCache

def fill(folder):
    time.sleep(0.5)
    (folder / "content").write_bytes(bytes({SIZE}))
    print("made")

PartCache(Path(sys.argv[1]), 1_000_000).make("a", {SIZE}, fill, ())
"""


def test_two_processes_make_a_folder_once(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda _: call(["-c", MAKE_SLOWLY, tmp_path / "cache"]), range(2))
        outputs = sorted(run.stdout for run in runs)
    assert outputs == ["", "made\n"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    cache = cache_of(tmp_path)
    leftover = cache.path(f".tmp_{os.uname().nodename}_999999999_00000000_a")
    leftover.mkdir()
    (leftover / "content").write_bytes(bytes(3 * SIZE))
    cache.make("b", SIZE, filled(SIZE), ())
    assert names(cache) == ["b"]


def test_a_budget_that_is_too_small_is_named_with_one_that_is_not():
    error = too_small(0.5, "a part takes 700", 612_345_678)
    assert isinstance(error, ConfigError)
    with pytest.raises(ConfigError, match=naming("disk_gb", 0.5, 0.613)):
        raise error
    assert budget_bytes(0.613) >= 612_345_678


def test_a_lowered_budget_holds_as_soon_as_it_is_asked_for(tmp_path):
    cache = cache_of(tmp_path)
    for number, name in enumerate("abc"):
        cache.make(name, SIZE, filled(SIZE), ())
        os.utime(cache.path(name), (number, number))
    os.utime(cache.path("a"), (9, 9))
    lowered = cache_of(tmp_path, 2 * SIZE + 20_000)
    lowered.trim()
    assert names(lowered) == ["a", "c"] and lowered.used() <= 2 * SIZE + 20_000
    lowered.trim()
    assert names(lowered) == ["a", "c"]
    cache_of(tmp_path, 1000).trim()
    assert names(lowered) == []


def test_what_is_being_made_is_not_trimmed(tmp_path):
    cache, lowered = cache_of(tmp_path), cache_of(tmp_path, SIZE + 20_000)

    def fill(folder):
        filled(SIZE)(folder)
        lowered.trim()

    cache.make("a", SIZE, fill, ())
    assert names(cache) == ["a"]


READ = """
import sys, time
from pathlib import Path
from dp_prior_streams.part_cache import PartCache

cache = PartCache(Path(sys.argv[1]), 1_000_000)
Path(sys.argv[2]).write_text("it reads")
time.sleep(300)
"""


def test_the_larger_budget_of_a_process_that_reads_holds_until_the_process_ends(tmp_path, caplog):
    cache = cache_of(tmp_path)
    for name in "abc":
        cache.make(name, SIZE, filled(SIZE), ())
    lowered = cache_of(tmp_path, SIZE + 20_000)
    signal = tmp_path / "signal"
    other = start(["-c", READ, tmp_path / "cache", signal], tmp_path / "log", tmp_path / "log")
    try:
        while not signal.exists():
            assert other.is_alive(), (tmp_path / "log").read_text()
            time.sleep(0.05)
        lowered.trim()
        assert names(lowered) == ["a", "b", "c"]
        [line] = caplog.messages
        assert told(line, "disk_gb", 0.00032, 0.001, tmp_path / "cache")
    finally:
        other.kill()
        other.join()
    lowered.trim()
    assert len(names(lowered)) == 1


def test_a_damaged_folder_is_made_again_where_the_budget_has_no_room_for_two(tmp_path):
    cache = cache_of(tmp_path, SIZE + 20_000)
    path = cache.make("a", SIZE, filled(SIZE), ())
    DAMAGES["a flipped bit"](path / "content")
    cache.make("a", SIZE, filled(SIZE), {"a"})
    assert (path / "content").read_bytes() == content_of(SIZE)


FAULTS = {
    **DAMAGES,
    "removed": lambda path: path.unlink(),
    "cut": lambda path: os.truncate(path, SIZE // 2),
    "without sizes": lambda path: (path.parent / SIZES).unlink(),
    "of an older version": lambda path: (path.parent / SIZES).write_text(json.dumps({path.name: SIZE})),
}


@pytest.mark.parametrize("is_open", [False, True], ids=["another process", "the same process"])
@pytest.mark.parametrize("damage", FAULTS)
def test_a_damaged_folder_is_made_again_with_a_line(tmp_path, caplog, damage, is_open):
    cache = cache_of(tmp_path)
    path = cache.make("a", SIZE, filled(SIZE), ())
    content, before = path / "content", content_of(SIZE)
    FAULTS[damage](content)
    cache = cache if is_open else cache_of(tmp_path)
    assert not cache.has("a")
    assert cache.make("a", SIZE, filled(SIZE), ()) == path and content.read_bytes() == before
    [line] = caplog.messages
    assert told(line, path) and cache.has("a") and cache_of(tmp_path).has("a")


def test_a_bit_that_the_disk_flipped_is_seen_where_hashes_are_asked_for(tmp_path):
    path = cache_of(tmp_path).make("a", SIZE, filled(SIZE), ())
    rot(path / "content", path / SIZES)
    assert cache_of(tmp_path).has("a")
    cache = cache_of(tmp_path)
    cache.verify = "hashes"
    assert not cache.has("a")
    cache.make("a", SIZE, filled(SIZE), ())
    assert cache.has("a") and (path / "content").read_bytes() == content_of(SIZE)


def test_folders_under_each_other_s_name_are_made_again(tmp_path):
    cache = cache_of(tmp_path)
    for name, byte in (("a", b"a"), ("b", b"b")):
        cache.make(name, SIZE, lambda folder, byte=byte: (folder / "content").write_bytes(byte * SIZE) and None, ())
    swap(cache.path("a"), cache.path("b"))
    cache = cache_of(tmp_path)
    assert not cache.has("a") and not cache.has("b")


def test_a_look_ends_the_wait_for_the_folder_that_another_process_makes(tmp_path):
    class AskedError(Exception):
        pass

    def look():
        raise AskedError

    cache, other = cache_of(tmp_path), cache_of(tmp_path)
    cache.look = look

    def fill(folder):
        filled(SIZE)(folder)
        with pytest.raises(AskedError):
            cache.make("a", SIZE, filled(SIZE), ())

    other.make("a", SIZE, fill, ())


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), OSError("100 requested and 20 written")])
def test_a_full_disk_is_named_with_its_remedy(tmp_path, monkeypatch, error):
    monkeypatch.setattr(part_cache, "FULL_BELOW", 1 << 62)

    def fill(folder):
        raise error

    cache = cache_of(tmp_path)
    with pytest.raises(UnwritableError, match=naming(os.strerror(errno.ENOSPC), "data.episodes.cache")):
        cache.make("a", SIZE, fill, ())
    assert names(cache) == []


def test_another_error_of_the_system_keeps_its_name(tmp_path):
    def fill(folder):
        raise PermissionError(errno.EACCES, "denied")

    with pytest.raises(PermissionError):
        cache_of(tmp_path).make("a", SIZE, fill, ())
