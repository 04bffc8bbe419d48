"""Writes replay buffers, which `dp_prior.data.formats.zarr` reads."""

from __future__ import annotations

from dp_prior.data.formats.zarr.replay_buffer import ZarrStoreConfig
from dp_prior.data.frames import frame_bytes, frames_per_block
from dp_prior.files.durable import publish, temporary_directory
from dp_prior.files.entry_points import needing
from dp_prior_foreign.recording import Recording

CHUNK_BYTES = 1 << 20
"""Of numbers, before compression; frames have the blocks in which they are read."""


def write(record: ZarrStoreConfig, recording: Recording) -> None:
    """Write a replay buffer as Diffusion Policy reads it: a zarr v2 directory, `data/<key>` and `meta/episode_ends`;
    rate, tasks and names are attributes of the group `meta`.

    Raises:
        ImportError: zarr is not installed.
    """
    with needing("zarr", "writing zarr data needs zarr"):
        import zarr
        from numcodecs import Blosc
    with temporary_directory(record.path) as place:
        root = zarr.open_group(place, mode="w", zarr_format=2)
        # Chunks of zeros are written as well: a missing chunk is then a lost chunk.
        options = {"config": {"write_empty_chunks": True}, "compressors": Blosc("zstd", 5, Blosc.BITSHUFFLE)}
        data, meta = root.create_group("data"), root.create_group("meta")
        meta.attrs.update(recording.metadata)
        meta.create_array("episode_ends", data=recording.ends, **options)
        for name in recording.keys:
            values = recording.read(name)
            rows = max(1, CHUNK_BYTES // max(1, values[:1].nbytes))
            chunks = (min(len(values), rows), *(max(1, length) for length in values.shape[1:]))
            data.create_array(name, data=values, chunks=chunks, **options)
        for name, source in recording.cameras.items():
            contents = recording.contents(name)
            shape = (int(recording.ends[-1]), *source.size, contents.channels)
            count = min(shape[0], frames_per_block(frame_bytes(source.size, contents)))
            chunks = (count, *shape[1:])
            array = data.create_array(name, shape=shape, dtype=contents.dtype, chunks=chunks, **options)
            row = 0
            for block in recording.frames(name, count):
                array[row : row + len(block)] = block
                row += len(block)
        publish(place, record.path)


def losses(record: ZarrStoreConfig, recording: Recording) -> list[str]:
    """See `EpisodeStoreRecord.losses`; the replay buffer keeps all."""
    return []
