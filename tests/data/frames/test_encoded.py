"""Rows that are encoded pictures."""

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames import FramePart
from dp_prior.data.frames.colours import COLOURS
from dp_prior.data.frames.depths import Depths
from dp_prior.data.frames.encoded import EncodedFrames, contents_of, is_encoded
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


def test_a_picture_of_deep_grey_is_depth_and_any_other_or_none_is_colours():
    frame = pictures(1)[0]
    assert isinstance(contents_of(png(frame[..., 0].astype(np.uint16))), Depths)
    for other in (frame, frame[..., 0]):
        assert contents_of(png(other)) == COLOURS
    assert contents_of(png(frame)[:30]) == COLOURS  # told where it is decoded


def test_rows_that_end_early_are_named():
    rows = [png(frame) for frame in pictures(3)]
    short = EncodedFrames(
        lambda first, stop: iter(rows[first : min(stop, 2)]), ends_of([3]), None, [], {}, [FramePart("here", (0,))]
    )
    with pytest.raises(DataError, match=naming("here", 2, "0 to 2")):
        gathered(short)


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
