"""Caches beside the used ones are found by their names, and removed only while nobody builds them."""

import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.build_lock import build_lock
from dp_prior.data.frames.layout import JOURNAL
from dp_prior_studio.unused_caches import unused_caches
from tests.messages import naming

USED, STALE, LARGE = "0" * 32, "1" * 32, "f" * 32


@pytest.fixture
def place(tmp_path):
    for name, size in ((USED, 1), (STALE, 1), (LARGE, 100_000), ("a" * 31, 1), ("notes", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / JOURNAL).write_bytes(b"x" * size)
    (tmp_path / ("b" * 32)).mkdir()  # no file of a cache
    return tmp_path


def test_only_caches_beside_the_used_ones_are_found_largest_first(place):
    found = unused_caches([place / USED])
    assert [cache.directory.name for cache in found] == [LARGE, STALE]
    assert found[0].n_bytes >= 100_000 and "not complete" in str(found[0])
    assert unused_caches([place / USED, place / STALE, place / LARGE]) == []
    assert unused_caches([place / "nowhere" / USED]) == [] == unused_caches([])


def test_a_cache_that_is_being_built_is_not_removed_and_the_others_are(place):
    large, stale = unused_caches([place / USED])
    with (
        build_lock(place / f"{LARGE}.lock", print, str, lambda: None),
        pytest.raises(DataError, match=naming("f" * 32)),
    ):
        large.remove()
    stale.remove()
    assert (place / LARGE / JOURNAL).is_file() and not (place / STALE).exists()
    assert (place / USED / JOURNAL).is_file() and (place / "notes").is_dir()
