"""Images in parquet files, in the layout of Hugging Face data sets: a struct with the encoded bytes, and a label."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dp_prior.config import Change, Config
from dp_prior.config.errors import short
from dp_prior.data.errors import DataError, nearest_name
from dp_prior.data.files import decoding
from dp_prior.data.found_files import Files, find_files
from dp_prior.data.frames import FramePart
from dp_prior.data.parquet_footer import read_footer
from dp_prior.data.parquet_sizes import OBJECT_BYTES, check_columns_fit, read_table
from dp_prior.data.pictures.decode import decode_image
from dp_prior.data.pictures.image_source import ImageSource, numbered
from dp_prior.tensors.pixels.picture_files import import_pillow

PICTURES_AT_ONCE = 64


class ParquetImagesConfig(Config):
    """Images in parquet files, as Hugging Face data sets store them."""

    type: Literal["parquet"] = "parquet"

    path: Annotated[Path, Change("harmless")]
    """The file, or a folder whose files are read in the order of their names."""

    image: str = "image"
    """Column of the images: a struct with the encoded file as `bytes`."""

    label: str = "label"
    """Column of the labels: numbers, whose names are read from the metadata of the file if it has them, or texts."""

    def places(self) -> dict[str, tuple[str, ...]]:
        """Endings of the files that are read, by path; see `Integrity`."""
        return {str(self.path): (".parquet",)}

    def create(self, *, labelled: bool, uniform: bool) -> ParquetImages:
        """Read footers and labels; see `ImagesConfig.create`."""
        return ParquetImages(self, labelled, uniform)


class ParquetImages(ImageSource):
    """See `ParquetImagesConfig`. A thread reads one file from its beginning to its end."""

    def __init__(self, config: ParquetImagesConfig, labelled: bool, uniform: bool):
        import_pillow("image")
        self._column, self._files = config.image, find_files(str(config.path), (".parquet",))
        footers = self._files.each(self._footer)
        needed_columns = [config.image, config.label] if labelled else [config.image]
        for path, (_, columns, _) in zip(self._files.paths, footers, strict=True):
            for name in needed_columns:
                if name not in columns:
                    raise DataError(path, [f"has no column {name!r}. {nearest_name(name, columns)}"])
            if f"{config.image}.bytes" not in columns:
                raise DataError(path, [f"column {config.image!r} is no struct with the encoded image as 'bytes'"])
        labels = None
        if labelled:
            class_names = [_class_names(metadata, config.label) for *_, metadata in footers]
            _check_classes(class_names, self._files.paths, config.label)
            labels = _labels(self._files, config.label, class_names[0])
        super().__init__(Path(self._files.place), [count for count, *_ in footers], self._files.paths, labels)
        self._expected = None
        self.size = next(self.read(self.parts[0], 0)).shape[1:3]
        self._expected = self.size if uniform else None

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        from pyarrow import parquet

        with decoding(part.where), self._files.open(part.where) as file:
            count = min(PICTURES_AT_ONCE, check_columns_fit(part.where, file, [self._column]).rows_at_once)
            batches = parquet.ParquetFile(file).iter_batches(count, columns=[f"{self._column}.bytes"])
            rows = itertools.chain.from_iterable(batch.column(0).field("bytes") for batch in batches)
            for number, data in itertools.islice(enumerate(rows), skip, None):
                where = f"{part.where}, row {number}"
                if not data.is_valid:
                    raise DataError(where, ["holds no bytes; store the images in the file, not their paths alone"])
                yield decode_image(data.as_py(), where, self._expected)[None]

    def files(self) -> list[Path]:
        return [Path(path) for path in self._files.paths]

    def describe(self) -> dict[str, Any]:
        return {"format": "parquet", "column": self._column}

    def _footer(self, path: str) -> tuple[int, set[str], Any]:
        """Read rows, columns with the fields of structs, and the JSON of Hugging Face's metadata."""
        from pyarrow import parquet

        with self._files.open(path) as file:
            footer = read_footer(file)
            table = parquet.ParquetFile(file)
            paths = {table.schema.column(index).path for index in range(len(table.schema))}
            metadata = json.loads((table.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
        columns = paths | {path.partition(".")[0] for path in paths}
        return footer.rows, columns, metadata


def _check_classes(class_names: list[Any], paths: list[str], column: str) -> None:
    """Raises DataError unless all files name the same classes, by different texts, or none does.

    Args:
        class_names: of each file, see `_class_names`.
        column: of the labels.
    """
    first = class_names[0]
    for path, names in zip(paths, class_names, strict=True):
        if names != first:
            problem = f"names the classes {short(names)} of column {column!r}, but {paths[0]} {short(first)}"
            raise DataError(path, [f"{problem}; expected the same in all files"])
    names = first or []
    if not all(isinstance(name, str) for name in names) or len(names) != len(set(names)):
        raise DataError(paths[0], [f"names the classes {short(names)} of column {column!r}; expected different texts"])


def _class_names(metadata: Any, column: str) -> list[str] | None:
    """The classes that Hugging Face's metadata name for a column; None where the column is no `ClassLabel`."""
    for name in ("info", "features", column, "names"):
        metadata = metadata.get(name) if isinstance(metadata, dict) else None
    return metadata if isinstance(metadata, list) else None


def _labels(files: Files, column: str, classes: list[str] | None) -> tuple[np.ndarray, list[str]]:
    """Read the labels of all files: (N,) int64 number of each image's class, and the classes."""
    from pyarrow import parquet

    def read(path: str) -> list[Any]:
        with files.open(path) as file:
            footer = check_columns_fit(path, file, [column], OBJECT_BYTES)
            return read_table(path, parquet.ParquetFile(file), footer, [column]).column(0).to_pylist()

    labels = list(itertools.chain.from_iterable(files.each(read)))
    is_number = type(labels[0]) is int if labels else False
    for row, label in enumerate(labels):
        if type(label) is not (int if is_number else str):
            raise DataError(files.url, [f"row {row}: {column!r} is {label!r}; expected whole numbers, or texts"])
    if classes is None or not is_number:
        return numbered([str(label) for label in labels])
    unknown = [(row, label) for row, label in enumerate(labels) if not 0 <= label < len(classes)]
    if unknown:
        row, label = unknown[0]
        raise DataError(files.url, [f"row {row}: label {label} is none of the {len(classes)} classes in the metadata"])
    return np.array(labels, np.int64), classes
