"""Sets of images: sizes, classes, brightness, copies, and a few images of each class to look at."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior.data.found_files import find_files
from dp_prior.data.pictures.decode import PICTURE_ENDINGS
from dp_prior.data.pictures.image_source import ImageSource
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.tensors.pixels.resize import Fit
from dp_prior_studio.inspection.data_urls import address
from dp_prior_studio.inspection.finding import MOST_NAMED, Finding

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
    """A sample of the images of one source.

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
        counts = np.bincount(labels[: self.used], minlength=len(self.source.classes))
        return {self.source.classes[number]: int(counts[number]) for number in np.argsort(-counts, kind="stable")}

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
    pixels_left = 2 * MOST_PIXELS  # later images may be larger than the first one
    for begin, end in _spans(source, used):
        for number, image in _read(source, begin, end, problems):
            if pixels_left < 0:
                break
            pixels_left -= image.shape[0] * image.shape[1]
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


def find_in_images(galleries: list[Gallery], record: ImagesConfig) -> Iterator[Finding]:
    """Faults of the images that a record names; images that could not be read come first."""
    for gallery in galleries:
        yield from (
            Finding("error", f"{gallery.name}: {problem}", code="image-unreadable")
            for problem in gallery.problems[:MOST_NAMED]
        )
        yield from _odd_sizes(gallery, record)
        if gallery.is_blank.any():
            yield Finding(
                "warning", f"{_some(gallery, gallery.is_blank)} of one colour throughout", code="images-blank"
            )
        yield from _copies(gallery, is_split=record.split.val > 0 or record.split.test > 0)
        counts = gallery.counts()
        commonest, largest = next(iter(counts.items()), ("", 0))
        rare = [f"{name!r} ({count:,})" for name, count in counts.items() if count < FEW * largest]
        if rare:
            rest = f" and {len(rare) - MOST_NAMED} more" * (len(rare) > MOST_NAMED)
            text = f"{gallery.name}: classes {', '.join(rare[:MOST_NAMED])}{rest} have few images"
            yield Finding("note", f"{text}, {commonest!r} has {largest:,}", code="classes-rare")
        if record.channels == 3 and len(gallery.numbers) and gallery.is_grey.all():
            yield Finding(
                "note",
                f"{gallery.name}: no image has colour; data.channels 1 takes a third of the memory",
                code="images-grey",
            )
    if len(galleries) == 2:
        first_numbers = dict(zip(galleries[0].digests, galleries[0].numbers.tolist(), strict=True))
        both = [
            number
            for number, digest in zip(galleries[1].numbers, galleries[1].digests, strict=True)
            if digest in first_numbers
        ]
        if both:
            first, second = galleries
            text = f"{len(both):,} of {len(second.numbers):,} images of {second.name} are in {first.name} too"
            where = second.source.locate(int(both[0]))
            yield Finding(
                "warning", f"{text}, and may be trained on; the first is {where}", code="test-images-in-training"
            )


def images_at(place: Path) -> dict[str, Any] | None:
    """`data` of a configuration for images at a place, with labels if there are any; None if there are no images.

    Raises:
        ImportError: see `_opened`.
    """
    if place.suffix == ".npz" and _holds_episodes(place):
        return None
    if parts := parts_at(place):
        return _of_parts(parts)
    kinds = ["folder", "parquet"] if place.is_dir() else ["parquet"]
    if place.suffix == ".npz":
        kinds = ["npz"]
    for kind in kinds:
        plain = {"type": kind, "path": str(place)}
        if _opened(plain, labelled=False) is None:
            continue
        for labels_from in ({"labels_from": way} for way in ("csv", "folder", "prefix")) if kind == "folder" else ({},):
            opened = _opened(plain | labels_from, labelled=True)
            if opened is not None and 1 < len(opened.classes) <= len(opened) / 2:
                return {"type": "images", "source": plain | labels_from, "labels": True}
        return {"type": "images", "source": plain}
    return None


def parts_at(place: Path) -> dict[str, Path]:
    """The folders of a folder by their names in lower case; empty unless they are parts of a set rather than classes.
    Pictures or a `metadata.csv` beside the folders belong to all."""
    inside = [entry for entry in place.iterdir() if entry.name[0] != "."] if place.is_dir() else []
    parts = {entry.name.lower(): entry for entry in inside if entry.is_dir()}
    is_one = any(entry.suffix in PICTURE_ENDINGS or entry.name == "metadata.csv" for entry in inside)
    return parts if "train" in parts and parts.keys() <= PARTS and not is_one else {}


def _of_parts(parts: dict[str, Path]) -> dict[str, Any] | None:
    """`data` of the folder `train`, tested on the folder `test` if there is one of the same layout."""
    data = images_at(parts["train"])
    if data is None or "test" not in parts:
        return data
    test = data["source"] | {"path": str(parts["test"])}
    is_alike = _opened(test, labelled=data.get("labels", False)) is not None
    return data | {"test_source": test} if is_alike else data


def _holds_episodes(path: Path) -> bool:
    try:
        NpzStoreConfig(path=path).create()
    except (DataError, OSError):
        return False
    return True


def _opened(source: dict[str, Any], labelled: bool) -> ImageSource | None:
    """The source; None if it does not fit the files.

    Raises:
        ImportError: the package that reads the pictures of a folder is not installed.
    """
    record = ImagesConfig.model_validate({"source": source}).source
    try:
        return record.create(labelled=labelled, uniform=False)
    except (DataError, OSError):
        return None
    except ImportError:
        if source["type"] == "folder" and _holds_pictures(source["path"]):
            raise
        return None


def _holds_pictures(place: str) -> bool:
    try:
        find_files(place, PICTURE_ENDINGS)
    except (DataError, OSError):
        return False
    return True


def _odd_sizes(gallery: Gallery, record: ImagesConfig) -> Iterator[Finding]:
    kinds = Counter(map(tuple, gallery.sizes.tolist()))
    if record.size is None and len(kinds) > 1:
        (height, width), count = kinds.most_common(1)[0]
        text = f"images have {len(kinds)} sizes, {count:,} of {len(gallery.sizes):,} are {height} x {width}"
        yield Finding("error", f"{gallery.name}: {text}; set data.size, to which all are resized", code="sizes-differ")
    if record.size is not None:
        is_smaller = (gallery.sizes < record.size).any(1)
        if is_smaller.any():
            size = f"{record.size[0]} x {record.size[1]}"
            yield Finding(
                "note",
                f"{_some(gallery, is_smaller)} smaller than data.size, {size}, and enlarged",
                code="images-enlarged",
            )


def _copies(gallery: Gallery, is_split: bool) -> Iterator[Finding]:
    first: dict[bytes, int] = {}
    pairs = []
    for row, digest in enumerate(gallery.digests):
        if first.setdefault(digest, row) != row:
            pairs.append((first[digest], row))
    if not pairs:
        return
    names = [gallery.source.locate(int(gallery.numbers[row])) for row in pairs[0]]
    repeated = f"{len(pairs):,} of {len(gallery.numbers):,} images repeat another one"
    text = f"{gallery.name}: {repeated}, first {' and '.join(names)}"
    leak = "; data.split may train on one and validate on the other" if is_split else ""
    yield Finding("warning", f"{text}{leak}", code="images-repeated")
    if gallery.source.labels is not None:
        labels = gallery.source.labels[gallery.numbers]
        odd = [pair for pair in pairs if labels[pair[0]] != labels[pair[1]]]
        if odd:
            classes = " and ".join(repr(gallery.source.classes[labels[row]]) for row in odd[0])
            names = [gallery.source.locate(int(gallery.numbers[row])) for row in odd[0]]
            text = f"{gallery.name}: {len(odd):,} copies have another label, first {classes} of {' and '.join(names)}"
            yield Finding("warning", text, code="labels-disagree")


def _some(gallery: Gallery, which: np.ndarray) -> str:
    """The beginning of a message about some images, with the verb."""
    first = gallery.source.locate(int(gallery.numbers[np.flatnonzero(which)[0]]))
    return f"{gallery.name}: {which.sum():,} of {len(which):,} images, first {first}, are"


def _spans(source: ImageSource, total: int) -> list[tuple[int, int]]:
    """The spans of the first images, `total`, to read, each as first image and exclusive end."""
    pixels = source.size[0] * source.size[1]
    largest = min(MOST_IMAGES, max(SPANS, MOST_PIXELS // max(1, pixels)))
    if total <= largest:
        return [(0, total)]
    length = largest // SPANS
    return [(begin, begin + length) for begin in (np.arange(SPANS) * (total - length) // (SPANS - 1)).tolist()]


def _read(source: ImageSource, begin: int, end: int, problems: list[str]) -> Iterator[tuple[int, np.ndarray]]:
    """Number and pixels of images; skips unreadable images, and stops after a few of them."""
    while begin < end and len(problems) < MOST_NAMED:
        try:
            for part in source.parts:
                first, last = part.rows(source.ends)
                numbers = range(max(first, begin), min(last, end))
                if numbers:
                    frames = itertools.chain.from_iterable(source.read(part, numbers.start - first))
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
