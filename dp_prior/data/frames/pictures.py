"""One PNG, JPEG or other encoded picture, decoded to 8 bit RGB or refused by name."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding

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


def need_pillow(extra: str = "plots") -> None:
    """Args: extra: the one to install.

    Raises:
        ImportError: Pillow is not installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise ImportError(f'reading pictures needs Pillow: pip install "dp_prior[{extra}]"') from None


def read_rgb(path: Path) -> np.ndarray:
    """(H, W, 3) uint8 RGB of a picture file of any mode, converted as CLIP's own preprocessing does it.

    Raises:
        DataError: it cannot be read or decoded.
    """
    from PIL import Image

    with decoding(path, "is no readable picture"), Image.open(path) as picture:
        return np.array(picture.convert("RGB"))


def undecodable(error: Exception, data: bytes) -> str:
    """Why Pillow cannot decode `data`. Of bytes in no format it would name the Python object that holds them."""
    from PIL import UnidentifiedImageError

    if not data:
        return "it is empty"
    if isinstance(error, UnidentifiedImageError):
        return f"Pillow knows no format that begins with {data[:16]!r}"
    return str(error) or type(error).__name__


def decode_picture(data: bytes, where: str, size: tuple[int, int] | None) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an encoded picture of this height and width, or of any if None.

    Raises:
        DataError: it cannot be decoded, is no 8 bit RGB, or has another size.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as picture:
            mode, found = picture.mode, (picture.height, picture.width)
            if mode == "RGB" and (size is None or found == size):
                return np.array(picture)
    except Exception as error:  # Pillow's plugins raise all kinds on pictures that are damaged
        raise DataError(where, [f"is no readable picture: {undecodable(error, data)}"]) from None
    if mode != "RGB":
        kind = _REFUSED.get(mode, "16 bit, perhaps depth" if mode.startswith("I;16") else "unknown")
        raise DataError(where, [f"has mode {mode} ({kind}); expected 8 bit RGB"])
    raise DataError(where, [f"is {found[0]} x {found[1]}; expected {size[0]} x {size[1]} as in the other frames"])
