"""The data of an image task: pixels in a frame cache on disk, labels in memory, divided by a hash of the row.

Pixels travel as uint8 to the training device and become floats there. An accelerator with room holds all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from dp_prior.batch import Batch, Kind, Spec
from dp_prior.config import Change, Config, family
from dp_prior.data.columns import Column
from dp_prior.data.columns.memory import MemoryColumn
from dp_prior.data.embeddings.parts import EmbeddingSplitConfig
from dp_prior.data.errors import DataError
from dp_prior.data.frames.cache import FrameCache, cache_root
from dp_prior.data.frames.layout import Encoding
from dp_prior.data.image_sets.digits import DigitsConfig
from dp_prior.data.image_sets.folder import FolderImagesConfig
from dp_prior.data.image_sets.npz import NpzImagesConfig
from dp_prior.data.image_sets.parquet import ParquetImagesConfig
from dp_prior.data.image_sets.source import ImageSource
from dp_prior.data.images import USER_CACHE, ImageColumn, build_caches
from dp_prior.data.integrity import MANIFEST, Integrity, Verify
from dp_prior.data.loader import Loader
from dp_prior.data.split import PARTS
from dp_prior.normalizer import Statistics
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

    low_res: tuple[Pixels, Pixels] | None = None
    """Height and width of the reduced image that a super-resolution model is given, made by averaging pixels; null for
    none."""

    split: ImageSplitConfig = ImageSplitConfig()
    """Split of the images into training, validation and test parts."""

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
        sides = () if self.low_res is None or self.size is None else zip(self.size, self.low_res, strict=True)
        if any(side % low for side, low in sides):
            yield f"low_res {list(self.low_res)} does not divide {list(self.size)}; pixels are averaged in blocks"

    def integrity(self, directory: Path) -> Integrity:
        """Compares the files with the manifest of the run in `directory`."""
        manifest = directory / MANIFEST if self.manifest is None else self.manifest.expanduser()
        return Integrity(manifest, None, self.verify, self.source.places())

    def create(self) -> Images:
        """Open the source: headers and labels are read, images are not.

        Raises:
            DataError: files are missing or damaged, or the images cannot be trained on.
        """
        return Images(self)


class ImageSet:
    """The images of one part: n samples, fetched by number a batch at a time."""

    def __init__(self, columns: dict[str, Column], channels: int, low_res: tuple[int, int] | None):
        """Args: columns: n rows by name; (H, W, 3) uint8 as "x"."""
        self.columns = columns
        self.device = columns[X].device
        self.reads_disk = columns[X].on_disk
        self._channels, self._low_res = channels, low_res

    def __len__(self) -> int:
        return len(self.columns[X])

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids: every pixel is real."""
        return len(ids) * self.columns[X].shape[0] * self.columns[X].shape[1]

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Dataset`."""
        return {name: column.rows(ids) for name, column in self.columns.items() if column.on_disk}

    def fetch(self, ids: Tensor, read: Mapping[str, Tensor] | None = None) -> Batch:
        """The samples at ids, (B,) int64: x is (B, H, W, channels) uint8; see `Dataset`."""
        cond = dict(self.read(ids) if read is None else read)
        cond |= {name: column.rows(ids) for name, column in self.columns.items() if not column.on_disk}
        x = cond.pop(X)
        if self._channels == 1:
            x = greyscale(x)
        if self._low_res is not None:
            cond[LOW_RES] = reduced(x, self._low_res)
        return Batch(x=x, cond=cond, mask=torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device), ids=ids)

    def seeing(self, keys: Collection[str]) -> ImageSet:
        """The same samples with these conditions only."""
        columns = {name: column for name, column in self.columns.items() if name == X or name in keys}
        return ImageSet(columns, self._channels, self._low_res if LOW_RES in keys else None)

    def to(self, device: torch.device | str) -> ImageSet:
        """The same samples in the memory of another device."""
        return ImageSet(
            {name: column.to(device) for name, column in self.columns.items()}, self._channels, self._low_res
        )


def greyscale(x: Tensor) -> Tensor:
    """(..., 3) uint8 RGB -> (..., 1) uint8, by the weights of ITU-R 601 as in Pillow."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32, device=x.device)
    return (
        ((x.int() * weights).sum(-1, keepdim=True, dtype=torch.int32) + 32768)
        .div_(65536, rounding_mode="floor")
        .to(torch.uint8)
    )


def reduced(x: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, H, W, C) uint8 -> (B, *size, C) uint8: means over blocks of pixels, rounded; a size divides (H, W)."""
    means = F.adaptive_avg_pool2d(x.movedim(-1, 1).float(), size)
    return means.round_().to(torch.uint8).movedim(1, -1)


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
        source, size = self.source, config.size or self.source.size
        problems = list(config.model_copy(update={"size": size}).faults())
        if problems:
            raise DataError(str(source.root), problems)
        root = cache_root(config.frame_cache or source.cache_place, source.root, USER_CACHE)
        cache = FrameCache(source, Fit(size=size, how=config.fit), root, Encoding(type="raw"))
        self._column = ImageColumn(cache, config.verify)
        self.parts = config.split.rows(len(source), str(source.root))
        self._check_classes()
        cond_shapes: dict[str, tuple[int, ...]] = {}
        kinds: dict[str, Kind] = {}
        if source.labels is not None:
            cond_shapes[LABEL], kinds[LABEL] = (), "label"
        if config.low_res is not None:
            cond_shapes[LOW_RES], kinds[LOW_RES] = (*config.low_res, config.channels), "image"
        self.spec = Spec(
            x_shape=(*size, config.channels),
            cond_shapes=cond_shapes,
            kinds=kinds,
            classes={LABEL: source.classes} if source.labels is not None else {},
        )
        self.train, self.val, self.test = (self._set(part) for part in PARTS)

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
        rows = self._rows(part)
        columns: dict[str, Column] = {X: self._column.taking(torch.from_numpy(rows))}
        if self.source.labels is not None:
            columns[LABEL] = MemoryColumn(torch.from_numpy(self.source.labels[rows]))
        return ImageSet(columns, self._config.channels, self._config.low_res)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of pixels, as the source divides them into chunks, and labels. It needs the frame cache."""
        digest = hashlib.sha256("".join(self._column.frames.index.digests).encode())
        digest.update(json.dumps([self.spec.x_shape, self.source.classes]).encode())
        if self.source.labels is not None:
            digest.update(self.source.labels.astype("<i8").tobytes())
        return digest.hexdigest()

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Decode every image once; see `Trajectories.build_caches`."""
        build_caches({"images": self._column}, os.cpu_count() or 1, report, check)

    def cache_directories(self) -> set[Path]:
        """See `Trajectories.cache_directories`."""
        return {self._column.cache.directory}

    def statistics(self) -> dict[str, Statistics]:
        """None: pixels lie between 0 and 255."""
        return {}

    def loader(self, *, seed: int, **how: Any) -> Loader:
        """The batches of training; see `Loader` for the arguments."""
        return Loader(self.train, seed=seed, **how)

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
        device, needed = torch.device(device), 2 * len(self.source) * int(np.prod(self._column.shape))
        is_wanted = device.type == "cuda" and self._config.device == "auto"
        if is_wanted and needed <= torch.cuda.mem_get_info(device)[0]:
            self.train, self.val, self.test = (part.to(device) for part in (self.train, self.val, self.test))
        return self

    def report(self) -> dict[str, Any]:
        """Counts, classes and warnings; JSON-able."""
        return {
            **self.source.describe(),
            "images": len(self.source),
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
