"""Encoded pictures."""

import io
import os
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from dp_prior.data.errors import DataError
from dp_prior.data.frames.picture_frames import decode_picture
from dp_prior.data.pictures.decode import decode_image
from dp_prior.files.regular_files import UnfitError
from dp_prior.tensors.pixels.picture_files import (
    FORMATS,
    MOST_BYTES,
    PictureError,
    encoded_picture,
    import_pillow,
    opened_picture,
)
from dp_prior_foreign.embed import read_rgb
from tests.cases import every
from tests.messages import naming

PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def encoded(format="PNG"):
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, format)
    return stream.getvalue()


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"


def declared(width, height):
    """A PNG whose header declares another size."""
    data = bytearray(encoded())
    data[16:24] = struct.pack(">II", width, height)
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


@every(format=FORMATS)
def test_pixels_come_back(format):
    with opened_picture(encoded(format)) as picture:
        found = np.asarray(picture.convert("RGB")).astype(int)
        assert np.abs(found - PIXELS).max() <= (60 if format in ("JPEG", "WEBP") else 0)


def test_a_picture_that_compresses_a_thousand_to_one_comes_back():
    stream = io.BytesIO()
    Image.new("L", (3000, 3000), 7).save(stream, "PNG", compress_level=9)
    assert len(stream.getvalue()) < 3000 * 3000 / 500
    with opened_picture(stream.getvalue()) as picture:
        assert picture.getextrema() == (7, 7)


@pytest.mark.promise("K1", "K3", "K10")
def test_postscript_starts_no_program(tmp_path, monkeypatch):
    """Pillow gives it to Ghostscript, in every reader of pictures."""
    program = tmp_path / "gs"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\necho 10.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    file = tmp_path / "a.png"
    file.write_bytes(POSTSCRIPT)
    for read in (
        lambda: decode_picture(POSTSCRIPT, "a", None),
        lambda: decode_image(POSTSCRIPT, "a"),
        lambda: read_rgb(file),
    ):
        with pytest.raises(DataError, match=naming("b'%!PS-Adobe-3.0 E'", "PNG", "JPEG")):
            read()
    assert not (tmp_path / "started").exists()


@pytest.mark.promise("K8")
def test_a_file_too_large_for_a_picture_is_not_read(tmp_path):
    with open(tmp_path / "a.png", "wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UnfitError, match=naming("a.png", "536870913 bytes", 536870912)):
        encoded_picture(tmp_path / "a.png")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", ("empty",)),
        (b"<!DOCTYPE html>", ("b'<!DOCTYPE html>'", "PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")),
        (POSTSCRIPT, ("b'%!PS-Adobe-3.0 E'", "PNG")),
        (encoded("ICO"), (r"b'\x00\x00\x01\x00\x00\x00'", "PNG")),
        (declared(10_000, 10_000), ("10000 x 10000", "67,108,864 pixels")),
        (declared(10**6, 10**6), (f"{10**12} pixels",)),
        (encoded()[:-30], ("truncated",)),
    ],
)
def test_what_cannot_be_decoded_is_one_error(data, problem):
    with pytest.raises(PictureError, match=naming(*problem)), opened_picture(data) as picture:
        picture.load()


def test_without_pillow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    for extra in ("plots", "image"):
        with pytest.raises(ImportError, match=naming(f'pip install "dp_prior[{extra}]"')):
            import_pillow(extra)
