"""The interface of records of data sets, and the settings that several records share.

A shared setting is a type with its meaning: fields of a base class would come before a record's own in stored files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dp_prior.config import Change, Config
from dp_prior.data.files import Verify
from dp_prior.data.integrity import DATA_MANIFEST, Integrity, JointIntegrity
from dp_prior.files.regular_files import expanded

FRAME_CACHE = """Directory of the frame caches, which runs share; null is `.dp_prior_frames` beside the data set, or
below ~/.cache where that is read-only."""
VERIFY = """What each start compares with the manifest: names and sizes of the files, with "hashes" also every byte of
local files and caches. Embeddings are hashed only if their first start asked for it."""
MANIFEST_PLACE = """Manifest of the data set: names, sizes and hashes of its files, which several runs may share. null
puts it in the run directory."""

BATCH_SIZE = """Samples per rank and micro-batch. With `global_batch_size`: the most samples of a micro-batch, by
default the whole share of a rank."""
GLOBAL_BATCH_SIZE = """Samples per optimizer step over all ranks. The micro-batches of a rank follow from it, so that a
run of 4 ranks resumes unchanged on 1 or 2. null: batch_size x `train.accumulation` x ranks."""

BatchSize = Annotated[int, Change("harmless"), Field(ge=1, description=BATCH_SIZE)]
GlobalBatchSize = Annotated[int | None, Change("harmless"), Field(ge=1, description=GLOBAL_BATCH_SIZE)]
DataDevice = Annotated[Literal["auto", "cpu"], Change("harmless")]
FrameCachePlace = Annotated[Path | None, Change("harmless"), Field(description=FRAME_CACHE)]
ManifestPlace = Annotated[Path | None, Change("harmless"), Field(description=MANIFEST_PLACE)]
Verified = Annotated[Verify, Change("harmless"), Field(description=VERIFY)]


class DataRecord(Config):
    """The record of a data set. Subclasses have the fields `batch_size`, `verify` and `manifest`, as a rule
    `global_batch_size`, and a method `create`, which opens a `SplitData` with the arguments that `open` of their tasks
    passes.

    Attributes:
        provides: the data type that this record can stand in for; a task's `data_types` lists those it learns from.
    """

    provides: ClassVar[str]

    _n_processes: int = 1
    """Processes of the training on this machine; see `beside`."""

    @model_validator(mode="after")
    def _fill_batch_size(self) -> Self:
        """An omitted `batch_size` is `global_batch_size`, which no rank's share exceeds, in stored files too."""
        if self.step_size is not None and "batch_size" not in self.model_fields_set:
            vars(self)["batch_size"] = self.step_size
        return self

    @property
    def step_size(self) -> int | None:
        """`global_batch_size`; None also for a record of another package without this field."""
        return getattr(self, "global_batch_size", None)

    def integrity(self, directory: Path) -> Integrity | JointIntegrity:
        """Compares the files of the data set with the manifest of the run in `directory`."""
        manifest = directory / DATA_MANIFEST if self.manifest is None else expanded(self.manifest)
        return Integrity(manifest, self.root(), self.verify, self.places())

    def root(self) -> Path | None:
        """The file or folder of recorded episodes; None if there are none."""
        return None

    def places(self) -> dict[str, tuple[str, ...]]:
        """Endings of the other files that are read, by path or URL; see `Integrity`."""
        return {}

    def downloaded(self, pinned: Mapping[str, str]) -> Self:
        """The record with its data on this machine, those of the Hub at the commits of `pinned`, by repository.

        Raises:
            DataError, UnreadableError: they cannot be downloaded.
        """
        return self

    def beside(self, n_processes: int) -> Self:
        """The record for each of several processes of this machine, which share its memory."""
        record = self.model_copy()
        record._n_processes = n_processes
        return record

    def followed(self) -> frozenset[str]:
        """Names of the evaluators whose measurements decide how often samples are drawn."""
        return frozenset()

    def recorded_sets(self) -> Mapping[str, DataRecord]:
        """The sets of recorded episodes by name, each as a data set of its own."""
        return {}

    def folders(self) -> Mapping[str, Any]:
        """The records of the folders of embeddings that samples are made of, by their key in a batch."""
        return {}

    def sources(self) -> Mapping[str, Any]:
        """The records of the sources of pictures, by the name of their field."""
        return {}
