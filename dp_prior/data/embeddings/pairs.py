"""The data of a prior: image embeddings with text embeddings or encodings beside them, row by row.

At the start headers are read and rows are scanned for damage, see `Folder.scan`. Training reads blocks of neighbouring
rows (see `BlockOrder`) and holds at most two windows of them: 2 x shuffle_blocks x block_rows rows of every folder, in
the type of the files; with parquet, up to 8 row groups of each while blocks are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from dp_prior.config import Change
from dp_prior.data.columns import Column
from dp_prior.data.data_record import BatchSize, DataRecord, GlobalBatchSize, ManifestPlace, Verified
from dp_prior.data.embeddings.embedding_column import EmbeddingColumn
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.pairing import check_pairs, pair_warnings
from dp_prior.data.embeddings.parts import EmbeddingSplitConfig, SplitPart, left_out
from dp_prior.data.embeddings.written import cut_warnings, read_record
from dp_prior.data.samples.block_order import BlockOrder
from dp_prior.data.samples.order import Order
from dp_prior.data.samples.over_columns import Samples
from dp_prior.data.samples.row_selection import EachRow
from dp_prior.data.split_data import PARTS, SplitData
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.batch import Spec, X

TEXT = "text"


class EmbeddingsConfig(DataRecord):
    """Pairs of an image embedding, which is diffused, and its text embedding or encodings."""

    type: Literal["embeddings"] = "embeddings"

    provides: ClassVar = "embeddings"

    image: Annotated[FolderConfig, Change("data", {"path": "harmless", "metadata": "harmless"})]
    """The image embeddings. `split.by` names a column of their metadata."""

    text: Annotated[FolderConfig | None, Change("data", {"path": "harmless"})] = None
    """Text embeddings, row by row beside the images; null: none."""

    text_encodings: Annotated[FolderConfig | None, Change("data", {"path": "harmless"})] = None
    """Text encodings, row by row beside the images: `tokens` of them in a row, zeros where a text is shorter;
    null: none."""

    split: EmbeddingSplitConfig = EmbeddingSplitConfig()
    """Split of the rows into training, validation and test parts."""

    batch_size: BatchSize = 256

    global_batch_size: GlobalBatchSize = None

    verify: Verified = "sizes"

    manifest: ManifestPlace = None

    block_rows: int = Field(default=2048, ge=1)
    """Neighbouring rows in a block, which is read in one go; rows are shuffled within it."""

    shuffle_blocks: int = Field(default=16, ge=1)
    """Number of blocks that are mixed; with a multiple of the number of ranks each rank reads its own blocks."""

    def faults(self) -> Iterator[str]:
        if self.text is None and self.text_encodings is None:
            yield "an image embedding is predicted from text; name text, text_encodings, or both"
        if self.image.tokens is not None or (self.text is not None and self.text.tokens is not None):
            yield "tokens are of text_encodings; an image or text embedding is one"
        if self.text_encodings is not None and self.text_encodings.tokens is None:
            yield "text_encodings are several tokens in a row; set text_encodings.tokens to how many, for example 77"

    def places(self) -> dict[str, tuple[str, ...]]:
        places: dict[str, tuple[str, ...]] = {}
        for folder in self.folders().values():
            places |= folder.places()
        return places

    def folders(self) -> dict[str, FolderConfig]:
        records = {X: self.image, TEXT: self.text, "text_encodings": self.text_encodings}
        return {name: record for name, record in records.items() if record is not None}

    def create(self) -> EmbeddingPairs:
        """Open the folders, compare their headers and scan their rows.

        Raises:
            DataError: files are missing or damaged, the folders differ in rows, or rows cannot be trained on.
        """
        return EmbeddingPairs(self)


class EmbeddingPairs(SplitData):
    """Checked folders, split into parts. The rows stay on disk; the loader moves batches.

    Attributes:
        parts: rows of the folders by the name of the part.
        fingerprint: SHA-256 of the files' names and sizes and of some rows.
    """

    noun, title = "row", "pairs of embeddings"

    def __init__(self, config: EmbeddingsConfig):
        self._config = config
        self.folders = {
            name: record.create(needs_length=name != "text_encodings")  # there zeros are padding
            for name, record in config.folders().items()
        }
        check_pairs(list(self.folders.values()))
        self._used = config.split.used(self.folders[X].count)
        self._scanned = {name: folder.scan(self._used) for name, folder in self.folders.items()}
        self.parts = config.split.assign(self.folders[X])
        text_record, self._cut = None, []
        if config.text is not None:
            text_record = read_record(expanded(config.text.path))
            self._cut = cut_warnings(text_record, config.text.path)
        self.spec = Spec(
            x_shape=self.folders[X].shape,
            cond_shapes={name: folder.shape for name, folder in self.folders.items() if name != X},
            kinds={} if text_record is None else {TEXT: "text"},
            embedders={} if text_record is None else {TEXT: text_record.embedder},
        )
        self.train, self.val, self.test = (self._samples(self.parts[name]) for name in PARTS)
        prints = {name: folder.fingerprint() for name, folder in sorted(self.folders.items())}
        self.fingerprint = hashlib.sha256(json.dumps(prints).encode()).hexdigest()

    def _samples(self, part: SplitPart) -> Samples:
        columns: dict[str, Column] = {name: EmbeddingColumn(folder, part) for name, folder in self.folders.items()}
        return Samples(columns, EachRow(len(part)))

    def training_samples(self) -> Samples:
        """See `SplitData`; with a cache of two windows of blocks."""
        return self.train.cached(self._config.block_rows, 2 * self._config.shuffle_blocks)

    def order(self, seed: int) -> Order:
        """See `SplitData`; in blocks."""
        config = self._config
        return BlockOrder(seed, len(self.train), block_rows=config.block_rows, shuffle_blocks=config.shuffle_blocks)

    def summary(self) -> str:
        """See `SplitData`; with the rows that are left out."""
        return super().summary() + left_out(self.folders[X].count, self._used)

    def report(self) -> dict[str, Any]:
        """See `SplitData`; with the folders."""
        folders = {name: folder.describe() for name, folder in self.folders.items()}
        return {"folders": folders, "rows_checked": self._scanned, **super().report()}

    def warnings(self) -> list[str]:
        """See `SplitData`; with the row groups that are too large."""
        lines = [*super().warnings(), *pair_warnings(list(self.folders.values())), *self._cut]
        return lines + [
            f"{folder.path}: a row group has {folder.rows.largest_read:,} rows, all of which are decoded to "
            f"read one; write smaller row groups, or .npy"
            for folder in self.folders.values()
            if folder.rows.largest_read > self._config.block_rows * self._config.shuffle_blocks
        ]

    def facts(self) -> dict[str, str]:
        shapes = {name: str(folder.shape) for name, folder in self.folders.items()}
        return {"image": shapes.pop(X), **shapes}
