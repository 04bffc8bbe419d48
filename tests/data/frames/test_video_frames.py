"""Videos whose display matrix turns them, and greyscale videos."""

import struct

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.folder import FolderFrames
from dp_prior.data.frames.video_frames import read_video, size_of, turned
from tests.data.frames.recordings import ends_of, pictures, write_video
from tests.data.frames.sources import gathered
from tests.messages import naming


def write_turned(path, frames, matrix):
    """A lossless mp4 whose track header says a, b, c, d of the display matrix."""
    data = bytearray(write_video(path, frames).read_bytes())
    place = data.find(b"tkhd") + 44
    a, b, c, d = (value << 16 for value in matrix)
    data[place : place + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "matrix, turns", [((1, 0, 0, 1), 0), ((0, -1, 1, 0), 1), ((-1, 0, 0, -1), 2), ((0, 1, -1, 0), 3)]
)
def test_a_video_is_turned_as_its_display_matrix_says(matrix, turns, tmp_path):
    pytest.importorskip("av")
    frames = pictures(5)
    write_turned(tmp_path / "videos" / "episode_0.mp4", frames, matrix)
    source = FolderFrames(tmp_path / "videos", ends_of([5]))
    np.testing.assert_array_equal(gathered(source), np.rot90(frames, turns, axes=(1, 2)))
    upright = {"format": "video per episode"}
    assert source.describe() == (upright if not turns else {**upright, "turned": 90 * turns})


def test_a_video_that_is_mirrored_is_refused(tmp_path):
    pytest.importorskip("av")
    path = write_turned(tmp_path / "v.mp4", pictures(3), (-1, 0, 0, 1))
    with pytest.raises(DataError, match=naming("v.mp4", "display matrix", "quarter turns")):
        size_of(path)


def test_greyscale_is_repeated(tmp_path):
    pytest.importorskip("av")
    frames = np.repeat(pictures(4)[..., :1], 3, axis=3)
    path = write_video(tmp_path / "v.mkv", frames, codec="ffv1", pix_fmt="gray", options={})
    found = np.concatenate(list(read_video(path, size_of(path), {"0": 4})))
    assert (found == found[..., :1]).all()
    assert np.abs(found.astype(int) - frames).max() <= 1, "the test's own conversion to greyscale"
    assert turned(path) == {}
