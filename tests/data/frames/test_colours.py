"""Colours in arrays, pictures and videos are one and the same 8 bit RGB."""

import numpy as np
import pytest

from dp_prior.data.frames.colours import COLOURS, Colours
from dp_prior.data.frames.stored_pixels import PixelError
from dp_prior.data.frames.video_frames import read_video
from tests.data.frames.recordings import pictures, png, write_video
from tests.messages import naming

FRAMES = pictures(3)


def test_each_way_to_store_them_gives_the_same_pixels(tmp_path):
    for package in ("PIL", "av"):
        pytest.importorskip(package, reason=f"NOT CHECKED: {package} is not installed")
    np.testing.assert_array_equal(COLOURS.stored(FRAMES.shape, FRAMES.dtype).frames(FRAMES), FRAMES)
    np.testing.assert_array_equal([COLOURS.decode(png(frame), "a", None) for frame in FRAMES], FRAMES)
    video = write_video(tmp_path / "a.mp4", FRAMES)
    np.testing.assert_array_equal(next(read_video(video, FRAMES.shape[1:3], {"0": 3})), FRAMES)


def test_they_say_nothing_more_of_themselves_and_refuse_depth():
    """So caches keep their names."""
    assert COLOURS.describe() == {} and Colours() == COLOURS
    with pytest.raises(PixelError, match=naming("uint16", "data.depth")):
        COLOURS.stored((3, 24, 32, 3), np.dtype(np.uint16))
