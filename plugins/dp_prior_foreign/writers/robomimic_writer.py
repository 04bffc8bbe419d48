"""Writes demonstrations in robomimic's HDF5 layout, which `dp_prior.data.formats.robomimic` reads."""

from __future__ import annotations

import itertools
import json

from dp_prior.data.errors import DataError
from dp_prior.data.formats.robomimic import ACTIONS, METADATA, RobomimicStoreConfig
from dp_prior.data.hdf5 import ENDINGS, import_h5py, written_hdf5
from dp_prior.files.durable import creating
from dp_prior_foreign.recording import Recording

STORED = {"compression": "gzip", "fletcher32": True}
"""Options of written arrays: compressed, with a checksum for each chunk."""


def write(record: RobomimicStoreConfig, recording: Recording) -> None:
    """Write one file; a `/` in a name makes groups, and rate, tasks and names are an attribute of `data`.

    Raises:
        DataError: `path` has another ending, or the layout cannot hold the names of the keys.
        ImportError: h5py is not installed.
    """
    import_h5py()
    if record.path.suffix not in ENDINGS:
        raise DataError(str(record.path), ["is no name of a robomimic file; end it with .hdf5"])
    _check_names(recording)
    arrays = {name: recording.read(name) for name in recording.keys}
    frames = {name: recording.frames(name) for name in recording.cameras}
    bounds = itertools.pairwise([0, *recording.ends.tolist()])
    with creating(record.path) as temporary, written_hdf5(temporary) as file:
        data = file.create_group("data")
        data.attrs["total"] = int(recording.ends[-1])
        data.attrs[METADATA] = json.dumps(recording.metadata)
        for number, (begin, end) in enumerate(bounds):
            demonstration = data.create_group(f"demo_{number}")
            demonstration.attrs["num_samples"] = end - begin
            for name, values in arrays.items():
                options = STORED if values.size else {}  # a chunk has at least one number
                demonstration.create_dataset(name, data=values[begin:end], **options)
            for name, blocks in frames.items():
                block = next(blocks)
                demonstration.create_dataset(name, data=block, chunks=(1, *block.shape[1:]), **STORED)
        for blocks in frames.values():
            next(blocks, None)  # checks that no frame is left


def losses(record: RobomimicStoreConfig, recording: Recording) -> list[str]:
    """See `EpisodeStoreRecord.losses`; the file keeps all."""
    return []


def _check_names(recording: Recording) -> None:
    """Raises DataError unless HDF5 can hold all keys and one key is `ACTIONS`."""
    names = [*recording.keys, *recording.cameras]
    problems = []
    if ACTIONS not in recording.keys:
        problems.append(f"has no key {ACTIONS!r}, which the layout needs; rename one with --rename action={ACTIONS}")
    for name in names:
        has_empty_part = any(part in ("", ".") for part in name.split("/"))
        if has_empty_part or any(other.startswith(f"{name}/") for other in names):
            problems.append(f"has a key {name!r}, which HDF5 has for a group; rename it with --rename")
    if problems:
        raise DataError(recording.store.where, problems)
