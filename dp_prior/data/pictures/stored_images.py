"""The images of one source: pixels in a frame cache, labels in memory; and what two sources must agree in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.frames.frame_column import ImageColumn
from dp_prior.data.pictures.image_source import ImageSource


@dataclass(frozen=True, eq=False)
class StoredImages:
    """The pixels of a source as a column, and the numbers of their classes.

    Attributes:
        labels: (N,) int64; None where they are not read.
    """

    source: ImageSource
    column: ImageColumn
    labels: np.ndarray | None

    def beside(self, trained: StoredImages, size: tuple[int, int] | None) -> StoredImages:
        """These images as the test images of a set that is trained on, with classes numbered as there.

        Args:
            size: to which all are resized; None for none.

        Raises:
            DataError: they have another size or other classes, or some of their files are trained on.
        """
        source, of, problems = self.source, trained.source, []
        if size is None and source.size != of.size:
            found = f"test images are {_by(source.size)}, but those of {of.root} {_by(of.size)}"
            problems.append(f"{found}; set data.size, to which all are resized")
        for name in sorted({*of.classes} ^ {*source.classes}):
            there, other = (of, source) if name in of.classes else (source, of)
            problems.append(f"class {name!r} is in {there.root}, but not in {other.root}; both need the same classes")
        if self.column.cache.directory == trained.column.cache.directory:
            problems.append("data.test_source names the images of data.source, which are trained on")
        elif source.describe() == of.describe() and (both := {*source.files()} & {*of.files()}):
            found = f"data.test_source has {len(both)} file{'s' if len(both) > 1 else ''} of data.source, {of.root}"
            problems.append(f"{found}, such as {min(both)}, which would be trained on; name folders apart")
        if problems:
            raise DataError(str(source.root), problems)
        if self.labels is None:
            return self
        numbers = np.array([of.classes.index(name) for name in source.classes], np.int64)
        return replace(self, labels=numbers[self.labels])


def check_classes(source: ImageSource, train: np.ndarray) -> None:
    """Raises DataError if no image of some class is trained on, so that its label would say nothing.

    Args:
        train: (n,) numbers of the images to train on.
    """
    if source.labels is None:
        return
    trained = np.bincount(source.labels[train], minlength=len(source.classes))
    there = np.bincount(source.labels, minlength=len(source.classes))
    problems = [
        f"no image of class {source.classes[number]!r} is trained on, of {there[number]} in all; add images, "
        f"leave the class out, or change data.split"
        for number in np.flatnonzero(trained == 0)
    ]
    if problems:
        raise DataError(str(source.root), problems)


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
