"""Writes one compressed `.npz` file, array after array."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from dp_prior.data.convert.recording import META, Recording
from dp_prior.data.errors import DataError
from dp_prior.data.frames import frames_per_block
from dp_prior.durable import replacing

ENDS = "episode_ends"


def write_npz(recording: Recording, path: Path) -> None:
    """Write the arrays, `episode_ends`, and `meta.json` with rate, tasks and names.

    Raises:
        DataError: a key has the name of the episode ends.
    """
    if path.suffix != ".npz":
        raise DataError(str(path), ["is no name of an .npz file; end it with .npz"])
    if ENDS in {*recording.keys, *recording.cameras}:
        raise DataError(str(recording.store.describe()["path"]), [f"has a key {ENDS!r}; rename it with --rename"])
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(META, json.dumps(recording.metadata))
        _write(archive, ENDS, recording.ends.shape, recording.ends.dtype, [recording.ends])
        for name in recording.keys:
            values = recording.read(name)
            _write(archive, name, values.shape, values.dtype, [values])
        for name, source in recording.cameras.items():
            count = frames_per_block(source.size[0] * source.size[1] * 3)
            shape = (int(recording.ends[-1]), *source.size, 3)
            _write(archive, name, shape, np.dtype(np.uint8), recording.frames(name, count))


def _write(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype, blocks: Iterable[np.ndarray]
) -> None:
    """One array, given in blocks of rows."""
    header = {"descr": npy_format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
        npy_format.write_array_header_1_0(stream, header)
        for block in blocks:
            stream.write(np.ascontiguousarray(block).data)
