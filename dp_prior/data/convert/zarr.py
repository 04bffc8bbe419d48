"""Writes replay buffers as Diffusion Policy reads them: a zarr v2 directory, `data/<key>` and `meta/episode_ends`."""

from __future__ import annotations

import os
from pathlib import Path

from dp_prior.data.convert.recording import Recording
from dp_prior.data.frames import frames_per_block
from dp_prior.durable import sync_directory, sync_file, temporary_directory

CHUNK_BYTES = 1 << 20
"""Of numbers, before compression; frames have the blocks in which they are read."""


def write_zarr(recording: Recording, path: Path) -> None:
    """Write a replay buffer; rate, tasks and names are attributes of the group `meta`.

    Raises:
        ImportError: zarr is not installed.
    """
    try:
        import zarr
        from numcodecs import Blosc
    except ImportError:
        raise ImportError('writing zarr data needs zarr: pip install "dp_prior[zarr]"') from None
    with temporary_directory(path) as place:
        root = zarr.open_group(place, mode="w", zarr_format=2)
        # Chunks of zeros are written too: a missing chunk is then a lost one.
        how = {"config": {"write_empty_chunks": True}, "compressors": Blosc("zstd", 5, Blosc.BITSHUFFLE)}
        data, meta = root.create_group("data"), root.create_group("meta")
        meta.attrs.update(recording.metadata)
        meta.create_array("episode_ends", data=recording.ends, **how)
        for name in recording.keys:
            values = recording.read(name)
            rows = max(1, CHUNK_BYTES // max(1, values[:1].nbytes))
            chunks = (min(len(values), rows), *(max(1, length) for length in values.shape[1:]))
            data.create_array(name, data=values, chunks=chunks, **how)
        for name, source in recording.cameras.items():
            shape = (int(recording.ends[-1]), *source.size, 3)
            count = min(shape[0], frames_per_block(source.size[0] * source.size[1] * 3))
            array = data.create_array(name, shape=shape, dtype="uint8", chunks=(count, *shape[1:]), **how)
            row = 0
            for block in recording.frames(name, count):
                array[row : row + len(block)] = block
                row += len(block)
        publish(place, path)


def publish(place: Path, path: Path) -> None:
    """Make a directory durable and give it its name."""
    for folder, _, files in os.walk(place, topdown=False):
        for file in files:
            sync_file(Path(folder, file))
        sync_directory(Path(folder))
    os.rename(place, path)
    sync_directory(path.parent)
