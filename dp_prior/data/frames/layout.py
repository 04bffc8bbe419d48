"""The files of a frame cache.

`frames.u8` holds the concatenated pixels of all rows, RGB or grey, `frames.f4` those of depth. With JPEG, `frames.jpeg`
holds the encoded frames, contiguous and in order within an episode, and `offsets.u64` holds the begin and end of each
row. `episodes.jsonl` lists the episodes that are durable while the cache is built; `cache.json`, written last, makes
the cache complete.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, ValidationError
from torch import Tensor

from dp_prior.config import Config
from dp_prior.data.errors import DataError
from dp_prior.data.files import raise_refusal
from dp_prior.files.json_text import unseal
from dp_prior.pixels.picture_files import import_pillow
from dp_prior.pixels.resize import Fit

CACHE_FILE, JOURNAL = "cache.json", "episodes.jsonl"
RAW, DEPTH, JPEG, OFFSETS = "frames.u8", "frames.f4", "frames.jpeg", "offsets.u64"
OFFSET_BYTES = 16  # two little-endian uint64 per row


class Encoding(Config):
    """How frames are stored."""

    type: Literal["raw", "grey", "jpeg", "depth"]
    """Raw keeps every pixel, grey its brightness in one byte, depth its metres as float32. JPEG takes a sixth to a
    tenth of the space of raw at 96 x 96, and changes pixels."""

    quality: int = Field(default=95, ge=1, le=95)
    """JPEG quality. Measured on three recorded sets at 96 x 96, a pixel changes by 0.3 to 1.1 of 255 on average and 20
    at most at 95, by 0.5 to 1.4 and 32 at 92, which saves a fifth of the space."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files that hold the frames, the pixels first."""
        return (JPEG, OFFSETS) if self.type == "jpeg" else (DEPTH if self.type == "depth" else RAW,)

    @property
    def channels(self) -> int:
        """Channels of a stored frame."""
        return 1 if self.type in ("grey", "depth") else 3

    @property
    def dtype(self) -> torch.dtype:
        """Type of the values of a stored frame."""
        return torch.float32 if self.type == "depth" else torch.uint8

    def pixels(self, frames: Tensor) -> Tensor:
        """(N, h, w, 3) uint8 RGB, or depth -> (N, h, w, channels), as they are stored."""
        return greyscale(frames) if self.type == "grey" else frames

    def encode(self, frame: Tensor) -> bytes:
        """The stored bytes of one frame, (h, w, channels)."""
        if self.type != "jpeg":
            return frame.numpy().tobytes()
        stream = io.BytesIO()
        # 4:4:4: the usual 4:2:0 saves a fifth, but changes single pixels by 66 instead of 20 (same sets, quality 95).
        picture = import_pillow().fromarray(frame.numpy())
        picture.save(stream, "JPEG", quality=self.quality, subsampling=0)
        return stream.getvalue()


def greyscale(x: Tensor) -> Tensor:
    """(..., 3) uint8 RGB -> (..., 1) uint8, by the weights of ITU-R 601 as in Pillow."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32)
    return (
        ((x.int() * weights).sum(-1, keepdim=True, dtype=torch.int32) + 32768)
        .div_(65536, rounding_mode="floor")
        .to(torch.uint8)
    )


class CacheIndex(Config):
    """The index of a complete cache."""

    format: Literal[1] = 1
    """Version of the files."""

    source: str
    """The data set that the frames came from."""

    fit: Fit

    encoding: Encoding

    ends: list[int]
    """Exclusive end row of each episode."""

    sizes: dict[str, int]
    """Bytes of each file."""

    digests: list[str]
    """SHA-256 of the stored bytes of each episode, its frames concatenated."""


def read_index(directory: Path) -> CacheIndex:
    """The index of a complete cache, whose files have the sizes that the index states.

    Raises:
        DataError: the cache is not complete, or a file is missing or has another size.
        UnreadableError: the system refused to read a file; the cache may be complete.
    """
    try:
        document = unseal((directory / CACHE_FILE).read_bytes())
        index = CacheIndex.model_validate_json(json.dumps(document), strict=True)
        found = {name: (directory / name).stat().st_size for name in index.encoding.files}
    except OSError as error:
        raise_refusal(directory, error)
        raise DataError(str(directory), [f"{error.filename} cannot be read: {error.strerror}"]) from None
    except (ValueError, ValidationError) as error:
        raise DataError(str(directory), [f"{CACHE_FILE} is damaged: {str(error).splitlines()[0]}"]) from None
    wrong = [
        f"{name} has {size} bytes; expected {index.sizes.get(name)}"
        for name, size in found.items()
        if size != index.sizes.get(name)
    ]
    if wrong:
        raise DataError(str(directory), wrong)
    return index


@dataclass(frozen=True)
class StoredEpisode:
    """An episode in the files of a cache that is being built."""

    number: int
    sha256: str
    stop: int
    """End of its bytes in the file of JPEGs; 0 in raw frames."""

    def line(self) -> bytes:
        """Its line in the journal."""
        return (json.dumps(asdict(self)) + "\n").encode()


def read_journal(directory: Path, pixels: str, frame_bytes: int | None) -> dict[int, StoredEpisode]:
    """The episodes that a build has made durable, by number, in the order in which it did.

    Args:
        pixels: name of the file of frames. If it is not there, nothing is.
        frame_bytes: its size; None for JPEG.

    Raises:
        UnreadableError: the system refused to read the journal.
    """
    found: dict[int, StoredEpisode] = {}
    try:
        text = (directory / JOURNAL).read_bytes()
        size = (directory / pixels).stat().st_size
    except OSError as error:
        raise_refusal(directory, error)
        return found
    for line in text.splitlines(keepends=True):
        try:
            episode = StoredEpisode(**json.loads(line))
            is_whole = episode.line() == line
        except (ValueError, TypeError):
            break
        if not is_whole or (size < episode.stop if frame_bytes is None else size != frame_bytes):
            break  # a line that a crash tore, or frames that were changed from outside
        found[episode.number] = episode
    return found
