"""A data set: samples in three parts, what is known about them, and the batches of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import torch
from pydantic import Field

from dp_prior.data.samples.loader import Loader
from dp_prior.data.samples.order import Order
from dp_prior.data.samples.over_columns import Samples
from dp_prior.files.printable import facts_table
from dp_prior.tensors.batch import Batch, Spec
from dp_prior.tensors.normalizer import Statistics
from dp_prior.tensors.randomness import Randomness

if TYPE_CHECKING:
    from dp_prior.data.frames.frame_column import ImageColumn

PARTS = ("train", "val", "test")

MAX_ROWS = """Use the first rows alone, at most this many, and leave out the others, before anything is split: pairs of
embeddings, images, or steps of recorded episodes, of which whole ones are used and at least one. null: all."""

MaxRows = Annotated[int | None, Field(ge=1, description=MAX_ROWS)]


def fraction_faults(train: float, val: float, test: float) -> Iterator[str]:
    """A line unless the fractions of a split sum to 1."""
    total = train + val + test
    if abs(total - 1) > 1e-6:
        yield f"train {train:g} + val {val:g} + test {test:g} = {total:g}; the fractions must sum to 1"


class SplitData:
    """A checked data set, split into parts. Methods that most data sets share have their usual answer here.

    Attributes:
        noun, title: words for the divided unit, and for the data set as a whole.
        spec: shapes of one sample.
        train, val, test: the samples of each part; val and test may be empty.
        files: of recorded episodes; the manifest notes each file.
        images: the column of each camera or source of pictures; see `build_caches`.
        sets: the data sets that this one is joined from, by name.
        recorded: `TrajectoriesConfig` of the episodes in the samples; None without episodes, and for several `sets`.
        fingerprint: SHA-256 of the content; asking for it may need the frame caches.
        augment: makes the batch to train on, see `Loader`; None leaves it.
        shortage: why there are few training samples, a sentence for errors; empty without a reason.
    """

    noun: ClassVar[str] = "sample"
    title: ClassVar[str] = "samples"

    spec: Spec
    train: Samples
    val: Samples
    test: Samples
    fingerprint: str
    files: Sequence[Path] = ()
    images: Mapping[str, ImageColumn] = {}
    sets: Mapping[str, SplitData] = {}
    recorded: Any = None
    augment: Callable[[Batch, Randomness], Batch] | None = None
    shortage: str = ""

    def statistics(self) -> Mapping[str, Statistics]:
        """Statistics over the training samples by key, of those that a normalizer is fitted to; none by default."""
        return {}

    def loader(
        self,
        *,
        seed: int,
        batch_size: int,
        accumulation: int,
        rank: int,
        world_size: int,
        device: torch.device | str | None = None,
        global_batch_size: int | None = None,
    ) -> Loader:
        """The batches of training; see `Loader` for the arguments."""
        return Loader(
            self.training_samples(),
            order=self.order(seed),
            augment=self.augment,
            seed=seed,
            batch_size=batch_size,
            accumulation=accumulation,
            rank=rank,
            world_size=world_size,
            device=device,
            shortage=self.shortage and f"{self.shortage}. ",
            global_batch_size=global_batch_size,
        )

    def training_samples(self) -> Samples:
        """The samples of `train` as the loader reads them."""
        return self.train

    def order(self, seed: int) -> Order | None:
        """The order of training; None for a full shuffle."""
        return None

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Build the frame caches that are not complete; see `frame_column.build_caches`."""
        if not self.images:
            return
        from dp_prior.data.frames.frame_column import build_caches

        build_caches(self.images, os.cpu_count() or 1, report, check)

    def cache_directories(self) -> set[Path]:
        """Where the frame caches lie, built or not."""
        return {column.cache.directory for column in self.images.values()}

    def to(self, device: torch.device | str) -> Self:
        """Move columns to the training device, if the record allows it; by default all stay."""
        return self

    def sizes(self) -> dict[str, int]:
        """Number of `noun`s in each part."""
        return {part: len(getattr(self, part)) for part in PARTS}

    def recorded_at(self, part: str, sample: int) -> tuple[int, int] | None:
        """Episode and step of the newest observation of a sample of a part; None where samples are no moments."""
        return None

    def document(self) -> dict[str, Any]:
        """The identity of these data, to be stored with a run."""
        return {"fingerprint": self.fingerprint, "rows": self.sizes()}

    def summary(self) -> str:
        """The counts in one line."""
        counts = self.sizes()
        return f"{counts['train']:,} train {self.noun}s, {counts['val']:,} val, {counts['test']:,} test"

    def report(self) -> dict[str, Any]:
        """Counts per part, fingerprint and warnings; JSON-able."""
        return {"parts": self.sizes(), "fingerprint": self.fingerprint, "warnings": self.warnings()}

    def warnings(self) -> list[str]:
        """Warnings for the user before training; reads no frames."""
        return [] if len(self.val) else [f"no {self.noun} is left to validate on: val metrics will be missing"]

    def facts(self) -> dict[str, str]:
        """Shapes of a sample, for notebooks."""
        conditions = {key: f"{self.spec.kind(key)} {shape}" for key, shape in self.spec.cond_shapes.items()}
        return {"x": f"{self.spec.x_shape}", **conditions}

    def _repr_html_(self) -> str:
        parts = {f"{part} {self.noun}s": f"{count:,}" for part, count in self.sizes().items()}
        warnings = {f"warning {number}": line for number, line in enumerate(self.warnings(), 1)}
        return facts_table(self.title, parts | self.facts() | warnings)
