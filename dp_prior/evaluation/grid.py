"""Pictures of images: a grid, and rows of images that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dp_prior.files.durable import replacing
from dp_prior.tensors.pixels.picture_files import import_pillow

TILE_SIDE = 64
"""Images are enlarged by the largest whole factor that keeps their height at most this many pixels."""

GAP = 2  # pixels between images


def beside(pictures: Sequence[np.ndarray], gap: int = 4) -> np.ndarray:
    """Several (n, height, width, 3) side by side, aligned at the top, on white, `gap` pixels apart."""
    height = max(part.shape[1] for part in pictures)
    width = sum(part.shape[2] + gap for part in pictures) - gap
    sheet = np.full((len(pictures[0]), height, width, 3), 255, np.uint8)
    left = 0
    for part in pictures:
        sheet[:, : part.shape[1], left : left + part.shape[2]] = part
        left += part.shape[2] + gap
    return sheet


def save_png(path: Path | BinaryIO, image: np.ndarray) -> None:
    """Write (height, width, 1 or 3) uint8 to a file, not durably."""
    import_pillow().fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(path, format="PNG")


def write_png(path: Path, image: np.ndarray) -> None:
    """Save a PNG durably, create the folder, and replace an existing file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        save_png(temporary, image)


def grid(images: np.ndarray, columns: int, *, after_first: int = 0) -> np.ndarray:
    """Images in rows, enlarged, on white.

    Args:
        images: (n, height, width, 1 or 3) uint8; a last row that is not full is filled with white.
        after_first: pixels besides `GAP` after the first column.

    Returns:
        (height, width, 1 or 3) uint8.
    """
    factor = max(1, TILE_SIDE // images.shape[1])
    images = images.repeat(factor, 1).repeat(factor, 2)
    n, height, width, channels = images.shape
    rows = -(-n // columns)
    shape = rows * (height + GAP) - GAP, columns * (width + GAP) - GAP + after_first, channels
    sheet = np.full(shape, 255, np.uint8)
    for number, image in enumerate(images):
        row, column = divmod(number, columns)
        top, left = row * (height + GAP), column * (width + GAP) + (after_first if column else 0)
        sheet[top : top + height, left : left + width] = image
    return sheet
