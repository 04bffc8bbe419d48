"""What the sources of images have in common: they are `FrameSource`s, with a label for each image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.frames import Part

CHUNK = 1024
"""Images that the frame cache stores and makes durable together, as it does with the frames of an episode."""


class ImageSource(ABC):
    """See `FrameSource`; chunks of images are its episodes.

    Attributes:
        size: height and width of the first image.
        labels: (N,) int64 number of the class of each image; None without labels.
        classes: names of the classes by their number.
        places: endings of the files that are read, by path; see `Integrity`.
    """

    def __init__(self, root: Path, count: int, labels: np.ndarray | None = None, classes: Sequence[str] = ()):
        """
        Args:
            root: the file or folder.
            count: number N of images.

        Raises:
            DataError: there are no images, or they have not one label each.
        """
        if not count:
            raise DataError(str(root), ["holds no images"])
        if labels is not None and len(labels) != count:
            raise DataError(str(root), [f"holds {len(labels)} labels for {count} images; expected one each"])
        self.root, self.labels, self.classes = root, labels, tuple(classes)
        self.ends = np.append(np.arange(CHUNK, count, CHUNK), count)
        self.parts = [Part(str(root), (chunk,)) for chunk in range(len(self.ends))]

    size: tuple[int, int]

    def __len__(self) -> int:
        """N."""
        return int(self.ends[-1])

    @abstractmethod
    def read(self, part: Part, skip: int) -> Iterator[np.ndarray]:
        """Blocks of (k, H, W, 3) uint8, see `FrameSource`; each block may have another size."""

    @abstractmethod
    def files(self) -> list[Path]:
        """See `FrameSource`."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """See `FrameSource`."""

    def bounds(self, part: Part) -> tuple[int, int]:
        """First image of a part, and the one after its last."""
        first, last = part.episodes[0], part.episodes[-1]
        return (int(self.ends[first - 1]) if first else 0), int(self.ends[last])


def numbered(names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number the classes in the order of their names, numbers by value: (N,) int64 labels and the classes."""
    classes = sorted(set(names), key=lambda name: (0, int(name), name) if name.isdecimal() else (1, 0, name))
    number = {name: index for index, name in enumerate(classes)}
    return np.array([number[name] for name in names], np.int64), tuple(classes)
