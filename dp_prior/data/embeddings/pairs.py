"""The data of a prior: image embeddings with text embeddings or encodings beside them, row by row.

At the start headers are read and rows are scanned for damage, see `Folder.scan`. Training reads blocks of neighbouring
rows (see `BlockOrder`) and holds at most two windows of them: 2 x shuffle_blocks x block_rows rows of every folder, in
the type of the files; with parquet, up to 8 row groups of each while blocks are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from dp_prior.batch import Batch, Spec
from dp_prior.config import Change, Config
from dp_prior.data.columns import Column
from dp_prior.data.columns.embedding import EmbeddingColumn
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.parts import EmbeddingSplitConfig
from dp_prior.data.embeddings.written import read_record
from dp_prior.data.errors import DataError
from dp_prior.data.integrity import MANIFEST, Integrity, Verify
from dp_prior.data.loader import Loader
from dp_prior.data.order import BlockOrder
from dp_prior.data.split import PARTS
from dp_prior.normalizer import Statistics
from dp_prior.rich_text import facts_table

IMAGE, TEXT = "x", "text"


class EmbeddingsConfig(Config):
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

    batch_size: Annotated[int, Change("harmless")] = Field(default=256, ge=1)
    """Samples per rank and micro-batch."""

    verify: Annotated[Verify, Change("harmless")] = "sizes"
    """What each start compares with the manifest: names and sizes of the files, with "hashes" also every byte of local
    files. Embeddings are hashed only if their first start asked for it."""

    manifest: Annotated[Path | None, Change("harmless")] = None
    """Manifest of the data set: names, sizes and hashes of its files, which several runs may share. null puts it in the
    run directory."""

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

    def integrity(self, directory: Path) -> Integrity:
        """Compares the files with the manifest of the run in `directory`."""
        manifest = directory / MANIFEST if self.manifest is None else self.manifest.expanduser()
        places = {place: endings for folder in self.folders().values() for place, endings in folder.places().items()}
        return Integrity(manifest, None, self.verify, places)

    def folders(self) -> dict[str, FolderConfig]:
        """The folders that are given, by name in a batch."""
        named = {IMAGE: self.image, TEXT: self.text, "text_encodings": self.text_encodings}
        return {name: record for name, record in named.items() if record is not None}

    def create(self) -> EmbeddingPairs:
        """Open the folders, compare their headers and scan their rows.

        Raises:
            DataError: files are missing or damaged, the folders differ in rows, or rows cannot be trained on.
        """
        return EmbeddingPairs(self)


class PairSet:
    """The pairs of one part: n samples, fetched by number a batch at a time."""

    device = torch.device("cpu")
    """Where batches are made."""

    reads_disk = True
    """See `Dataset`."""

    def __init__(self, columns: dict[str, Column]):
        """Args: columns: n rows by name, the image as "x", on the CPU."""
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[IMAGE])

    def count_valid(self, ids: Tensor) -> int:
        """Number of True in the masks of the samples at ids: no row is padded."""
        return len(ids)

    def read(self, ids: Tensor) -> dict[str, Tensor]:
        """See `Dataset`: everything.

        Raises:
            DataError: a row cannot be trained on; see `Folder.check`.
        """
        return {name: column.rows(ids) for name, column in self._columns.items()}

    def fetch(self, ids: Tensor, read: Mapping[str, Tensor] | None = None) -> Batch:
        """The samples at ids, (B,) int64, as they are in the files, float32; see `Dataset`."""
        found = dict(self.read(ids) if read is None else read)
        return Batch(x=found.pop(IMAGE), cond=found, mask=torch.ones(len(ids), dtype=torch.bool), ids=ids)

    def seeing(self, keys: Collection[str]) -> PairSet:
        """The same samples with these conditions only."""
        return PairSet({name: column for name, column in self._columns.items() if name == IMAGE or name in keys})

    def cached(self, block_rows: int, n_blocks: int) -> PairSet:
        """The same samples, with blocks of their columns cached in memory."""
        return PairSet({name: column.cached(block_rows, n_blocks) for name, column in self._columns.items()})


class EmbeddingPairs:
    """Checked folders, split into parts.

    Attributes:
        spec: shapes of one sample.
        train, val, test: PairSets; val and test may be empty.
        files: of recorded episodes, none.
        fingerprint: SHA-256 of the files' names and sizes and of some rows.
    """

    def __init__(self, config: EmbeddingsConfig):
        self.files: tuple[Path, ...] = ()
        self._config = config
        self.folders = {
            name: record.create(needs_length=name != "text_encodings")  # there zeros are padding
            for name, record in config.folders().items()
        }
        rows = {folder.path: folder.count for folder in self.folders.values()}
        if len(set(rows.values())) > 1:
            raise DataError(config.image.path, [f"rows must lie beside each other, but the folders have {rows}"])
        self._scanned = {name: folder.scan() for name, folder in self.folders.items()}
        self._parts = config.split.assign(self.folders[IMAGE])
        made = None if config.text is None else read_record(Path(config.text.path).expanduser())
        self.spec = Spec(
            x_shape=self.folders[IMAGE].shape,
            cond_shapes={name: folder.shape for name, folder in self.folders.items() if name != IMAGE},
            kinds={} if made is None else {TEXT: "text"},
            embedders={} if made is None else {TEXT: made.embedder},
        )
        self.train, self.val, self.test = (
            PairSet({name: EmbeddingColumn(folder, self._parts[part]) for name, folder in self.folders.items()})
            for part in PARTS
        )
        prints = {name: folder.fingerprint() for name, folder in sorted(self.folders.items())}
        self.fingerprint = hashlib.sha256(json.dumps(prints).encode()).hexdigest()

    def build_caches(self, report: Callable[[str], None], check: Callable[[], None] = lambda: None) -> None:
        """Nothing: a prior has no camera frames; see `Trajectories.build_caches`."""

    def cache_directories(self) -> set[Path]:
        """None; see `Trajectories.cache_directories`."""
        return set()

    def statistics(self) -> dict[str, Statistics]:
        """None: a prior needs no statistics beyond the length of an embedding, which it knows."""
        return {}

    def loader(self, *, seed: int, **how: Any) -> Loader:
        """The batches of training; see `Loader` for the arguments."""
        config = self._config
        order = BlockOrder(seed, len(self.train), block_rows=config.block_rows, shuffle_blocks=config.shuffle_blocks)
        return Loader(self.train.cached(config.block_rows, 2 * config.shuffle_blocks), order=order, seed=seed, **how)

    def document(self) -> dict[str, Any]:
        """What identifies these data, to be stored with a run."""
        return {"fingerprint": self.fingerprint, "rows": self._counts()}

    def summary(self) -> str:
        """Counts of rows, in one line."""
        counts = self._counts()
        return f"{counts['train']:,} train rows, {counts['val']:,} val, {counts['test']:,} test"

    def to(self, device: torch.device | str) -> EmbeddingPairs:
        """The rows stay on disk; the loader moves batches."""
        return self

    def report(self) -> dict[str, Any]:
        """Files, counts per part and warnings; JSON-able."""
        warnings = []
        if not len(self.val):
            warnings.append("no row is left to validate on: val metrics will be missing")
        for folder in self.folders.values():
            if folder.rows.largest_read > self._config.block_rows * self._config.shuffle_blocks:
                warnings.append(
                    f"{folder.path}: a row group has {folder.rows.largest_read:,} rows, all of which are decoded to "
                    f"read one; write smaller row groups, or .npy"
                )
        folders = {name: folder.describe() for name, folder in self.folders.items()}
        return {
            "folders": folders,
            "rows_checked": self._scanned,
            "parts": self._counts(),
            "fingerprint": self.fingerprint,
            "warnings": warnings,
        }

    def _repr_html_(self) -> str:
        parts = {f"{name} rows": f"{count:,}" for name, count in self._counts().items()}
        folders = {"image" if name == IMAGE else name: f"{one.shape}" for name, one in self.folders.items()}
        warnings = {f"warning {number}": line for number, line in enumerate(self.report()["warnings"], 1)}
        return facts_table("pairs of embeddings", parts | folders | warnings)

    def _counts(self) -> dict[str, int]:
        return {name: len(part) for name, part in self._parts.items()}
