"""Encoded pictures are opened here, with Pillow: PNG, JPEG and others."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image


class PictureError(ValueError):
    """A picture that cannot be decoded."""


def import_pillow(extra: str = "plots") -> Any:
    """Pillow's module Image.

    Args:
        extra: the one that its user needs.

    Raises:
        ImportError: Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f'pictures need Pillow ({error}): pip install "dp_prior[{extra}]"') from error
    return Image


@contextmanager
def opened_picture(data: bytes) -> Iterator[Image]:
    """The picture that `data` encode; its pixels are decoded when they are asked for, inside the context.

    Raises:
        PictureError: it cannot be decoded. Raised for every exception inside the context.
    """
    image_of = import_pillow()
    from PIL import UnidentifiedImageError

    try:
        with image_of.open(io.BytesIO(data)) as picture:
            yield picture
    except Exception as error:  # Pillow's plugins raise all kinds on pictures that are damaged
        problem = str(error) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):  # its text names the Python object that holds the bytes
            problem = f"Pillow knows no format that begins with {data[:16]!r}" if data else "it is empty"
        raise PictureError(f"is no readable picture: {problem}") from None


def upright(picture: Image) -> Image:
    """An opened picture turned and flipped as its EXIF orientation says; itself where nothing is said."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture)


def orientation_of(picture: Image) -> int:
    """How EXIF says that an opened picture is turned and flipped, 1 to 8; 1 is upright."""
    from PIL import ExifTags

    return int(picture.getexif().get(ExifTags.Base.Orientation, 1))
