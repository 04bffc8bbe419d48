"""One PNG, JPEG or other encoded picture, decoded to 8 bit RGB or refused by name."""

from __future__ import annotations

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.tensors.pixels.picture_files import PictureError, opened_picture, orientation_of, upright

_REFUSED = {"CMYK": "CMYK", "F": "floating point, perhaps depth", "I": "32 bit, perhaps depth"}

_GREY_OR_COLOUR = ("1", "L", "LA", "P", "PA", "RGB", "RGBA")


def decode_picture(data: bytes, where: str, size: tuple[int, int] | None) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an encoded picture of this height and width, or of any if None.

    It is turned as its EXIF orientation says. Greyscale is repeated, a palette looked up, and alpha left out where it
    is opaque everywhere.

    Raises:
        DataError: it cannot be decoded, is not 8 bit, is transparent somewhere, or has another size.
    """
    try:
        with opened_picture(data) as opened:
            picture = upright(opened)
            mode, picture_size = picture.mode, (picture.height, picture.width)
            if mode == "RGB" and not picture.has_transparency_data:
                pixels, is_opaque = np.array(picture), True
            elif mode in _GREY_OR_COLOUR:
                whole = np.array(picture.convert("RGBA"))
                pixels, is_opaque = whole[..., :3], bool((whole[..., 3] == 255).all())
    except PictureError as error:
        raise DataError(where, [str(error)]) from None
    if size is not None and picture_size != size:
        expected = f"expected {size[0]} x {size[1]} as in the other frames"
        raise DataError(where, [f"is {picture_size[0]} x {picture_size[1]}; {expected}"])
    if mode not in _GREY_OR_COLOUR:
        kind = _REFUSED.get(mode, "16 bit, perhaps depth" if mode.startswith("I;16") else "unknown")
        raise DataError(where, [f"has mode {mode} ({kind}); expected 8 bit RGB"])
    if not is_opaque:
        raise DataError(where, [f"has mode {mode} and an alpha channel that is not opaque; save it as RGB"])
    return pixels


def turned(data: bytes) -> dict[str, int]:
    """For `describe`: the EXIF orientation of a picture that `decode_picture` has read; empty for an upright one."""
    with opened_picture(data) as picture:
        orientation = orientation_of(picture)
    return {"orientation": orientation} if orientation != 1 else {}
