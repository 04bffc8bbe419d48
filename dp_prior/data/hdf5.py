"""HDF5 files are opened here, with h5py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dp_prior.data.files import decoding

if TYPE_CHECKING:
    import h5py


def import_h5py() -> Any:
    """h5py.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import h5py
    except ImportError:
        raise ImportError('robomimic data need h5py: pip install "dp_prior[hdf5]"') from None
    return h5py


@contextmanager
def opened_hdf5(path: Path, what: str) -> Iterator[h5py.File]:
    """An HDF5 file for reading.

    Args:
        what: is read inside the context, for messages.

    Raises:
        DataError: it is damaged.
        UnreadableError: the system refused to read it.
    """
    with decoding(path, f"{what} cannot be read"), import_h5py().File(path, "r") as file:
        yield file
