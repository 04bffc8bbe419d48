"""A shared folder is filled once, also after an attempt that failed."""

import pytest

from tests.once import made_once


def test_a_folder_is_filled_by_the_first_that_succeeds(tmp_path_factory):
    calls = []

    def make(place):
        calls.append(place)
        if len(calls) == 1:
            raise OSError
        (place / "made.txt").write_text("once")

    with pytest.raises(OSError):
        made_once(tmp_path_factory, "of test_once", make)
    places = [made_once(tmp_path_factory, "of test_once", make) for _ in range(3)]
    assert len(calls) == 2 and set(places) == {calls[0]} and (places[0] / "made.txt").read_text() == "once"
