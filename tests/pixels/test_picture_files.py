"""Encoded pictures."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from dp_prior.pixels.picture_files import PictureError, import_pillow, opened_picture

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def encoded(format="PNG"):
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, format)
    return stream.getvalue()


@pytest.mark.parametrize("format", ["PNG", "BMP", "TIFF"])
def test_pixels_come_back(format):
    with opened_picture(encoded(format)) as picture:
        assert np.array_equal(np.asarray(picture), PIXELS)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html>", "Pillow knows no format that begins with b'<!DOCTYPE html>'"),
        (encoded()[:-30], "image file is truncated"),
    ],
)
def test_what_cannot_be_decoded_is_one_error(data, problem):
    with pytest.raises(PictureError, match=f"is no readable picture: {problem}"), opened_picture(data) as picture:
        picture.load()


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for extra in ("plots", "image"):
        with pytest.raises(ImportError, match=rf'pictures need Pillow .*pip install "dp_prior\[{extra}\]"'):
            import_pillow(extra)
