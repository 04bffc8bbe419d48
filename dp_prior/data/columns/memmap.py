"""Columns in one uncompressed file that the operating system pages in as rows are read.

The file must not shrink while it is mapped: reading a page that is gone ends the process with SIGBUS.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dp_prior.data.columns.disk import DiskColumn
from dp_prior.data.errors import DataError
from dp_prior.data.files import npy_header, reading
from dp_prior.regular_files import open_regular

DTYPES = ("uint8", "float16", "float32", "float64")


class MappedColumn(DiskColumn):
    """See `Column`. The page cache of the operating system is its only memory."""

    def __init__(self, values: Tensor):
        """Args: values: (N, *shape) over mapped pages."""
        self._values = values
        self.dtype, self.shape = values.dtype, tuple(values.shape[1:])

    def __len__(self) -> int:
        return self._values.shape[0]

    def rows(self, ids: Tensor) -> Tensor:
        """See `Column`."""
        return self._values.index_select(0, ids)


def map_npy(path: Path) -> MappedColumn:
    """The rows of a .npy file: C order, little-endian, one of `DTYPES`.

    Raises:
        DataError: it is no such file, or its size is not what its header declares.
    """
    with reading(path), open_regular(path) as file:
        try:
            shape, is_fortran, dtype = npy_header(file)
        except (ValueError, EOFError) as error:
            raise DataError(str(path), [f"is not a .npy file: {error}"]) from None
        offset = file.tell()
    if is_fortran and len(shape) > 1:
        raise DataError(str(path), ["is in Fortran order; save numpy.ascontiguousarray of it"])
    return _map(path, dtype, shape, offset)


def map_raw(path: Path, dtype: str, shape: tuple[int, ...]) -> MappedColumn:
    """The rows of a file that holds nothing but their bytes, N of them in `shape`.

    Raises:
        DataError: the file is missing, or its size is not what dtype and shape take.
    """
    return _map(path, np.dtype(dtype), shape, 0)


def _map(path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> MappedColumn:
    if dtype.name not in DTYPES or dtype.byteorder == ">" or not shape or min(shape) < 0:
        raise DataError(str(path), [f"holds {dtype.str} of shape {shape}; expected rows of {', '.join(DTYPES)}"])
    expected = offset + math.prod(shape) * dtype.itemsize
    with reading(path), open_regular(path) as file:
        size = file.seek(0, 2)
        if size != expected:
            raise DataError(str(path), [f"has {size} bytes, but {dtype.name} of shape {shape} takes {expected}"])
        if 0 in shape:  # an empty range cannot be mapped
            return MappedColumn(torch.from_numpy(np.zeros(shape, dtype)))
        # "c" maps privately: torch warns of arrays that cannot be written to, and the file is never changed.
        return MappedColumn(torch.from_numpy(np.memmap(file, dtype, mode="c", offset=offset, shape=shape)))
