"""Durable writes: a file appears whole or not at all, even if the process is killed or the power fails.

Always in this order: write under a temporary name, sync the data, rename, sync the directory.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dp_prior.files.regular_files import expanded
from dp_prior.files.temporary import remove_leftovers, temporary_beside

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""A full disk, quota or file."""

_NO_DIRECTORY_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # network and user-space file systems


def replace_file(path: Path, data: bytes) -> None:
    """Make `data` the content of `path`, durably; a reader sees the old content or the new one.

    A symbolic link at `path` is replaced; the link's target is not touched.

    Raises:
        OSError: names `path`. The old content remains, unless only the sync of the directory failed.
    """
    try:
        with replacing(path) as temporary, open(temporary, "xb") as file:
            file.write(data)
    except OSError as error:
        raise _naming(path, error) from error


def write_new(path: Path, text: str) -> None:
    """Write a new file; see `creating`."""
    try:
        with creating(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _naming(path, error) from None


def _naming(path: Path, error: OSError) -> OSError:
    """Add the user's path to an error; an error of a write to a descriptor names no file."""
    return error if error.errno is None else OSError(error.errno, error.strerror, str(path))


@contextmanager
def _naming_full(path: Path) -> Iterator[None]:
    """Add `path` to an error of a full disk that names no file, as for an open file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error  # a library may hide the reason


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably. An existing directory is left unchanged."""
    missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
    path.mkdir(parents=True, exist_ok=True)
    for made in reversed(missing):
        sync_directory(made.parent)


def try_writing(path: Path) -> None:
    """Create and delete a file in a directory, or in the nearest existing parent.

    Raises:
        OSError: names the existing directory that cannot be written.
    """
    place = next(folder for folder in (path.absolute(), *path.absolute().parents) if os.path.lexists(folder))
    try:
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        raise _naming(place, error) from error


def append(file: io.FileIO, data: bytes) -> None:
    """Append to an unbuffered file, all or nothing: a partial write on a full disk is truncated again.

    Raises:
        OSError: names the file.
    """
    start = os.fstat(file.fileno()).st_size
    try:
        while data:  # after a partial write the next write raises the reason
            data = data[file.write(data) :]
    except OSError as error:
        os.ftruncate(file.fileno(), start)
        raise _naming(Path(file.name), error) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path for a library to write to. Replaces `path` durably on success; deleted on error."""
    temporary = temporary_beside(path)
    try:
        with _naming_full(path):
            yield temporary
            sync_file(temporary)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error matters, not an error of the cleanup
            temporary.unlink()
        raise
    sync_directory(path.parent)


@contextmanager
def creating(path: Path) -> Iterator[Path]:
    """A temporary path for a library to write to. Becomes `path`, which must be new, durably on success; deleted on
    error. Creates missing parents, and deletes temporary files of killed processes for the same `path`.

    Raises:
        FileExistsError: `path` exists, or a parent is a file; with the remedy.
    """
    refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, f"_{path.name}")
    temporary = temporary_beside(path)
    try:
        with _naming_full(path):
            yield temporary
            sync_file(temporary)
        try:
            os.link(temporary, path)  # fails if another process was faster, as a rename would not
        except FileExistsError:
            raise _existing(path) from None
        except OSError:  # the file system has no hard links
            refuse_existing(path)
            os.rename(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # the first error matters, not an error of the cleanup
            temporary.unlink()
    sync_directory(path.parent)


def refuse_existing(path: Path) -> None:
    """Raises FileExistsError with the remedy if `path` exists, also as a link that leads nowhere, or if a parent is a
    file."""
    existing = next(candidate for candidate in (path, *path.parents) if os.path.lexists(candidate))
    if existing == path or not os.path.isdir(existing):
        raise _existing(existing)


def _existing(path: Path | str) -> FileExistsError:
    return FileExistsError(f"{path} exists, and nothing is overwritten; name another file, or another folder")


@contextmanager
def temporary_directory(path: Path) -> Iterator[Path]:
    """A new directory beside `path`, to fill and rename to `path`; deleted at the end if still under this name.

    Deletes temporary directories of killed processes for the same `path`.
    """
    remove_leftovers(path.parent, f"_{path.name}")
    temporary = temporary_beside(path)
    temporary.mkdir()
    try:
        with _naming_full(path):
            yield temporary
    finally:
        for pause in (0.05, 0.2, 0.5):  # threads of a library, such as zarr, may still write after its error
            if not temporary.exists():
                break
            shutil.rmtree(temporary, ignore_errors=True)
            time.sleep(pause)


def vacant(directory: str | Path) -> Path:
    """Prepare a path for a new directory: remove an empty one, create the parents.

    Raises:
        FileExistsError: the path exists and is not an empty directory, or cannot be replaced.
    """
    directory = expanded(directory)
    if directory.is_dir() and not any(directory.iterdir()):
        try:
            directory.rmdir()
        except OSError as error:  # the working directory, a link, a mount point
            finding = f"{directory} is an empty folder that cannot be replaced ({error.strerror})"
            raise FileExistsError(f"{finding}; name a new folder, perhaps inside it") from None
    if directory.exists():
        raise FileExistsError(f"{directory} exists and is not empty; choose another folder")
    refuse_existing(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)
    return directory


def publish(temporary: Path, path: Path) -> None:
    """Sync a directory with all its files, and rename it to `path`.

    Raises:
        FileExistsError: `path` was created meanwhile.
    """
    for folder, _, files in os.walk(temporary, topdown=False):
        for file in files:
            sync_file(Path(folder, file))
        sync_directory(Path(folder))
    try:
        os.rename(temporary, path)
    except OSError:
        refuse_existing(path)
        raise
    sync_directory(path.parent)


def link_or_copy(source: Path, target: Path) -> None:
    """Hard-link a file; if that fails, as across file systems, copy the file durably."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        sync_file(target)


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, where the file system can sync directories."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise _naming(path, error) from error
    finally:
        os.close(descriptor)
