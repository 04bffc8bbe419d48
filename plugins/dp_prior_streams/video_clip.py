"""A range of the frames of an MP4 file behind a URL: its index is fetched, then the bytes of the frames alone.

FFmpeg reads the index from a sparse copy of the file. The packets from the last key frame before the range on are
copied into a video of their own, which is decoded as any other.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dp_prior.data.errors import DataError
from dp_prior.data.files import decoding
from dp_prior.tensors.pixels.video_files import import_av, opened_video
from dp_prior_streams.manifest import RemoteSet
from dp_prior_streams.part_cache import SPARSE, written_here

INDEXES = 16
"""Videos whose index stays in memory, some megabytes for an hour."""

MOST_BOXES = 64
"""Boxes before the index is given up."""

NO_INDEX = "is no video with an index"


@dataclass(frozen=True)
class Clip:
    """A video of some frames of another one.

    Attributes:
        path: the video.
        before: frames in it before the first that was asked for.
    """

    path: Path
    before: int


class VideoIndexes:
    """The bytes of videos that are no frames, by name; the most recent ones stay in memory."""

    def __init__(self, remote: RemoteSet):
        self.remote = remote
        self.of = lru_cache(INDEXES)(self._fetch)

    def _fetch(self, name: str) -> list[tuple[int, bytes]]:
        """The place and the content of each run of such bytes."""
        with tempfile.TemporaryDirectory(prefix="dp_prior_index_") as folder:
            path = Path(folder, "range")
            runs: list[tuple[int, bytes]] = []
            for begin, end in _index_ranges(self.remote, name, path):
                self.remote.fetch(name, path, begin, end, is_proven=False)
                runs.append((begin, path.read_bytes()))
            return runs

    def check(self, name: str) -> None:
        """Fetch the index again, of a place that does not say whether a video was written again.

        Raises:
            ChangedError: the index is another one, so the frames may be too.
        """
        if not self.remote.files[name].is_recognized and self._fetch(name) != self.of(name):
            self.remote.refuse(name, "has another index than before")


def cut_clip(indexes: VideoIndexes, name: str, begin: int, end: int, folder: Path) -> Clip:
    """Fetch the frames `begin` to `end` - 1 of a video, in the order of display, into a folder.

    Raises:
        DataError: the file is no MP4 with an index, or has fewer frames.
        ChangedError: the bytes differ from the manifest.
        UnreachableError: they do not arrive.
        UnwritableError: the disk of this machine is full.
    """
    av, remote = import_av(), indexes.remote
    where, path = remote.where(name), folder / f"{begin}-{end}.mp4"
    sparse = path.with_name(f"{path.name}{SPARSE}")
    with sparse.open("wb") as file:
        file.truncate(remote.files[name].size)
        for place, content in indexes.of(name):
            file.seek(place)
            file.write(content)
    with decoding(where, NO_INDEX):
        packets = _packets(sparse)
        starts = _starts(packets, begin, end, where)
    for start in starts:
        with decoding(where, NO_INDEX):
            chosen, before = _run(packets, start, begin, end)
            first_byte, last_byte = min(p.pos for p in chosen), max(p.pos + p.size for p in chosen)
        _copy_range(remote, name, first_byte, last_byte, sparse)
        indexes.check(name)
        with decoding(where, NO_INDEX), written_here(path):
            _write_clip(av, sparse, {packet.pos for packet in chosen}, path)
        if start == 0 or _begins_well(path, before):
            break
    sparse.unlink()
    return Clip(path, before)


@dataclass(frozen=True)
class PacketPlace:
    """Where a packet lies in the file, in the order of decoding."""

    pos: int
    size: int
    pts: int
    is_key: bool


def _index_ranges(remote: RemoteSet, name: str, path: Path) -> list[tuple[int, int]]:
    """The ranges of bytes of everything but the frames. Args: path: of a file to write to.

    Raises:
        DataError: the boxes of the file cannot be followed.
    """
    size, ranges, place = remote.files[name].size, [(0, 0)], 0
    for _ in range(MOST_BOXES):
        if place >= size:
            break
        remote.fetch(name, path, place, min(place + 16, size), is_proven=False)
        head = path.read_bytes()
        length, kind = struct.unpack(">I4s", head[:8].ljust(8, b"\0"))
        if length == 1 and len(head) == 16:
            (length,) = struct.unpack(">Q", head[8:])
        length = size - place if length == 0 else length
        if length < 8 or not kind.isalnum() or kind == b"moof":
            break
        end = min(place + (16 if kind == b"mdat" else length), size)
        if ranges[-1][1] == place:
            ranges[-1] = (ranges[-1][0], end)
        else:
            ranges.append((place, end))
        place += length
    if place != size:
        finding = "is no MP4 file whose index lies in one place, as LeRobot writes videos"
        raise DataError(remote.where(name), [f"{finding}; encode it again, for example by ffmpeg -c copy"])
    return ranges


def _copy_range(remote: RemoteSet, name: str, begin: int, end: int, target: Path) -> None:
    """Fetch a range of bytes into its place in a file."""
    path = target.with_name("range")
    remote.fetch(name, path, begin, end, is_proven=False)
    with path.open("rb") as source, target.open("r+b") as file:
        file.seek(begin)
        while piece := source.read(1 << 20):
            file.write(piece)
    path.unlink()


def _packets(path: Path) -> list[PacketPlace]:
    """The packets of a video in the order of decoding; reads no content."""
    with opened_video(path) as (container, stream):
        keys = {entry.pos for entry in stream.index_entries if entry.is_keyframe}  # a packet's flag follows its content
        packets = [packet for packet in container.demux(stream) if packet.size]
        return [PacketPlace(packet.pos, packet.size, packet.pts, packet.pos in keys) for packet in packets]


def _starts(packets: list[PacketPlace], begin: int, end: int, where: str) -> list[int]:
    """The places of key frames from which frames `begin` to `end` - 1 may be decoded, the last first: frames after a
    key frame of an open group may need frames before."""
    shown = sorted(packet.pts for packet in packets)
    if end > len(shown):
        raise DataError(where, [f"holds {len(shown)} frames, but its episodes need {end}; copy the file again"])
    first = next(place for place, packet in enumerate(packets) if shown[begin] <= packet.pts <= shown[end - 1])
    keys = [place for place in range(first + 1) if packets[place].is_key and packets[place].pts <= shown[begin]]
    return [*(keys[-back] for back in (1, 2, 4, 8, 16) if back <= len(keys)), 0]


def _run(packets: list[PacketPlace], start: int, begin: int, end: int) -> tuple[list[PacketPlace], int]:
    """The packets from a key frame on that frames `begin` to `end` - 1 need, and the number of frames before these."""
    shown = sorted(packet.pts for packet in packets)
    first = packets[start].pts
    last = max(place for place, packet in enumerate(packets) if first <= packet.pts <= shown[end - 1])
    run = [packet for packet in packets[start : last + 1] if packet.pts >= first]
    return run, sum(packet.pts < shown[begin] for packet in run)


def _begins_well(path: Path, before: int) -> bool:
    """Whether the frames before the first, and the first, can be decoded."""
    av = import_av()
    try:
        with opened_video(path) as (container, stream):
            stream.codec_context.thread_count = 1
            stream.codec_context.options["err_detect"] = "explode"
            frames = container.decode(stream)
            return not any(next(frames).is_corrupt for _ in range(before + 1))
    except (av.FFmpegError, StopIteration):
        return False


def _write_clip(av: Any, source: Path, places: set[int], path: Path) -> None:
    """Copy the packets at these places of a file into a new video."""
    with opened_video(source) as (container, stream), av.open(str(path), "w", format="mp4") as clip:
        copied = clip.add_stream_from_template(stream, opaque=True)
        for packet in container.demux(stream):
            if packet.size and packet.pos in places:
                packet.stream = copied
                clip.mux(packet)
