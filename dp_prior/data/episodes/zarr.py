"""Replay buffers as Diffusion Policy writes them: zarr v2 or v3, in a directory or a `.zip` file."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dp_prior.config import Config
from dp_prior.data.errors import DataError, nearest_name

if TYPE_CHECKING:
    import zarr

UNREADABLE = (OSError, ValueError, KeyError, RuntimeError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)
"""What zarr and its codecs raise on damaged files."""


class ZarrStoreConfig(Config):
    """A replay buffer: a group of arrays with one row per step, and an array with the end of each episode."""

    type: Literal["zarr"] = "zarr"

    path: Path
    """Directory or `.zip` file; relative paths start at the working directory."""

    data: str = "data"
    """Group that holds the arrays; keys are named relative to it."""

    episode_ends: str = "meta/episode_ends"
    """Array that holds the exclusive end row of each episode."""

    missing_chunks: Literal["error", "fill"] = "error"
    """Chunks without a file: a data set copied in part looks like that (error), and so does one whose writer left out
    chunks that hold nothing but the fill value, as zarr 3 does unless told otherwise (fill)."""

    def create(self) -> ZarrStore:
        """Open the store; arrays are read when asked for.

        Raises:
            ImportError: zarr is not installed.
        """
        try:
            import zarr  # noqa: F401
        except ImportError:
            raise ImportError('reading zarr data needs zarr: pip install "dp_prior[zarr]"') from None
        return ZarrStore(**self.arguments())


class ZarrStore:
    """Reads a replay buffer array by array, whole: a small read costs zarr most of a millisecond."""

    def __init__(self, path: Path, data: str, episode_ends: str, missing_chunks: str):
        self.path = path
        self._fill_missing = missing_chunks == "fill"
        root = _open(path)
        members = dict(root.members(max_depth=None))
        arrays = {name: member for name, member in members.items() if hasattr(member, "chunks")}
        prefix = f"{data.strip('/')}/" if data.strip("/") else ""
        self._arrays = {name.removeprefix(prefix): arrays[name] for name in arrays if name.startswith(prefix)}
        problems = []
        if prefix and not any(name.startswith(prefix) for name in members):
            problems.append(f"has no group {data!r} with the data. {nearest_name(data, members)}")
        ends = episode_ends.strip("/")
        if ends not in arrays:
            problems.append(f"has no array {episode_ends!r} with the episode ends. {nearest_name(ends, arrays)}")
        if problems:
            raise DataError(str(path), problems)
        self._version = root.metadata.zarr_format
        self.episode_ends = self._load(arrays[ends])
        self._arrays = {name: array for name, array in self._arrays.items() if array.name != arrays[ends].name}

    def keys(self) -> dict[str, tuple[int, ...]]:
        """Feature shape of every array that has rows."""
        return {name: tuple(array.shape[1:]) for name, array in self._arrays.items() if len(array.shape) > 0}

    def read(self, key: str) -> np.ndarray:
        """(N, *feature_shape) in the stored dtype."""
        return self._load(self._arrays[key])

    def locate(self, key: str, row: int) -> str:
        """Where a row is stored, for messages."""
        return f"{self.path}{self._arrays[key].name}"

    def describe(self) -> dict[str, Any]:
        """Format and place."""
        return {"format": f"zarr v{self._version}", "path": str(self.path)}

    def _load(self, array: zarr.Array) -> np.ndarray:
        where = f"{self.path}{array.name}"
        if array.dtype.kind not in "biuf" or "pickle" in json.dumps(array.metadata.to_dict(), default=str).lower():
            raise DataError(where, [f"holds {array.dtype}, or is pickled; only plain numbers are read"])
        try:
            present, expected = array.nchunks_initialized, array.nchunks
            if present < expected and not self._fill_missing:
                remedy = "or, if its writer left out chunks of fill values, set data.episodes.missing_chunks to 'fill'"
                found = f"{expected - present} of {expected} chunks are missing"
                raise DataError(where, [f"{found}. Copy the data set again; {remedy}"])
            return np.asarray(array[...])
        except DataError:
            raise
        except UNREADABLE as error:
            raise DataError(where, [f"cannot be read: {error}"]) from None


def _open(path: Path) -> zarr.Group:
    import zarr
    from zarr.storage import ZipStore

    if not path.exists():
        raise DataError(str(path), ["no such file or directory; check data.episodes.path"])
    try:
        store = ZipStore(path, mode="r") if path.is_file() else str(path)
        return zarr.open_group(store=store, mode="r")
    except UNREADABLE as error:
        hint = _zipped_folder(path) if path.is_file() else ""
        raise DataError(str(path), [f"is not a readable zarr group: {error}{hint}"]) from None


def _zipped_folder(path: Path) -> str:
    """A hint for a zip file that holds the replay buffer one folder down."""
    try:
        with zipfile.ZipFile(path) as archive:
            roots = [name for name in archive.namelist() if name.endswith(("/.zgroup", "/zarr.json"))]
    except (OSError, zipfile.BadZipFile):
        return ""
    if not roots:
        return ""
    folder = min(roots, key=len).rpartition("/")[0]
    return f". The zip file holds it in the folder {folder!r}: unpack it and give that folder as data.episodes.path"
