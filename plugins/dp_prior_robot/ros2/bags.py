"""The MCAP files of a recording, and their messages in the order of the files; one chunk of a file is held."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from dp_prior.data.errors import DataError, MissingError, first_few
from dp_prior.data.files import MOST_CHUNK_BYTES, check_memory, decoding, reading
from dp_prior.data.found_files import by_number
from dp_prior.files.regular_files import open_regular, read_small

if TYPE_CHECKING:
    from mcap.records import Channel, Chunk, McapRecord, Schema
    from mcap_ros2.decoder import DecoderFactory

MCAP_ENDING, METADATA_FILE = ".mcap", "metadata.yaml"

REWRITE_COMMAND = "`rosbags-convert --src OLD --dst NEW --dst-storage mcap` of the package rosbags"

OTHER_FORMATS = {
    ".db3": f"{REWRITE_COMMAND} writes MCAP, as does `ros2 bag convert` with `storage_id: mcap`",
    ".db3.zstd": f"{REWRITE_COMMAND} writes MCAP, unpacked",
    ".bag": f"it is of ROS 1: {REWRITE_COMMAND} writes a bag of ROS 2",
    ".mcap.zstd": f"{REWRITE_COMMAND} writes it unpacked, as does `ros2 bag convert`",
}
"""Remedies for other files of bags, by ending."""

_MAGIC, _LARGEST_METADATA = b"\x89MCAP0\r\n", 4 << 20
_WIDE = re.compile(rb"(float|int)64\b")  # numbers that XCDR2 aligns by 4 bytes, not by 8
_ZSTD = b"\x28\xb5\x2f\xfd"
_MOST_NESTED = 32  # in metadata; recorders nest about six


@dataclass(frozen=True)
class BagMessage:
    """One recorded message, not decoded yet. Attributes: log_time: nanoseconds at which it was recorded."""

    topic: str
    log_time: int
    data: bytes
    channel: Channel
    schema: Schema | None
    factory: DecoderFactory

    @property
    def type(self) -> str:
        """Name of the message's type, such as sensor_msgs/msg/Image."""
        return "no type" if self.schema is None else self.schema.name

    def decode(self) -> Any:
        """Decode the message to an object with the fields as attributes.

        Raises:
            DataError: the message is not in the encoding of ROS 2, or damaged.
        """
        encoding = f"{self.channel.message_encoding}, {self.schema and self.schema.encoding}"
        with decoding(self.topic, f"a message of {self.type} cannot be decoded"):
            decode = self.factory.decoder_for(self.channel.message_encoding, self.schema)
            if decode is None:
                remedy = "save its numbers by NumPy (docs/own_data.md#other-files)"
                if self.schema is None:
                    remedy = "record again where the package of its messages is installed"
                elif self.channel.message_encoding == "cdr":
                    remedy = f"{REWRITE_COMMAND} writes it"
                raise DataError(
                    self.topic, [f"holds {self.type} encoded as {encoding}; expected cdr, ros2msg; {remedy}"]
                )
            data = _uncompressed(self.data, self.topic)
            self._check_representation(data[1:2])
            return decode(data)

    def _check_representation(self, kind: bytes) -> None:
        """Raises DataError for a representation of CDR that is read with wrong offsets, without an error."""
        plain_xcdr2 = kind in (b"\6", b"\7")
        has_wide_numbers = _WIDE.search(self.schema.data) is not None if self.schema else True
        if kind not in (b"", b"\0", b"\1") and not (plain_xcdr2 and not has_wide_numbers):
            finding = f"holds {self.type} in the CDR representation {kind.hex()}; expected 00 or 01, XCDR1"
            raise DataError(self.topic, [f"{finding}; save its numbers by NumPy (docs/own_data.md#other-files)"])


@dataclass(frozen=True)
class Bag:
    """One recording. Attributes: may_be_cut: whether a file without its end is read up to the first damage."""

    path: Path
    files: tuple[Path, ...]
    may_be_cut: bool = False

    def messages(self) -> Iterator[BagMessage]:
        """Read all messages in order.

        Raises:
            DataError: a file is damaged, or was cut off.
        """
        from mcap.records import Channel, Message, Schema
        from mcap_ros2.decoder import DecoderFactory

        for file in self.files:
            factory, schemas, channels = DecoderFactory(), {}, {}
            for record in _records(file, self.may_be_cut):
                if isinstance(record, Schema):
                    schemas[record.id] = record
                elif isinstance(record, Channel):
                    channels[record.id] = record
                elif isinstance(record, Message):
                    channel = channels.get(record.channel_id)
                    if channel is None:
                        finding = f"has a message of channel {record.channel_id}, which is not there"
                        raise DataError(str(file), [f"{finding}; copy it again"])
                    schema = schemas.get(channel.schema_id)
                    yield BagMessage(channel.topic, record.log_time, record.data, channel, schema, factory)

    def cut_files(self) -> list[Path]:
        """The files without an end, as a crash leaves them."""
        return [file for file in self.files if not _is_whole(file)]


def is_recording(path: Path) -> bool:
    """Whether files of bags lie at a path, in the folder, or in folders inside."""
    if path.is_file():
        return path.name.endswith((MCAP_ENDING, *OTHER_FORMATS))
    return any(
        any(path.glob(f"*{ending}")) or any(path.glob(f"*/*{ending}")) for ending in (MCAP_ENDING, *OTHER_FORMATS)
    )


def bags_at(path: Path) -> list[Bag]:
    """List the recordings at a path, in the order of the numbers in their names.

    A folder with metadata.yaml, or whose files are called NAME_0.mcap, NAME_1.mcap, ... after the folder NAME, is one
    recording. In other folders each file and folder is a recording.

    Raises:
        DataError: the path holds no recording, or a recording that is not in MCAP.
    """
    if not path.exists():
        raise MissingError(str(path.absolute()), ["no such file or folder; check data.episodes.path"])
    with reading(path):
        inside = sorted(path.iterdir(), key=lambda entry: by_number(entry.name)) if path.is_dir() else []
    if path.is_file() or _is_one(path):
        return [_bag(path)]
    bags = [_bag(entry) for entry in inside if is_recording(entry)]
    if not bags:
        raise DataError(
            str(path.absolute()), [f"holds no recording; expected files {MCAP_ENDING} or folders with them"]
        )
    return bags


def _in(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{MCAP_ENDING}"), key=lambda file: by_number(file.name))


def _is_one(folder: Path) -> bool:
    if (folder / METADATA_FILE).is_file():
        return True
    numbered = re.compile(re.escape(folder.name) + r"_\d+")
    return bool(_in(folder)) and all(numbered.fullmatch(file.stem) for file in _in(folder))


def _bag(path: Path) -> Bag:
    """Open the recording in a file or a folder."""
    candidates = [path] if path.is_file() else sorted(path.iterdir())
    for candidate in candidates:
        for ending, remedy in OTHER_FORMATS.items():
            if candidate.name.endswith(ending):
                raise DataError(str(path), [f"{candidate.name} is no MCAP file; {remedy}"])
    if path.is_file():
        return Bag(path, (path,))
    files = _in(path)
    if not (path / METADATA_FILE).is_file():
        if len(files) != 1 and not _is_one(path):
            remedy = f"`ros2 bag reindex {path}` writes it, or give each recording a folder"
            raise DataError(
                str(path), [f"has {len(files)} files {MCAP_ENDING}, but no {METADATA_FILE} that lists them; {remedy}"]
            )
        return Bag(path, tuple(files))
    listed = _listed(path / METADATA_FILE)
    if set(listed) != {file.name for file in files}:
        differ = first_few(sorted(set(listed) ^ {file.name for file in files}))
        remedy = f"copy it again, or `ros2 bag reindex {path}`"
        raise DataError(str(path), [f"{METADATA_FILE} and the files {MCAP_ENDING} differ by {differ}; {remedy}"])
    return Bag(path, tuple(path / name for name in listed))


def _listed(metadata: Path) -> list[str]:
    """Read the names of a bag's files from its metadata."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # twenty times as fast, where PyYAML has libyaml
    with reading(metadata), decoding(metadata, "is not the metadata of a bag"):
        text = read_small(metadata, _LARGEST_METADATA)
        depth = 0
        for event in yaml.parse(text, loader):  # event by event: whole, deep nesting takes minutes
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > _MOST_NESTED:
                finding = "repeats parts by aliases" if depth <= _MOST_NESTED else f"nests over {_MOST_NESTED} values"
                raise DataError(str(metadata), [f"{finding}, which no recorder writes; copy it again"])
        information = yaml.load(text, loader)["rosbag2_bagfile_information"]
        mode = str(information.get("compression_mode") or "none")
        how = f"{mode} {information.get('compression_format', '')}".lower()
        if mode.lower() != "none" and how != "message zstd":
            raise DataError(str(metadata), [f"compression_mode is {mode}; {REWRITE_COMMAND} writes it without"])
        return [str(name) for name in information["relative_file_paths"]]


def _is_whole(file: Path) -> bool:
    """Whether a file is complete; after a crash the end is missing."""
    with reading(file), open_regular(file) as stream:
        begin, size = stream.read(len(_MAGIC)), os.fstat(stream.fileno()).st_size
        if not _MAGIC.startswith(begin):
            raise DataError(str(file), [f"is no MCAP file: it begins with {begin!r}"])
        stream.seek(max(0, size - len(_MAGIC)))
        return size > len(_MAGIC) and stream.read() == _MAGIC


def _records(file: Path, may_be_cut: bool) -> Iterator[McapRecord]:
    """Read the records of a file; of a file without an end, up to the first damaged record."""
    is_whole = _is_whole(file)
    if not is_whole and not may_be_cut:
        finding = "ends without its footer, as a recording that was cut off"
        raise DataError(str(file), [f"{finding}; `dp-prior convert --salvage` reads what lies before"])
    try:
        yield from _stored(file)
    except DataError:
        if is_whole:
            raise


def _stored(file: Path) -> Iterator[McapRecord]:
    """Read all records in order, including records in chunks. The index is not used, since a cut file has none."""
    from mcap.records import Chunk
    from mcap.stream_reader import StreamReader, breakup_chunk

    with reading(file), open_regular(file) as stream, decoding(file, "is damaged"):
        within = _Within(stream, os.fstat(stream.fileno()).st_size)
        for record in StreamReader(within, emit_chunks=True, record_size_limit=None).records:
            if isinstance(record, Chunk):
                yield from breakup_chunk(_unpacked(record, file), validate_crc=True)
            else:
                yield record


class _Within:
    """A file whose reads are bounded by its size, whatever length a damaged record declares."""

    def __init__(self, stream: BinaryIO, size: int):
        self._stream, self._size = stream, size

    def read(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        return self._stream.read(min(count, self._size))


def _unpacked(chunk: Chunk, file: Path) -> Chunk:
    """Decompress a chunk; of a damaged chunk never more bytes than it declares."""
    size = chunk.uncompressed_size
    _check_size(str(file), size, "chunk")
    if chunk.compression == "zstd":
        data = _of_zstd(chunk.data, size)
    elif chunk.compression == "lz4":
        from lz4.frame import LZ4FrameDecompressor

        data = LZ4FrameDecompressor().decompress(chunk.data, max_length=size)
    elif chunk.compression:
        raise DataError(str(file), [f"is compressed by {chunk.compression}; expected zstd, lz4 or nothing"])
    else:
        data = chunk.data
    if len(data) != size:
        raise DataError(str(file), [f"has a chunk of {len(data):,} bytes that declares {size:,}; copy it again"])
    return dataclasses.replace(chunk, compression="", data=data)


def _uncompressed(data: bytes, topic: str) -> bytes:
    """Decompress a message that was recorded in compression mode MESSAGE; CDR begins with a zero byte."""
    if not data.startswith(_ZSTD):
        return data
    import zstandard

    size = zstandard.frame_content_size(data)
    _check_size(topic, size, "message")
    return _of_zstd(data, size)


def _of_zstd(data: bytes, size: int) -> bytes:
    import zstandard

    return zstandard.ZstdDecompressor().stream_reader(data).read(size)


def _check_size(source: str, size: int, content: str) -> None:
    if not 0 <= size <= MOST_CHUNK_BYTES:
        raise DataError(source, [f"has a {content} of {size:,} bytes; expected at most {MOST_CHUNK_BYTES:,}"])
    check_memory(source, size)
