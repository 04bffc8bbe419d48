"""The data of an image task: pixels in a frame cache on disk, labels in memory, divided by a hash of the row.

Pixels travel as uint8 to the training device and become floats there. An accelerator with room holds all of them.
"""

from __future__ import annotations

import hashlib
import json
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dp_prior.batch import Batch, Kind, Spec
from dp_prior.config import Change, Config, family
from dp_prior.crop import Crop
from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.embeddings.parts import EmbeddingSplitConfig, Part
from dp_prior.data.errors import DataError
from dp_prior.data.frames.cache import FrameCache, cache_root
from dp_prior.data.frames.layout import Encoding
from dp_prior.data.image_sets.digits import DigitsConfig
from dp_prior.data.image_sets.folder import FolderImagesConfig
from dp_prior.data.image_sets.npz import NpzImagesConfig
from dp_prior.data.image_sets.parquet import ParquetImagesConfig
from dp_prior.data.image_sets.source import ImageSource
from dp_prior.data.images import ImageColumn, build_caches
from dp_prior.data.integrity import MANIFEST, Integrity, Verify
from dp_prior.data.loader import Loader
from dp_prior.data.split import PARTS
from dp_prior.normalizer import Statistics
from dp_prior.randomness import Randomness
from dp_prior.resize import Fit, Pixels
from dp_prior.rich_text import facts_table

X, LABEL, LOW_RES = "x", "label", "low_res"

ImageSourceConfig = family(
    "image_sources",
    *(FolderImagesConfig, NpzImagesConfig, ParquetImagesConfig, DigitsConfig),
    needs=("create", "places"),
)


class ImageSplitConfig(EmbeddingSplitConfig):
    """Seeded random split of the images. Fractions are probabilities, so small sets meet them approximately; an image's
    part never changes."""

    by: ClassVar = None


class ImagesConfig(Config):
    """Images, and a label for each of them where `labels` is set."""

    type: Literal["images"] = "images"

    provides: ClassVar = "images"

    source: ImageSourceConfig
    """Where the images lie, and in which format."""

    labels: bool = False
    """Whether samples carry the label of their image, on which the model is then conditioned."""

    size: tuple[Pixels, Pixels] | None = None
    """Height and width to which images are resized, in pixels; null takes them as they are, all of one size."""

    fit: Literal["resize", "crop", "letterbox"] = "crop"
    """Where an image's aspect ratio differs: stretch (resize), cut the longer sides (crop), or add black strips
    (letterbox)."""

    channels: Literal[1, 3] = 3
    """3 for RGB, 1 for greyscale, to which colours are converted by the weights of ITU-R 601."""

    crop: tuple[Pixels, Pixels] | None = None
    """Height and width of the window of an image that is modelled: a random one in training, otherwise the centre; null
    for all of it."""

    low_res: tuple[Pixels, Pixels] | None = None
    """Height and width of the reduced image that a super-resolution model is given, made by averaging pixels; null for
    none."""

    split: ImageSplitConfig = ImageSplitConfig()
    """Split of the images into training, validation and test parts."""

    test_source: ImageSourceConfig | None = None
    """Where the images of the test part lie, as with published test sets: of the same classes as those of `source`.
    null takes them from `source`, by the share in `split`."""

    batch_size: Annotated[int, Change("harmless")] = Field(default=128, ge=1)
    """Samples per rank and micro-batch."""

    device: Annotated[Literal["auto", "cpu"], Change("harmless")] = "auto"
    """auto: an accelerator holds all images if they take at most half of its free memory; cpu: they stay on disk."""

    frame_cache: Annotated[Path | None, Change("harmless")] = None
    """Directory of the frame caches, which runs share; null is `.dp_prior_frames` beside the images, or below ~/.cache
    where that is read-only."""

    verify: Annotated[Verify, Change("harmless")] = "sizes"
    """What each start compares with the manifest: names and sizes of the files, with "hashes" also every byte of them
    and of the frame cache."""

    manifest: Annotated[Path | None, Change("harmless")] = None
    """Manifest of the data set: names, sizes and hashes of its files, which several runs may share. null puts it in the
    run directory."""

    def faults(self) -> Iterator[str]:
        if self.crop is not None and self.size is not None and any(map(operator.gt, self.crop, self.size)):
            yield f"crop {list(self.crop)} is larger than {list(self.size)}; lower it, or set a larger data.size"
        if self.test_source is not None and self.split.test:
            yield f"test_source is given, but split.test is {self.split.test:g}; set it to 0, or remove test_source"
        window = self.crop or self.size
        if self.low_res is not None and window is not None and any(map(operator.mod, window, self.low_res)):
            yield f"low_res {list(self.low_res)} does not divide {list(window)}; pixels are averaged in blocks"

    def integrity(self, directory: Path) -> Integrity:
        """Compares the files with the manifest of the run in `directory`."""
        manifest = directory / MANIFEST if self.manifest is None else self.manifest.expanduser()
        return Integrity(manifest, None, self.verify, self._places())

    def _places(self) -> dict[str, tuple[str, ...]]:
        """Endings of the files that are read, by path; see `Integrity`."""
        return {**self.source.places(), **({} if self.test_source is None else self.test_source.places())}

    def create(self) -> Images:
        """Open the source: headers and labels are read, images are not.

        Raises:
            DataError: files are missing or damaged, or the images cannot be trained on.
        """
        return Images(self)


class ImageSet:
    """The images of one part: n samples, fetched by number a batch at a time."""

    def __init__(
        self,
        columns: dict[str, Column],
        crop: Crop,
        low_res: tuple[int, int] | None,
        *,
        is_whole: bool = False,
    ):
        """Args:
        columns: n rows by name; (H, W, C) uint8 as "x".
        is_whole: whether `fetch` leaves it to `cut` to crop and reduce the images.
        """
        self.columns = columns
        self.device = columns[X].device
        self.reads_disk = columns[X].on_disk
        self._crop, self._low_res, self._is_whole = crop, low_res, is_whole

    def __len__(self) -> int:
        return len(self.columns[X])

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids: every pixel is real."""
        return len(ids) * self._crop.size[0] * self._crop.size[1]

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Dataset`."""
        return {name: column.rows(ids) for name, column in self.columns.items() if column.on_disk}

    def fetch(self, ids: Tensor, read: Mapping[str, Tensor] | None = None) -> Batch:
        """The samples at ids, (B,) int64: x is (B, *crop.size, C) uint8; see `Dataset`."""
        cond = dict(self.read(ids) if read is None else read)
        cond |= {name: column.rows(ids) for name, column in self.columns.items() if not column.on_disk}
        x = cond.pop(X)
        mask = torch.ones(len(x), *self._crop.size, dtype=torch.bool, device=x.device)
        batch = Batch(x=x, cond=cond, mask=mask, ids=ids)
        return batch if self._is_whole else self.cut(batch)

    def cut(self, batch: Batch, random: Randomness | None = None) -> Batch:
        """A batch of whole images -> their windows, with the image of lower resolution.

        Args:
            random: B rows, each of which decides where its window lies; None for the centre.
        """
        x, cond = self._crop(batch.x[:, None], random)[:, 0], batch.cond
        if self._low_res is not None:
            cond = {**cond, LOW_RES: reduced(x, self._low_res)}
        return replace(batch, x=x, cond=cond)

    def seeing(self, keys: Collection[str]) -> ImageSet:
        """The same samples with these conditions only."""
        columns = {name: column for name, column in self.columns.items() if name == X or name in keys}
        return ImageSet(columns, self._crop, self._low_res if LOW_RES in keys else None)

    def whole(self) -> ImageSet:
        """The same samples before `cut`."""
        return ImageSet(self.columns, self._crop, self._low_res, is_whole=True)

    def to(self, device: torch.device | str) -> ImageSet:
        """The same samples in the memory of another device."""
        columns = {name: column.to(device) for name, column in self.columns.items()}
        return ImageSet(columns, self._crop, self._low_res)


def reduced(x: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H, W, C) uint8 -> (B, *size, C) uint8: means over blocks of pixels, rounded; a size divides (H, W)."""
    means = F.adaptive_avg_pool2d(x.movedim(-1, 1).float(), size)
    return means.round_().to(torch.uint8).movedim(1, -1)


@dataclass(frozen=True, eq=False)
class _Stored:
    """The images of a source: their pixels in a frame cache, and the numbers of their classes.

    Attributes:
        labels: (N,) int64; None where they are not read.
    """

    source: ImageSource
    column: ImageColumn
    labels: np.ndarray | None


class Images:
    """A checked set of images, split into parts.

    Attributes:
        spec: shapes of one sample, and the names of the classes.
        train, val, test: ImageSets; val and test may be empty.
        files: of recorded episodes, none.
    """

    def __init__(self, config: ImagesConfig):
        self.files: tuple[Path, ...] = ()
        self._config = config
        self.source: ImageSource = config.source.create(labelled=config.labels, uniform=config.size is None)
        source, self._size = self.source, config.size or self.source.size
        problems = list(config.model_copy(update={"size": self._size}).faults())
        if problems:
            raise DataError(str(source.root), problems)
        self._crop = Crop.of(self._size, config.crop)
        self.parts = config.split.rows(len(source), str(source.root))
        self._check_classes()
        self._stored = {"source": _Stored(source, self._column(source), source.labels)}
        if config.test_source is not None:
            self._stored["test_source"] = self._open_test(config.test_source)
            self.parts["test"] = Part.whole(len(self._stored["test_source"].source))
        cond_shapes: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, Kind] = {}
        if source.labels is not None:
            cond_shapes[LABEL], kinds[LABEL] = (), "label"
        if config.low_res is not None:
            cond_shapes[LOW_RES], kinds[LOW_RES] = (*config.low_res, config.channels), "image"
        self.spec = Spec(
            x_shape=(*self._crop.size, config.channels),
            cond_shapes=cond_shapes,
            kinds=kinds,
            classes={LABEL: source.classes} if source.labels is not None else {},
        )
        self.train, self.val, self.test = (self._set(part) for part in PARTS)

    def _column(self, source: ImageSource) -> ImageColumn:
        """The pixels of a source, at the size of all."""
        config = self._config
        root = cache_root(config.frame_cache or source.cache_place, source.root)
        encoding = Encoding(type="grey" if config.channels == 1 else "raw")
        return ImageColumn(FrameCache(source, Fit(size=self._size, how=config.fit), root, encoding), config.verify)

    def _open_test(self, record: Any) -> _Stored:
        """The images of `test_source`, with classes numbered as in `source`.

        Raises:
            DataError: they have another size or other classes, or are the images of `source`.
        """
        of, source = self.source, record.create(labelled=self._config.labels, uniform=self._config.size is None)
        column, problems = self._column(source), []
        if self._config.size is None and source.size != of.size:
            found = f"test images are {_by(source.size)}, but those of {of.root} {_by(of.size)}"
            problems.append(f"{found}; set data.size, to which all are resized")
        for name in sorted({*of.classes} ^ {*source.classes}):
            there, other = (of, source) if name in of.classes else (source, of)
            problems.append(f"class {name!r} is in {there.root}, but not in {other.root}; both need the same classes")
        if column.cache.directory == self._stored["source"].column.cache.directory:
            problems.append("data.test_source names the images of data.source, which are trained on")
        if problems:
            raise DataError(str(source.root), problems)
        labels = source.labels
        if labels is not None:
            labels = np.array([of.classes.index(name) for name in source.classes], np.int64)[labels]
        return _Stored(source, column, labels)

    def _check_classes(self) -> None:
        """Raises DataError if no image of some class is trained on, so that its label would say nothing."""
        if self.source.labels is None:
            return
        train, every = self._rows("train"), len(self.source.classes)
        trained = np.bincount(self.source.labels[train], minlength=every)
        there = np.bincount(self.source.labels, minlength=every)
        problems = [
            f"no image of class {self.source.classes[number]!r} is trained on, of {there[number]} in all; add images, "
            f"leave the class out, or change data.split"
            for number in np.flatnonzero(trained == 0)
        ]
        if problems:
            raise DataError(str(self.source.root), problems)

    def _rows(self, part: str) -> np.ndarray:
        """Numbers of the images of a part."""
        return self.parts[part].rows(np.arange(len(self.parts[part])))

    def _set(self, part: str) -> ImageSet:
        stored = self._stored.get(f"{part}_source", self._stored["source"])
        rows = self._rows(part)
        columns: dict[str, Column] = {X: stored.column.taking(torch.from_numpy(rows))}
        if stored.labels is not None:
            columns[LABEL] = MemoryColumn(torch.from_numpy(stored.labels[rows]))
        return ImageSet(columns, self._crop, self._config.low_res)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of pixels, as each source divides them into chunks, and labels. It needs the frame caches."""
        digest = hashlib.sha256()
        for stored in self._stored.values():
            digest.update("".join(stored.column.frames.index.digests).encode())
            digest.update(json.dumps([self.spec.x_shape, self.source.classes]).encode())
            if stored.labels is not None:
                digest.update(stored.labels.astype("<i8").tobytes())
        return digest.hexdigest()

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Decode every image once; see `Trajectories.build_caches`."""
        columns = {f"images of {name}": stored.column for name, stored in self._stored.items()}
        build_caches(columns, os.cpu_count() or 1, report, check)

    def cache_directories(self) -> set[Path]:
        """See `Trajectories.cache_directories`."""
        return {stored.column.cache.directory for stored in self._stored.values()}

    def statistics(self) -> dict[str, Statistics]:
        """None: pixels lie between 0 and 255."""
        return {}

    def loader(self, *, seed: int, **how: Any) -> Loader:
        """The batches of training; see `Loader` for the arguments."""
        if self._config.crop is None:
            return Loader(self.train, seed=seed, **how)
        return Loader(self.train.whole(), seed=seed, augment=self.train.cut, **how)

    def document(self) -> dict[str, Any]:
        """What identifies these data, to be stored with a run."""
        return {"fingerprint": self.fingerprint, "rows": self._counts()}

    def summary(self) -> str:
        """Counts of images, in one line."""
        counts, size = self._counts(), " x ".join(map(str, self.spec.x_shape))
        classes = f", {len(self.source.classes)} classes" if self.source.labels is not None else ""
        return f"{counts['train']:,} train images of {size}, {counts['val']:,} val, {counts['test']:,} test{classes}"

    def to(self, device: torch.device | str) -> Self:
        """Have an accelerator hold all images if there is room; the frame cache is read here."""
        device, needed = torch.device(device), 2 * sum(stored.column.n_bytes for stored in self._stored.values())
        is_wanted = device.type == "cuda" and self._config.device == "auto"
        if is_wanted and needed <= torch.cuda.mem_get_info(device)[0]:
            self.train, self.val, self.test = (part.to(device) for part in (self.train, self.val, self.test))
        return self

    def report(self) -> dict[str, Any]:
        """Counts, classes and warnings; JSON-able."""
        return {
            **self.source.describe(),
            "images": sum(len(stored.source) for stored in self._stored.values()),
            "shape": list(self.spec.x_shape),
            "classes": len(self.source.classes),
            "parts": self._counts(),
            "fingerprint": self.fingerprint,
            "warnings": self._warnings(),
        }

    def _repr_html_(self) -> str:
        parts = {f"{name} images": f"{count:,}" for name, count in self._counts().items()}
        facts = {key: f"{self.spec.kind(key)} {shape}" for key, shape in self.spec.cond_shapes.items()}
        facts |= {key: f"{len(names):,} classes" for key, names in self.spec.classes.items()}
        warnings = {f"warning {number}": line for number, line in enumerate(self._warnings(), 1)}
        return facts_table("images", {**parts, "image": f"{self.spec.x_shape}", **facts, **warnings})

    def _warnings(self) -> list[str]:
        return [] if len(self.val) else ["no image is left to validate on: val metrics will be missing"]

    def _counts(self) -> dict[str, int]:
        return {name: len(part) for name, part in self.parts.items()}


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
