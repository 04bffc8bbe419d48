"""HDF5 files are opened here, with h5py, and their objects found: only those whose values lie in the file itself.

HDF5 knows four ways to read another file: external links, soft links to them, external storage and virtual datasets.
h5py follows all of them, so paths are resolved here, link by link, before anything is opened.
"""

from __future__ import annotations

import fnmatch
import io
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dp_prior.data.errors import DataError, UnreadableError, first_few
from dp_prior.data.files import DEFLATE_RATIO, LARGEST_RATIO, check_array, check_count, decoding, reading
from dp_prior.files.entry_points import needing
from dp_prior.files.regular_files import check_regular

if TYPE_CHECKING:
    import h5py

ENDINGS = (".hdf5", ".h5")

MOST_NESTED = 16
"""Depth of nested groups, and length of a chain of soft links."""

RATIOS = {(): 1, ("gzip",): DEFLATE_RATIO}
"""Bounds on what a byte decodes to, by the filters that compress."""

COPY_LINK = "copy what it leads to into this file with h5py: it = file[name]; del file[name]; file.copy(it, name)"
COPY_VALUES = "copy them into this file with h5py: it = file[name][()]; del file[name]; file[name] = it"
"""What to do about an object in another file and about values there, which are never read, for messages."""

MOST_AT_ONCE = 1 << 30
"""Most bytes of values of any length that are read before they are counted, unless the file has more bytes."""

_HARMLESS = {"shuffle", "fletcher32"}


class OutsideError(DataError):
    """An object whose values lie in another file."""


def import_h5py() -> Any:
    """h5py.

    Raises:
        ImportError: it is not installed.
    """
    with needing("hdf5", "HDF5 files need h5py"):
        import h5py
    return h5py


@contextmanager
def opened_hdf5(path: Path, content: str) -> Iterator[h5py.File]:
    """An HDF5 file for reading; `member` finds the objects in it.

    Args:
        content: what is read inside the context, for messages.

    Raises:
        DataError: it is damaged.
        UnreadableError: the system refused to read it.
    """
    with reading(path):
        check_regular(path, os.stat(path).st_mode)
    with decoding(path, f"{content} cannot be read"), import_h5py().File(path, "r") as file:
        yield file


class _Disk(io.FileIO):
    """A file to be written by HDF5, which ends the process by a segmentation fault after a failed write, as on a full
    disk: the first error is kept, and later bytes are dropped."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Returns the number of bytes given."""
        rest = memoryview(data).cast("B")
        while len(rest) and self.error is None:
            try:
                rest = rest[super().write(rest) :]
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


@contextmanager
def written_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file.

    Raises:
        OSError: the file could not be written, raised at the end.
    """
    with _Disk(path, "w+") as disk:
        try:
            with import_h5py().File(disk, "w") as file:
                yield file
        finally:
            if disk.error is not None:
                raise disk.error


def member(group: h5py.Group, path: str) -> h5py.Group | h5py.Dataset | None:
    """The object at a path below a group, or from the top if it begins with a slash; None if there is none.

    Raises:
        OutsideError: the path, or the dataset, leads into another file.
    """
    return _followed(group, path, MOST_NESTED)


def datasets(group: h5py.Group) -> tuple[dict[str, h5py.Dataset], dict[str, str]]:
    """Every dataset below a group by each of its paths, sorted, and why other names lead to no array of this file.

    A group that several links name is looked through once.

    Raises:
        DataError: groups are nested too deeply, or there are too many.
    """
    members: list[tuple[str, h5py.Dataset | str]] = []
    _collect(group, "", members, {_address(group)})
    arrays = {path: item for path, item in members if not isinstance(item, str)}
    return dict(sorted(arrays.items(), key=itemgetter(0))), {path: why for path, why in members if isinstance(why, str)}


def names_beside(file: h5py.File, paths: Iterable[str]) -> list[str]:
    """Paths of everything that lies beside these groups, and beside the groups above them."""
    parents, groups, members = set(), set(), set()
    for path in paths:
        names = path.split("/")
        parents.update("/".join(names[:depth]) for depth in range(len(names)))
        groups.update("/".join(names[: depth + 1]) for depth in range(len(names)))
    for parent in parents:
        members.update(f"{parent}/{name}".lstrip("/") for name in member(file, parent or "/") or ())
    return sorted(members - groups)


def attribute(group: h5py.Group, name: str) -> Any:
    """The value of an attribute; None if there is none. Only a single value is read: a thousand texts may be one that
    they all name.

    Raises:
        DataError: the attribute has several values, or none.
    """
    if name not in group.attrs:
        return None
    shape = group.attrs.get_id(name).shape
    if shape is None or math.prod(shape) != 1:
        finding = f"attribute {name!r} of {group.name[:200]} has the shape {shape}"
        raise DataError(group.file.filename, [f"{finding}; expected a single value"])
    return np.asarray(group.attrs[name]).ravel().tolist()[0]


def check_dataset(array: h5py.Dataset) -> None:
    """Raises DataError before memory is taken for what a dataset only declares."""
    plist = array.id.get_create_plist()
    filters = (plist.get_filter(number)[3].decode() for number in range(plist.get_nfilters()))
    compressing = tuple("gzip" if name == "deflate" else name for name in filters if name not in _HARMLESS)
    chunk = math.prod(array.chunks) * array.dtype.itemsize if array.chunks else 0
    ratio = RATIOS.get(compressing, LARGEST_RATIO)
    where = f"{array.file.filename}{array.name}"
    check_array(where, array.shape, array.dtype, stored=array.id.get_storage_size(), ratio=ratio, chunk=chunk)


def array_at(group: h5py.Group, key: str) -> h5py.Dataset | None:
    """The array at a path below a group; None if there is none. See `member`."""
    array = member(group, key)
    return array if isinstance(array, import_h5py().Dataset) else None


def group_at(file: h5py.File, path: str) -> h5py.Group:
    """The group at a path; see `member`.

    Raises:
        DataError: there is none.
    """
    group = member(file, path)
    if not isinstance(group, import_h5py().Group):
        raise DataError(f"{file.filename}/{path}", ["is no group; expected one with the arrays of an episode"])
    return group


def missing_part(array: h5py.Dataset) -> str | None:
    """How much of an array is written, where HDF5 would read the rest as zeros; None for a complete array."""
    if array.chunks is None:
        stored = array.id.get_storage_size()
        return f"holds {stored} of {array.nbytes} bytes" if stored < array.nbytes else None
    grid = (-(-size // length) for size, length in zip(array.shape, array.chunks, strict=True))
    stored, expected = array.id.get_num_chunks(), math.prod(grid)
    return f"holds {stored} of {expected} chunks" if stored < expected else None


def complete_array(group: h5py.Group, key: str, where: str) -> h5py.Dataset | None:
    """The array at a path below a group; None if there is none. See `member`.

    Args:
        where: the array, for messages.

    Raises:
        DataError: a part of the array is not written, or more is declared than stored.
    """
    array = array_at(group, key)
    if array is not None:
        check_dataset(array)
        if array.dtype.kind != "O" and (missing := missing_part(array)):
            raise DataError(where, [f"{missing}; the file is incomplete, copy or write it again"])
    return array


def rows_of(array: h5py.Dataset, first: int, stop: int) -> np.ndarray:
    """Read rows first to stop - 1. Many values of any length may name one large object of the file, so such values are
    read a few at a time and counted.

    Raises:
        DataError: values of any length take more bytes than the file has.
    """
    if array.dtype.kind != "O":
        return array[first:stop]
    size, rows = os.path.getsize(array.file.filename), array.shape[1:]
    values, held, room = np.empty((max(min(stop, len(array)) - first, 0), *rows), object), MOST_AT_ONCE // size, size
    for column in np.ndindex(*rows):
        for begin in range(0, len(values), max(held, 1)):
            end = min(begin + max(held, 1), len(values))
            block = values[(slice(begin, end), *column)] = array[(slice(first + begin, first + end), *column)]
            room -= sum(getattr(value, "nbytes", 0) or len(value) for value in block if hasattr(value, "__len__"))
            if room < 0:
                finding = f"holds values of more bytes than the file, {size:,}, as many rows name one value"
                raise DataError(f"{array.file.filename}{array.name}", [f"{finding}; write the rows again with h5py"])
    return values


def row_blocks(array: h5py.Dataset, first: int, stop: int, step: int) -> Iterator[np.ndarray]:
    """Rows first to stop - 1 in order, at most `step` at once; each chunk is decompressed once."""
    chunk = array.chunks[0] if array.chunks else 1
    held = chunk * max(step // chunk, 1)
    for begin in range(first - first % held, stop, held):
        rows = rows_of(array, max(begin, first), min(begin + held, stop))
        yield from (rows[row : row + step] for row in range(0, len(rows), step))


def groups_at(file: h5py.File, pattern: str) -> list[str]:
    """Paths of the groups that a pattern such as `data/demo_*` names; only its last part may have wildcards."""
    kind = import_h5py().Group
    parent, _, last = pattern.rpartition("/")
    group = member(file, parent) if parent else file
    names = list(group) if isinstance(group, kind) else []
    paths = [f"{parent}/{name}".lstrip("/") for name in fnmatch.filter(names, last)]
    return [path for path in paths if isinstance(member(file, path), kind)]


def has_groups(path: Path, pattern: str) -> bool:
    """Whether a path is an HDF5 file by its ending, and has groups of this pattern; True for a file that cannot be
    opened, so that its reader says why."""
    if path.suffix not in ENDINGS or not path.is_file():
        return False
    try:
        with opened_hdf5(path, "its layout") as file:
            return bool(groups_at(file, pattern))
    except (DataError, UnreadableError, ImportError):
        return True


def are_alike(first: np.dtype, second: np.dtype) -> bool:
    """Whether arrays of two episodes may be joined: of one type, or floats of any width, or texts of any length."""
    return first == second or first.kind == second.kind in ("f", "S", "U")


def _followed(group: h5py.Group, path: str, links: int) -> h5py.Group | h5py.Dataset | None:
    """See `member`; over at most `links` soft links."""
    h5py = import_h5py()
    at = group.file["/"] if path.startswith("/") else group
    for name in path.split("/"):
        if name in ("", "."):
            continue
        encoded = name.encode(errors="surrogateescape")
        if not isinstance(at, h5py.Group) or not at.id.links.exists(encoded):
            return None
        where, kind = f"{at.name.rstrip('/')}/{name}", at.id.links.get_info(encoded).type
        if kind == h5py.h5l.TYPE_SOFT and links:
            at = _followed(at, _target(at, encoded), links - 1)
        elif kind == h5py.h5l.TYPE_HARD:
            at = at[name]
        else:
            led = _target(at, encoded) if kind == h5py.h5l.TYPE_EXTERNAL else "another file"
            problem = "leads on to too many links" if kind == h5py.h5l.TYPE_SOFT else f"is a link to {led}"
            raise OutsideError(group.file.filename, [f"{where} {problem}; {COPY_LINK}"])
        if isinstance(at, h5py.Dataset) and (at.is_virtual or at.external):
            sources = at.external or [(source.file_name,) for source in at.virtual_sources()]
            listed = first_few(sorted({str(source[0])[:200] for source in sources}))
            raise OutsideError(group.file.filename, [f"{where} has its values in other files, {listed}; {COPY_VALUES}"])
    return at


def _target(group: h5py.Group, name: bytes) -> str:
    """Where a soft or external link leads: a path, and of which file."""
    link = group.id.links.get_val(name)
    parts = [part.decode(errors="surrogateescape") for part in (link if isinstance(link, tuple) else (link,))]
    return parts[0] if len(parts) == 1 else f"{parts[1][:200]} of {parts[0][:200]}"


def _collect(
    group: h5py.Group, prefix: str, members: list[tuple[str, h5py.Dataset | str]], addresses: set[Any]
) -> None:
    """Add the path of everything below a group but groups, with the dataset or why the path leads to no dataset.

    Args:
        addresses: of the groups that are looked through.
    """
    h5py = import_h5py()
    if prefix.count("/") > MOST_NESTED:
        raise DataError(group.file.filename, [f"nests more than {MOST_NESTED} groups, first at {group.name[:200]}"])
    check_count(group.file.filename, len(members) + len(group), "arrays and groups in one demonstration")
    for name in group:
        item = _item(group, name)
        if not isinstance(item, h5py.Group):
            members.append((prefix + name, item))
        elif _address(item) not in addresses:
            addresses.add(_address(item))
            _collect(item, f"{prefix}{name}/", members, addresses)


def _item(group: h5py.Group, name: str) -> h5py.Group | h5py.Dataset | str:
    """The object of a name in a group, or why there is none."""
    h5py = import_h5py()
    try:
        item = member(group, name)
    except OutsideError as error:
        return error.problems[0]
    if item is None:
        led = _target(group, name.encode(errors="surrogateescape"))[:200]
        return f"a link to {led}, which the file does not have; write what it should lead to, or delete it"
    return item if isinstance(item, (h5py.Group, h5py.Dataset)) else "a named type, which holds no values"


def _address(group: h5py.Group) -> Any:
    """Place of a group in its file; equal for two names of the same group."""
    return import_h5py().h5o.get_info(group.id).addr
