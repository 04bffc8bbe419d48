"""Pictures as frames: lossless ones come back bit for bit, and other kinds of pixels are refused by their name."""

import io

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.frames.picture_frames import decode_picture, read_rgb

Image = pytest.importorskip("PIL.Image", reason="NOT CHECKED: Pillow is not installed")
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def encoded(mode="RGB", form="PNG"):
    file = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("form", ["PNG", "BMP"])
def test_a_lossless_picture_comes_back(form):
    for size in (None, (5, 7)):
        np.testing.assert_array_equal(decode_picture(encoded(form=form), "here", size), PIXELS)
    with pytest.raises(DataError, match="here.*\n.*is 5 x 7; expected 7 x 5"):
        decode_picture(encoded(form=form), "here", (7, 5))


@pytest.mark.parametrize(
    ("mode", "word"), [("L", "greyscale"), ("RGBA", "alpha"), ("P", "palette"), ("1", "black"), ("I", "depth")]
)
def test_other_pixels_than_rgb_are_refused_in_frames_and_converted_in_pictures(mode, word, tmp_path):
    with pytest.raises(DataError, match=f"(?s)here.*{word}.*expected 8 bit RGB"):
        decode_picture(encoded(mode), "here", None)
    (tmp_path / "a.png").write_bytes(encoded(mode))
    found = read_rgb(tmp_path / "a.png")
    assert found.shape == (5, 7, 3) and found.dtype == np.uint8


def test_what_is_no_picture_is_refused_with_its_place(tmp_path):
    with pytest.raises(DataError, match="here"):
        decode_picture(b"no picture", "here", None)
    (tmp_path / "a.png").write_bytes(encoded()[:40])
    with pytest.raises(DataError, match="a.png"):
        read_rgb(tmp_path / "a.png")
