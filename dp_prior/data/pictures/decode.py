"""One image of any usual kind -> 8 bit RGB."""

from __future__ import annotations

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.pixels.picture_files import PictureError, opened_picture, upright

PICTURE_ENDINGS = tuple(
    ending
    for lower in (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
    for ending in (lower, lower.upper(), lower.title())
)


def decode_image(data: bytes, where: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """(H, W, 3) uint8 RGB of an encoded image, turned as its EXIF orientation says.

    Greyscale is repeated, its 16 bit values are rounded to 8 (of 16 bit colours Pillow takes the upper 8), palettes and
    CMYK are converted, what is transparent is laid over white; of an animation this is the first frame.

    Args:
        where: the file, for messages.
        size: height and width that it must have; None for any.

    Raises:
        DataError: it cannot be decoded, or has another size.
    """
    try:
        with opened_picture(data) as opened:
            image = upright(opened)
            if image.mode.startswith("I"):
                pixels = _of_16_bits(np.asarray(image), image.info.get("transparency"))
            elif image.mode == "F":
                raise ValueError("holds floating-point numbers; expected 8 or 16 bit")
            else:
                pixels = np.asarray(image.convert("RGBA" if image.has_transparency_data else "RGB"))
    except PictureError as error:
        raise DataError(where, [str(error)]) from None
    if size is not None and pixels.shape[:2] != size:
        found = f"is {pixels.shape[0]} x {pixels.shape[1]}, but the first image is {size[0]} x {size[1]}"
        raise DataError(where, [f"{found}; set data.size, to which all are resized"])
    return as_rgb(pixels)


def as_rgb(pixels: np.ndarray) -> np.ndarray:
    """(..., 1, 3 or 4) uint8 greyscale, RGB or RGBA -> (..., 3) uint8; what is transparent is laid over white."""
    if pixels.shape[-1] == 4:
        color, alpha = pixels[..., :3].astype(np.uint16), pixels[..., 3:].astype(np.uint16)
        color *= alpha  # in place, because a picture may be large; the sums stay below 2^16
        color += 255 * (255 - alpha) + 127
        color //= 255
        return color.astype(np.uint8)
    return np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels


def _of_16_bits(values: np.ndarray, transparent: int | None) -> np.ndarray:
    """(H, W) of 0 to 65535 -> (H, W, 1) uint8, white where a value is the transparent one."""
    if values.min() < 0 or values.max() > 65535:
        raise ValueError(f"holds numbers from {values.min()} to {values.max()}; expected 0 to 65535")
    values = np.where(values == transparent, 65535, values).astype(np.uint32)
    return ((values * 255 + 32767) // 65535).astype(np.uint8)[..., None]
