"""HDF5 files are opened here, with h5py."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.data.errors import DataError, UnreadableError
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
        raise ImportError('HDF5 files need h5py: pip install "dp_prior[hdf5]"') from None
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


def array_at(group: h5py.Group, key: str) -> h5py.Dataset | None:
    """The array at a path below a group; None if there is none."""
    import h5py

    found = group.get(key)
    return found if isinstance(found, h5py.Dataset) else None


def missing_part(array: h5py.Dataset) -> str | None:
    """How much of an array is written, where HDF5 would read the rest as zeros; None for a complete array."""
    if array.chunks is None:
        found = array.id.get_storage_size()
        return f"holds {found} of {array.nbytes} bytes" if found < array.nbytes else None
    grid = (-(-size // length) for size, length in zip(array.shape, array.chunks, strict=True))
    found, expected = array.id.get_num_chunks(), math.prod(grid)
    return f"holds {found} of {expected} chunks" if found < expected else None


def arrays_in(group: h5py.Group) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape and dtype of every array below a group, by each of its paths; links to other files are left out."""
    import h5py

    found: dict[str, tuple[tuple[int, ...], np.dtype]] = {}

    def note(name: str, link: h5py.HardLink | h5py.SoftLink | h5py.ExternalLink) -> None:
        item = None if isinstance(link, h5py.ExternalLink) else group.get(name)
        if isinstance(item, h5py.Dataset):
            found[name] = (item.shape or (), item.dtype)

    group.visititems_links(note)
    return dict(sorted(found.items()))


def groups_at(file: h5py.File, pattern: str) -> list[str]:
    """Paths of the groups that a pattern such as `data/demo_*` names; only its last part may have wildcards."""
    import h5py

    parent, _, last = pattern.rpartition("/")
    group = file.get(parent) if parent else file
    names = list(group) if isinstance(group, h5py.Group) else []
    paths = [f"{parent}/{name}".lstrip("/") for name in fnmatch.filter(names, last)]
    return [path for path in paths if isinstance(file.get(path), h5py.Group)]


def has_groups(path: Path, pattern: str) -> bool:
    """Whether an HDF5 file has groups of this pattern; True if it cannot be opened, so that its reader says why."""
    try:
        with opened_hdf5(path, "its layout") as file:
            return bool(groups_at(file, pattern))
    except (DataError, UnreadableError, ImportError):
        return True


def are_alike(first: np.dtype, second: np.dtype) -> bool:
    """Whether arrays of two episodes may be joined: of one type, or floats of any width."""
    return first == second or first.kind == second.kind == "f"
