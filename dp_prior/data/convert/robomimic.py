"""Writes robomimic's HDF5 layout: `data/demo_N/<key>`, with a checksum for each chunk."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

from dp_prior.data.convert.recording import Recording
from dp_prior.data.episodes.robomimic import ACTIONS, METADATA
from dp_prior.data.errors import DataError
from dp_prior.data.hdf5 import import_h5py
from dp_prior.durable import replacing

STORED = {"compression": "gzip", "fletcher32": True}


def write_robomimic(recording: Recording, path: Path) -> None:
    """Write one file; a `/` in a name makes groups, and rate, tasks and names are an attribute of `data`.

    Raises:
        DataError: `path` is no name of such a file, or the names of the keys are none of the layout.
        ImportError: h5py is not installed.
    """
    h5py = import_h5py()
    if path.suffix not in (".hdf5", ".h5"):
        raise DataError(str(path), ["is no name of a robomimic file; end it with .hdf5"])
    _check_names(recording)
    arrays = {name: recording.read(name) for name in recording.keys}
    frames = {name: recording.frames(name) for name in recording.cameras}
    bounds = itertools.pairwise([0, *recording.ends.tolist()])
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        data = file.create_group("data")
        data.attrs["total"] = int(recording.ends[-1])
        data.attrs[METADATA] = json.dumps(recording.metadata)
        for number, (begin, end) in enumerate(bounds):
            demonstration = data.create_group(f"demo_{number}")
            demonstration.attrs["num_samples"] = end - begin
            for name, values in arrays.items():
                how = STORED if values.size else {}  # a chunk has at least one number
                demonstration.create_dataset(name, data=values[begin:end], **how)
            for name, blocks in frames.items():
                block = next(blocks)
                demonstration.create_dataset(name, data=block, chunks=(1, *block.shape[1:]), **STORED)
        for blocks in frames.values():
            next(blocks, None)  # checks that no frame is left


def _check_names(recording: Recording) -> None:
    """Raises DataError unless HDF5 can hold all keys and one of them is the actions."""
    names = [*recording.keys, *recording.cameras]
    problems = []
    if ACTIONS not in recording.keys:
        problems.append(f"has no key {ACTIONS!r}, which the layout needs; rename one with --rename action={ACTIONS}")
    for name in names:
        if any(part in ("", ".") for part in name.split("/")) or any(each.startswith(f"{name}/") for each in names):
            problems.append(f"has a key {name!r}, which HDF5 has for a group; rename it with --rename")
    if problems:
        raise DataError(str(recording.store.describe()["path"]), problems)
