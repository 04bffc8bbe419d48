"""Encoded pictures of every mode, turned as their EXIF orientation says, as the images of an image set are."""

import io

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.picture_frames import decode_picture, turned
from dp_prior.data.pictures.decode import decode_image
from tests.cases import every
from tests.data.frames.recordings import pictures, png
from tests.messages import naming

Image = pytest.importorskip("PIL.Image")
FRAME = pictures(1)[0]


def encoded(pixels, orientation=None, mode=None):
    stream, exif = io.BytesIO(), Image.Exif()
    if orientation is not None:
        exif[0x0112] = orientation
    Image.fromarray(pixels, mode).save(stream, "PNG", exif=exif)
    return stream.getvalue()


@every(orientation=range(1, 9))
def test_a_picture_is_turned_like_an_image_of_an_image_set(orientation):
    data = encoded(FRAME, orientation)
    found = decode_picture(data, "x", None)
    np.testing.assert_array_equal(found, decode_image(data, "x"))
    dihedral = [np.rot90(each, turn) for each in (FRAME, FRAME[:, ::-1]) for turn in range(4)]
    assert sum(each.shape == found.shape and (each == found).all() for each in dihedral) == 1
    assert (orientation == 1) == np.array_equal(found, FRAME) == (turned(data) == {})


def test_grey_palettes_and_opaque_alpha_are_read_without_a_loss():
    grey = FRAME[..., 0]
    np.testing.assert_array_equal(decode_picture(png(grey), "x", None), np.stack([grey] * 3, 2))
    palette = io.BytesIO()
    few = Image.fromarray(FRAME).quantize(16)
    few.save(palette, "PNG")
    np.testing.assert_array_equal(decode_picture(palette.getvalue(), "x", None), np.array(few.convert("RGB")))
    opaque = np.full_like(FRAME[..., :1], 255)
    np.testing.assert_array_equal(decode_picture(png(np.dstack([FRAME, opaque])), "x", None), FRAME)
    np.testing.assert_array_equal(decode_picture(png(np.dstack([grey, opaque])), "x", None), np.stack([grey] * 3, 2))


def test_what_may_be_depth_or_transparent_is_refused_by_name():
    for pixels, message in (
        (np.dstack([FRAME, FRAME[..., :1]]), ("RGBA", "RGB")),
        (FRAME[..., 0].astype(np.uint16), ("I;16", "RGB")),
    ):
        with pytest.raises(DataError, match=naming(*message)):
            decode_picture(png(pixels), "x", None)
    with pytest.raises(DataError, match=naming("24 x 32", "32 x 24")):
        decode_picture(encoded(FRAME), "x", (32, 24))


def test_what_is_no_picture_is_refused_with_its_place():
    with pytest.raises(DataError, match=naming("here", "PNG", "JPEG")):
        decode_picture(b"no picture", "here", None)
    with pytest.raises(DataError, match=naming("here", "PNG", "JPEG")):
        decode_picture(encoded(FRAME)[:40], "here", None)
