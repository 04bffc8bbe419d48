"""Opens encoded pictures with Pillow: only the formats below, recognised by their content.

Pillow by itself reads some forty formats, and starts Ghostscript on a file that turns out to be PostScript.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_prior.files.entry_points import needing
from dp_prior.files.regular_files import read_small

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF", "TIFF", "PPM")

ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".bmp", ".webp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
)
"""Endings of picture files, in lower case; the format is known by the content."""

MOST_PIXELS = 1 << 26
"""Most pixels of a picture, such as 8192 x 8192; decoding takes about 16 bytes for each."""

MOST_BYTES = 8 * MOST_PIXELS
"""Most bytes of an encoded picture: its pixels uncompressed, four channels of 16 bits."""


class PictureError(ValueError):
    """A picture that cannot be decoded."""


def import_pillow(extra: str = "plots") -> Any:
    """Import Pillow's module Image.

    Args:
        extra: the extra to install, for the error.

    Raises:
        ImportError: Pillow is not installed.
    """
    with needing(extra, "pictures need Pillow"):
        from PIL import Image
    return Image


def encoded_picture(path: Path | str) -> bytes:
    """Read the bytes of a picture file.

    Raises:
        UnfitError: the file is no regular file, or has more than `MOST_BYTES`.
        OSError: the file cannot be read.
    """
    return read_small(path, MOST_BYTES)


@contextmanager
def opened_picture(data: bytes) -> Iterator[Image]:
    """Open an encoded picture; pixels are decoded when they are asked for, inside the context.

    Raises:
        PictureError: the data are in none of `FORMATS`, have more than `MOST_PIXELS`, or cannot be decoded. Raised in
            place of every exception inside the context.
    """
    image_of = import_pillow()
    from PIL import UnidentifiedImageError

    try:
        with image_of.open(io.BytesIO(data), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"{picture.width} x {picture.height} are more than {MOST_PIXELS:,} pixels; scale it")
            yield picture
    except Exception as error:  # Pillow's plugins raise all kinds on pictures that are damaged
        problem = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # its text names the Python object that holds the bytes
            expected = f"expected {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
            problem = f"it begins with {data[:16]!r}; {expected}" if data else "it is empty"
        raise PictureError(f"is no readable picture: {problem}") from None


def upright(picture: Image) -> Image:
    """Turn and flip an opened picture by its EXIF orientation; a picture without orientation is returned unchanged."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def orientation_of(picture: Image) -> int:
    """The EXIF orientation of an opened picture, 1 to 8; 1 is upright."""
    from PIL import ExifTags

    return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
