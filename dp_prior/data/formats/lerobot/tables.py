"""Columns of LeRobot's parquet files as arrays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding, reading
from dp_prior.data.parquet_sizes import check_columns_fit, read_table
from dp_prior.files.regular_files import open_regular

if TYPE_CHECKING:
    import pyarrow


def read_columns(path: Path, columns: list[str], optional: Iterable[str] = (), why: str = "") -> pyarrow.Table:
    """Read `columns` of a parquet file, and the columns of `optional` that the file has. The file is opened only once,
    because a data set has many files."""
    import pyarrow.parquet as pq

    with decoding(path, "is not a readable parquet file"):
        if not path.exists():
            raise DataError(str(path), ["no such file, but the episode list names it; the copy is incomplete"])
        with reading(path), open_regular(path) as stream:
            footer = check_columns_fit(str(path), stream, [*columns, *optional])
        file = pq.ParquetFile(path, page_checksum_verification=True)
        stored = file.schema_arrow.names
    with file, decoding(path, "is damaged"):
        missing = [name for name in columns if name not in stored]
        if missing:
            raise DataError(str(path), [f"has no column {', '.join(map(repr, missing))}{why}"])
        names = [*columns, *(name for name in optional if name in stored and name not in columns)]
        return read_table(str(path), file, footer, names)


def to_numpy(column: pyarrow.ChunkedArray, path: Path, key: str, *, may_be_text: bool = False) -> np.ndarray:
    """Convert a column of numbers, of equally long lists of numbers, or of texts to (rows, *lengths of the lists);
    decimals become float64."""
    import pyarrow as pa

    values, shape = column.combine_chunks(), [len(column)]
    while True:
        if values.null_count:
            row = values.is_null().to_numpy(zero_copy_only=False).argmax() * shape[0] // max(len(values), 1)
            raise DataError(str(path), [f"key {key!r}, row {row}: is null; every frame needs a value"])
        if isinstance(values, pa.ExtensionArray):  # such as Array2D, once `datasets` was imported
            values = values.storage
        if isinstance(values, pa.DictionaryArray):  # categories of pandas
            values = values.dictionary_decode()
        if pa.types.is_decimal(values.type):
            values = values.cast(pa.float64())
        kind = values.type
        if pa.types.is_fixed_size_list(kind):
            shape.append(kind.list_size)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = np.diff(values.offsets.to_numpy())
            if len(lengths) and (lengths != lengths[0]).any():
                row = (lengths != lengths[0]).argmax()
                finding = f"has {lengths[row]} elements, row 0 has {lengths[0]}"
                raise DataError(str(path), [f"key {key!r}, row {row}: {finding}; every frame needs the same number"])
            shape.append(int(lengths[0]) if len(lengths) else 0)
        else:
            break
        values = values.flatten()
    if may_be_text and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return np.array(values.to_pylist(), dtype=str).reshape(shape)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(str(path), [f"key {key!r} holds {kind}, which is not a number type"])
    return values.to_numpy(zero_copy_only=False).reshape(shape)
