"""Rows that are encoded pictures."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames import FramePart
from dp_prior.data.frames.encoded import EncodedFrames, is_encoded
from tests.data.frames.recordings import ends_of, pictures, png
from tests.data.frames.sources import gathered
from tests.messages import naming

pytest.importorskip("PIL", reason="NOT CHECKED: Pillow is not installed")


def source(rows):
    return EncodedFrames(
        lambda first, stop: iter(rows[first:stop]), ends_of([len(rows)]), None, [], {}, [FramePart("here", (0,))]
    )


def test_only_pictures_are_taken_for_pictures():
    data = png(pictures(1)[0])
    assert is_encoded(data) and is_encoded(np.frombuffer(data + b"\0" * 9, np.uint8))
    for other in (b"", b"lift the cube", np.zeros(9, np.uint8), "text", 3.5, None):
        assert not is_encoded(other)


def test_pictures_padded_with_zeros_are_decoded_and_damage_is_named_by_its_row():
    frames = pictures(5)
    rows = [png(frame) + b"\0" * number for number, frame in enumerate(frames)]
    np.testing.assert_array_equal(gathered(source(rows)), frames)
    rows[3] = rows[3][:60]
    with pytest.raises(DataError, match=naming("here", "row 3", "truncated")):
        gathered(source(rows))
    rows[3] = png(frames[3][:-1])
    with pytest.raises(DataError, match=naming("here", "row 3", "23 x 32", "24 x 32")):
        gathered(source(rows))
