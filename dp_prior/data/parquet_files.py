"""The sizes that a parquet file declares, checked before its columns are decoded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from dp_prior.data.files import check_array, check_memory

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

LARGEST_RATIO = 8000
"""Bytes of one column that a byte of a file may decode to; run lengths know no bound, but other columns vary."""

OBJECT_BYTES = 100
"""Of memory that a value takes as an object of Python."""

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}


def check_columns_fit(where: str, file: ParquetFile, names: Iterable[str], stored: int, width: int = 0) -> None:
    """Refuse columns before memory is taken for them.

    Args:
        names: columns, of which the innermost values of lists and structs count.
        stored: bytes of the file.
        width: bytes that a value takes at least once it is read.

    Raises:
        DataError: they declare more values than the file can hold, see `check_array`, or than memory can.
    """
    metadata, wanted = file.metadata, set(names)
    total, rows = 0, metadata.num_rows
    for number in range(metadata.num_columns):
        leaf = file.schema.column(number)
        if leaf.path.partition(".")[0] not in wanted and leaf.path not in wanted:
            continue
        groups = range(metadata.num_row_groups)
        count = max(rows, sum(metadata.row_group(group).column(number).num_values for group in groups))
        size = max(_WIDTHS.get(leaf.physical_type, leaf.length or 1), 1)
        check_array(
            f"{where}[{leaf.path}]",
            (rows, -(-count // max(rows, 1))),
            np.dtype(f"V{size}"),
            stored=stored,
            ratio=LARGEST_RATIO,
        )
        total += count * max(size, width)
    check_memory(where, total)
