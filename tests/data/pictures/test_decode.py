"""Encoded images of every kind become 8 bit RGB, and what cannot is refused by name."""

import io

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.pictures.decode import decode_image
from tests.cases import every
from tests.messages import naming

Image = pytest.importorskip("PIL.Image", reason="needs the extra image")

RGB = np.random.default_rng(0).integers(256, size=(5, 3, 3), dtype=np.uint8)
GREY = RGB[..., 0]


def saved(image, **how):
    stream = io.BytesIO()
    image.save(stream, **{"format": "PNG", **how})
    return stream.getvalue()


@every(orientation=range(1, 9))
def test_orientation_of_exif(orientation):
    """The eight orientations of EXIF 2.3 as flips and turns of the stored image."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = {
        1: RGB,
        2: RGB[:, ::-1],
        3: RGB[::-1, ::-1],
        4: RGB[::-1],
        5: RGB.transpose(1, 0, 2),
        6: np.rot90(RGB, -1),
        7: RGB[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(RGB),
    }
    assert np.array_equal(decode_image(saved(Image.fromarray(RGB), exif=exif), "a"), turned[orientation])


def test_greyscale_alpha_palettes_and_16_bits():
    grey = np.repeat(GREY[..., None], 3, -1)
    assert np.array_equal(decode_image(saved(Image.fromarray(GREY)), "a"), grey)
    assert np.array_equal(decode_image(saved(Image.fromarray(GREY.astype(np.uint16) * 257)), "a"), grey)
    assert np.array_equal(decode_image(saved(Image.fromarray(GREY > 99)), "a"), np.where(grey > 99, 255, 0))
    alpha = np.full((5, 3, 1), 255, np.uint8)
    alpha[0], alpha[1] = 0, 51
    found = decode_image(saved(Image.fromarray(np.concatenate([RGB, alpha], -1))), "a")
    assert (found[0] == 255).all() and np.array_equal(found[2:], RGB[2:])
    assert np.array_equal(found[1], np.round(0.2 * RGB[1] + 0.8 * 255).astype(np.uint8))
    both = Image.fromarray(np.concatenate([GREY[..., None], alpha], -1))
    assert (decode_image(saved(both), "a")[0] == 255).all()
    palette = Image.fromarray(GREY // 64 * 64).convert("P")
    assert np.array_equal(
        decode_image(saved(palette, transparency=int(palette.getpixel((0, 0)))), "a")[0, 0], [255] * 3
    )
    assert decode_image(saved(Image.fromarray(RGB).convert("CMYK"), format="TIFF"), "a").shape == (5, 3, 3)
    frames = [Image.fromarray(np.full((5, 3), value, np.uint8)) for value in (10, 200)]
    assert (decode_image(saved(frames[0], format="GIF", save_all=True, append_images=frames[1:]), "a") == 10).all()


def test_transparent_grey_of_16_bits_is_white_like_that_of_8():
    wide = Image.fromarray(GREY.astype(np.uint16) * 257)
    clear = int(GREY[2, 1])
    exif = Image.Exif()
    exif[0x0112] = 3
    found = decode_image(saved(wide, transparency=clear * 257, exif=exif), "a")
    assert np.array_equal(found, decode_image(saved(Image.fromarray(GREY), transparency=clear, exif=exif), "a"))
    assert (found[2, 1] == 255).all()


@pytest.mark.parametrize(
    ("data", "size", "message"),
    [
        (b"", None, ("a.png", "empty")),
        (
            b"<!DOCTYPE html>",
            None,
            ("a.png", "b'<!DOCTYPE html>'", "PNG", "JPEG"),
        ),
        (saved(Image.fromarray(RGB))[:60], None, ("a.png", "truncated")),
        (saved(Image.fromarray(GREY.astype(np.float32)), format="TIFF"), None, ("a.png", "floating-point", 8, 16)),
        (saved(Image.fromarray(GREY.astype(np.int32) * 70000), format="TIFF"), None, ("a.png", 1050000, 65535)),
        (saved(Image.fromarray(RGB)), (3, 5), ("5 x 3", "3 x 5", "data.size")),
    ],
)
def test_what_is_refused(data, size, message):
    with pytest.raises(DataError, match=naming(*message)):
        decode_image(data, "a.png", size)
