"""Sets of images: sizes, classes, brightness, copies, and a few images of each class to look at."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.pictures.decode import PICTURE_ENDINGS
from dp_prior.data.pictures.image_source import ImageSource
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.pixels.resize import Fit
from dp_prior.reports.inspection.data_urls import address
from dp_prior.reports.inspection.finding import MOST_NAMED, Finding

MOST_IMAGES, MOST_PIXELS, SPANS = 4096, 2**28, 32
"""Images that are read of a source at most, fewer of large ones; of larger sets evenly spread spans are read."""

THUMB, ACROSS, MOST_CLASSES = 64, 16, 24
"""Pixels of a still, stills side by side, and classes of which there is such a strip."""

PARTS = {"train", "test", "val", "valid", "validation", "dev", "eval"}
"""Usual names of folders with the parts of a set, which are no classes."""

FEW = 0.1
"""A class with less than this share of the images of the largest one is named."""


@dataclass(frozen=True)
class Gallery:
    """Images of one source, as far as they were looked at.

    Attributes:
        name: `source` or `test_source`.
        used: number of images, the first ones, that a configuration uses.
        numbers: (n,) of the images that were read.
        sizes: (n, 2) height and width.
        digests: hash of the pixels of each.
        histogram: (3, 256) pixels of each value, in red, green and blue.
        is_blank, is_grey: (n,) whether all pixels of an image are equal, and whether it has no colour.
        stills: (n, SIDE, SIDE, 3) uint8, fitted into a square.
        problems: why others could not be read.
    """

    name: str
    source: ImageSource
    used: int
    numbers: np.ndarray
    sizes: np.ndarray
    digests: list[bytes]
    histogram: np.ndarray
    is_blank: np.ndarray
    is_grey: np.ndarray
    stills: np.ndarray
    problems: list[str]

    def counts(self) -> dict[str, int]:
        """Number of all used images of each class, the largest first; empty without labels."""
        labels = self.source.labels
        if labels is None:
            return {}
        found = np.bincount(labels[: self.used], minlength=len(self.source.classes))
        return {self.source.classes[number]: int(found[number]) for number in np.argsort(-found, kind="stable")}

    def strips(self) -> Iterator[tuple[str, str]]:
        """Title and picture of some images, of each class if there are labels."""
        if self.source.labels is None:
            chosen = np.linspace(0, len(self.numbers) - 1, min(4 * ACROSS, len(self.numbers))).round().astype(int)
            rows = np.array_split(chosen, -(-len(chosen) // ACROSS)) if len(chosen) else []
            titled = [(f"images {self.numbers[row[0]]:,} to {self.numbers[row[-1]]:,}", row) for row in rows]
        else:
            labels = self.source.labels[self.numbers]
            names = list(self.counts())[:MOST_CLASSES]
            of = {name: np.flatnonzero(labels == self.source.classes.index(name))[:ACROSS] for name in names}
            titled = [(f"class {name}", row) for name, row in of.items() if len(row)]
        for title, row in titled:
            yield f"{self.name}, {title}", address(np.concatenate(list(self.stills[row]), axis=1))


def read_gallery(name: str, source: ImageSource, used: int) -> Gallery:
    """Look at a source.

    Args:
        source: which takes images of any size.
        used: see `Gallery`.
    """
    numbers, sizes, digests, flat, grey, stills, problems = [], [], [], [], [], [], []
    histogram = np.zeros((3, 256), np.int64)
    for begin, end in _spans(source, used):
        for number, image in _read(source, begin, end, problems):
            numbers.append(number)
            sizes.append(image.shape[:2])
            digests.append(hashlib.sha256(repr(image.shape).encode() + image.tobytes()).digest())
            histogram += [np.bincount(image[..., channel].reshape(-1), minlength=256) for channel in range(3)]
            flat.append(bool((image == image[0, 0]).all()))
            grey.append(bool((image == image[..., :1]).all()))
            stills.append(_still(image))
    return Gallery(
        name,
        source,
        used,
        np.array(numbers, np.int64),
        np.array(sizes, np.int64).reshape(-1, 2),
        digests,
        histogram,
        np.array(flat, bool),
        np.array(grey, bool),
        np.array(stills, np.uint8).reshape(-1, THUMB, THUMB, 3),
        problems,
    )


def find_in_images(found: list[Gallery], record: ImagesConfig) -> Iterator[Finding]:
    """Faults of the images that a record names; images that could not be read come first."""
    for seen in found:
        yield from (Finding("error", f"{seen.name}: {problem}") for problem in seen.problems[:MOST_NAMED])
        yield from _odd_sizes(seen, record)
        if seen.is_blank.any():
            yield Finding("warning", f"{_some(seen, seen.is_blank)} of one colour throughout")
        yield from _copies(seen, is_split=record.split.val > 0 or record.split.test > 0)
        counts = seen.counts()
        most, largest = next(iter(counts.items()), ("", 0))
        rare = [f"{name!r} ({count:,})" for name, count in counts.items() if count < FEW * largest]
        if rare:
            more = f" and {len(rare) - MOST_NAMED} more" * (len(rare) > MOST_NAMED)
            text = f"{seen.name}: classes {', '.join(rare[:MOST_NAMED])}{more} have few images"
            yield Finding("note", f"{text}, {most!r} has {largest:,}")
        if record.channels == 3 and len(seen.numbers) and seen.is_grey.all():
            yield Finding("note", f"{seen.name}: no image has colour; data.channels 1 takes a third of the memory")
    if len(found) == 2:
        known = dict(zip(found[0].digests, found[0].numbers.tolist(), strict=True))
        both = [number for number, digest in zip(found[1].numbers, found[1].digests, strict=True) if digest in known]
        if both:
            text = f"{len(both):,} of {len(found[1].numbers):,} images of {found[1].name} are in {found[0].name} too"
            where = found[1].source.locate(int(both[0]))
            yield Finding("warning", f"{text}, and may be trained on; the first is {where}")


def images_at(place: Path) -> dict[str, Any] | None:
    """`data` of a configuration for images at a place, with labels if there are any; None if there are no images."""
    if place.suffix == ".npz" and _holds_episodes(place):
        return None
    if parts := parts_at(place):
        return _of_parts(parts)
    kinds = ["npz"] if place.suffix == ".npz" else ["folder", "parquet"] if place.is_dir() else ["parquet"]
    for kind in kinds:
        plain = {"type": kind, "path": str(place)}
        if _opened(plain, labelled=False) is None:
            continue
        for more in ({"labels_from": way} for way in ("csv", "folder", "prefix")) if kind == "folder" else ({},):
            found = _opened(plain | more, labelled=True)
            if found is not None and 1 < len(found.classes) <= len(found) / 2:
                return {"type": "images", "source": plain | more, "labels": True}
        return {"type": "images", "source": plain}
    return None


def parts_at(place: Path) -> dict[str, Path]:
    """The folders of a folder by their names in lower case, if these are parts of a set and no classes; else empty.
    Pictures or a `metadata.csv` beside the folders belong to all."""
    inside = [each for each in place.iterdir() if each.name[0] != "."] if place.is_dir() else []
    parts = {each.name.lower(): each for each in inside if each.is_dir()}
    is_one = any(each.suffix in PICTURE_ENDINGS or each.name == "metadata.csv" for each in inside)
    return parts if "train" in parts and parts.keys() <= PARTS and not is_one else {}


def _of_parts(parts: dict[str, Path]) -> dict[str, Any] | None:
    """`data` of the folder `train`, tested on the folder `test` if there is one of the same layout."""
    found = images_at(parts["train"])
    if found is None or "test" not in parts:
        return found
    test = found["source"] | {"path": str(parts["test"])}
    is_alike = _opened(test, labelled=found.get("labels", False)) is not None
    return found | {"test_source": test} if is_alike else found


def _holds_episodes(path: Path) -> bool:
    try:
        NpzStoreConfig(path=path).create()
    except (DataError, OSError):
        return False
    return True


def _opened(source: dict[str, Any], labelled: bool) -> ImageSource | None:
    """The source; None if it does not fit the files."""
    record = ImagesConfig.model_validate({"source": source}).source
    try:
        return record.create(labelled=labelled, uniform=False)
    except (DataError, OSError, ImportError):
        return None


def _odd_sizes(seen: Gallery, record: ImagesConfig) -> Iterator[Finding]:
    kinds = Counter(map(tuple, seen.sizes.tolist()))
    if record.size is None and len(kinds) > 1:
        (height, width), count = kinds.most_common(1)[0]
        text = f"{seen.name}: images have {len(kinds)} sizes, {count:,} of {len(seen.sizes):,} are {height} x {width}"
        yield Finding("error", f"{text}; set data.size, to which all are resized")
    if record.size is not None:
        is_smaller = (seen.sizes < record.size).any(1)
        if is_smaller.any():
            wanted = f"{record.size[0]} x {record.size[1]}"
            yield Finding("note", f"{_some(seen, is_smaller)} smaller than data.size, {wanted}, and enlarged")


def _copies(seen: Gallery, is_split: bool) -> Iterator[Finding]:
    first: dict[bytes, int] = {}
    pairs = []
    for row, digest in enumerate(seen.digests):
        if first.setdefault(digest, row) != row:
            pairs.append((first[digest], row))
    if not pairs:
        return
    names = [seen.source.locate(int(seen.numbers[row])) for row in pairs[0]]
    text = (
        f"{seen.name}: {len(pairs):,} of {len(seen.numbers):,} images repeat another one, first {' and '.join(names)}"
    )
    leak = "; data.split may train on one and validate on the other" if is_split else ""
    yield Finding("warning", f"{text}{leak}")
    if seen.source.labels is not None:
        labels = seen.source.labels[seen.numbers]
        odd = [pair for pair in pairs if labels[pair[0]] != labels[pair[1]]]
        if odd:
            classes = " and ".join(repr(seen.source.classes[labels[row]]) for row in odd[0])
            names = [seen.source.locate(int(seen.numbers[row])) for row in odd[0]]
            text = f"{seen.name}: {len(odd):,} copies have another label, first {classes} of {' and '.join(names)}"
            yield Finding("warning", text)


def _some(seen: Gallery, which: np.ndarray) -> str:
    """The beginning of a message about some images, with the verb."""
    first = seen.source.locate(int(seen.numbers[np.flatnonzero(which)[0]]))
    return f"{seen.name}: {which.sum():,} of {len(which):,} images, first {first}, are"


def _spans(source: ImageSource, total: int) -> list[tuple[int, int]]:
    """The spans of the first images, `total`, to read, each as first image and exclusive end."""
    pixels = source.size[0] * source.size[1]
    most = min(MOST_IMAGES, max(SPANS, MOST_PIXELS // max(1, pixels)))
    if total <= most:
        return [(0, total)]
    length = most // SPANS
    return [(begin, begin + length) for begin in (np.arange(SPANS) * (total - length) // (SPANS - 1)).tolist()]


def _read(source: ImageSource, begin: int, end: int, problems: list[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Number and pixels of images; one that cannot be read is passed over, and after a few the rest."""
    while begin < end and len(problems) < MOST_NAMED:
        try:
            for part in source.parts:
                first, last = part.rows(source.ends)
                numbers = range(max(first, begin), min(last, end))
                if numbers:
                    frames = (frame for block in source.read(part, numbers.start - first) for frame in block)
                    for number, frame in zip(numbers, frames, strict=False):
                        yield number, frame
                        begin = number + 1
            return
        except DataError as error:
            problems.append(f"{error.source}: {error.problems[0]}")
            begin += 1


def _still(image: np.ndarray) -> np.ndarray:
    """(H, W, 3) -> (SIDE, SIDE, 3), the pixels of small images as squares."""
    factor = max(1, THUMB // max(image.shape[:2]))
    large = image.repeat(factor, axis=0).repeat(factor, axis=1)
    return (
        Fit(size=(THUMB, THUMB), how="letterbox").apply(torch.from_numpy(np.ascontiguousarray(large))[None])[0].numpy()
    )
