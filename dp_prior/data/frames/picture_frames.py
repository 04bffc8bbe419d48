"""One PNG, JPEG or other encoded picture, decoded to 8 bit RGB or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import reading
from dp_prior.pixels.picture_files import PictureError, encoded_picture, opened_picture

_REFUSED = {
    "1": "black and white",
    "L": "greyscale",
    "LA": "greyscale with alpha",
    "RGBA": "an alpha channel",
    "PA": "a palette with alpha",
    "P": "a palette",
    "CMYK": "CMYK",
    "F": "floating point, perhaps depth",
    "I": "32 bit, perhaps depth",
}


def read_rgb(path: Path) -> np.ndarray:
    """(H, W, 3) uint8 RGB of a picture file of any mode, converted as CLIP's own preprocessing does it.

    Raises:
        DataError: it cannot be read or decoded.
    """
    with reading(path):
        data = encoded_picture(path)
    try:
        with opened_picture(data) as picture:
            return np.array(picture.convert("RGB"))
    except PictureError as error:
        raise DataError(str(path), [str(error)]) from None


def decode_picture(data: bytes, where: str, size: tuple[int, int] | None) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an encoded picture of this height and width, or of any if None.

    Raises:
        DataError: it cannot be decoded, is no 8 bit RGB, or has another size.
    """
    try:
        with opened_picture(data) as picture:
            mode, found = picture.mode, (picture.height, picture.width)
            if mode == "RGB" and (size is None or found == size):
                return np.array(picture)
    except PictureError as error:
        raise DataError(where, [str(error)]) from None
    if mode != "RGB":
        kind = _REFUSED.get(mode, "16 bit, perhaps depth" if mode.startswith("I;16") else "unknown")
        raise DataError(where, [f"has mode {mode} ({kind}); expected 8 bit RGB"])
    raise DataError(where, [f"is {found[0]} x {found[1]}; expected {size[0]} x {size[1]} as in the other frames"])
