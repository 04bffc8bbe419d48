"""The handwritten digits in scikit-learn's wheel: 1,797 greyscale images of 8 x 8, ten classes, nothing to download.

They are the test part of Alpaydin and Kaynak's "Optical Recognition of Handwritten Digits" (UCI, 1998).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.data.frames import FramePart
from dp_prior.data.frames.frame_cache import USER_CACHE
from dp_prior.data.pictures.image_source import ImageSource
from dp_prior.files.entry_points import needing


class DigitsConfig(Config):
    """The handwritten digits of scikit-learn, 8 x 8, which are part of its wheel."""

    type: Literal["digits"] = "digits"

    def places(self) -> dict[str, tuple[str, ...]]:
        """An empty dict, since a package is no data set that `Integrity` checks."""
        return {}

    def create(self, *, labelled: bool, uniform: bool) -> Digits:
        """The digits; see `ImagesConfig.create`.

        Raises:
            ImportError: scikit-learn is not installed.
        """
        return Digits(labelled)


class Digits(ImageSource):
    """See `DigitsConfig`. Values of 0 to 16 become 0 to 255."""

    cache_place = USER_CACHE
    size = (8, 8)

    def __init__(self, labelled: bool):
        with needing("image", 'source "digits" needs scikit-learn'):
            from sklearn.datasets import load_digits
        digits = load_digits()
        self._pixels = np.round(digits.images * (255 / 16)).astype(np.uint8)
        labels = (digits.target.astype(np.int64), list("0123456789")) if labelled else None
        super().__init__(Path("scikit-learn's digits"), [len(self._pixels)], ["scikit-learn's digits"], labels)

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        yield np.repeat(self._pixels[skip:, :, :, None], 3, axis=-1)

    def files(self) -> list[Path]:
        """An empty list, since `describe` has the hash of the pixels."""
        return []

    def describe(self) -> dict[str, Any]:
        return {"format": "digits", "pixels": hashlib.sha256(self._pixels.tobytes()).hexdigest()}
