"""Writes episodes into one `.npz` file, which `dp_prior.data.formats.npz` reads."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable

import numpy as np
from numpy.lib import format as npy_format

from dp_prior.data.errors import DataError
from dp_prior.data.formats.npz import META, NpzStoreConfig
from dp_prior.data.frames import frame_bytes, frames_per_block
from dp_prior.files.durable import creating
from dp_prior_foreign.recording import Recording


def write(record: NpzStoreConfig, recording: Recording) -> None:
    """Compress and write each array, the episode ends, and `meta.json` with rate, tasks and names.

    Raises:
        DataError: a key has the name of the episode ends.
    """
    if record.path.suffix != ".npz":
        raise DataError(str(record.path), ["is no name of an .npz file; end it with .npz"])
    if record.episode_ends in {*recording.keys, *recording.cameras}:
        finding = f"has a key {record.episode_ends!r}; rename it with --rename"
        raise DataError(recording.store.where, [finding])
    with creating(record.path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(META, json.dumps(recording.metadata))
        _write(archive, record.episode_ends, recording.ends.shape, recording.ends.dtype, [recording.ends])
        for name in recording.keys:
            values = recording.read(name)
            _write(archive, name, values.shape, values.dtype, [values])
        for name, source in recording.cameras.items():
            contents = recording.contents(name)
            count = frames_per_block(frame_bytes(source.size, contents))
            shape = (int(recording.ends[-1]), *source.size, contents.channels)
            _write(archive, name, shape, contents.dtype, recording.frames(name, count))


def losses(record: NpzStoreConfig, recording: Recording) -> list[str]:
    """See `EpisodeStoreRecord.losses`; the file keeps all."""
    return []


def _write(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]
) -> None:
    """Write one array from blocks of rows."""
    header = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        npy_format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block).data)
