"""How a frame cache stores frames: raw pixels, their brightness, JPEG, or depth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dp_prior.config import Config
from dp_prior.data.frames.jpeg_frames import JPEG, OFFSET_BYTES, OFFSETS, JpegReader, JpegWriter, encode_jpeg
from dp_prior.data.frames.picture_frames import decode_picture
from dp_prior.data.frames.pixel_file import PixelFile
from dp_prior.data.frames.plain_frames import PlainReader, PlainWriter
from dp_prior.tensors.pixels.picture_files import import_pillow

_JPEG_MARGIN = 1.2  # of the size that a sample suggests: episodes differ


class FrameWriter(Protocol):
    """Writes frames into the files of a cache that is being built; several threads may call `write` at a time."""

    def write(self, row: int, blocks: Iterable[Tensor]) -> tuple[str, int]:
        """Store the frames of an episode, which come as blocks of (k, h, w, channels).

        Args:
            row: of the first frame.

        Returns:
            SHA-256 of the stored bytes, and the end of these in a file whose frames are appended; 0 in other files.
        """
        ...


class FrameReader(Protocol):
    """Reads frames from the files of a complete cache."""

    def read(self, frames: np.ndarray, ids: np.ndarray) -> None:
        """Fill (n, h, w, channels) with the frames at ids, (n,) int64.

        Raises:
            DataError: the file was cut short, or a frame is damaged.
        """
        ...

    def stored(self, first: int, stop: int) -> Iterator[bytes | memoryview]:
        """The stored bytes of rows first to stop - 1 in pieces, of which each is valid until the next one.

        Raises:
            DataError: rows lie beyond the file.
        """
        ...


class Encoding(Config):
    """An encoding that stores every frame as its pixels; other encodings override this."""

    type: str

    quality: int = Field(default=95, ge=1, le=95)
    """JPEG quality. Measured on three recorded sets at 96 x 96, a pixel changes by 0.3 to 1.1 of 255 on average and 20
    at most at 95, by 0.5 to 1.4 and 32 at 92, which saves a fifth of the space. Other encodings have the field
    too, since the names of caches and the fingerprints of data contain every field."""

    files: ClassVar[tuple[str, ...]] = ("frames.u8",)
    """Names of the files that hold the frames, the pixels first."""

    channels: ClassVar[int] = 3
    """Channels of a stored frame."""

    dtype: ClassVar[torch.dtype] = torch.uint8
    """Type of the values of a stored frame."""

    smaller: ClassVar[str] = "smaller frames, or JPEG"
    """What takes less space, for messages."""

    def check_packages(self) -> None:
        """Raises ImportError, with the remedy, if a package is missing."""

    def pixels(self, frames: Tensor) -> Tensor:
        """(N, h, w, 3) uint8 RGB, or depth -> (N, h, w, channels), as they are stored."""
        return frames

    def encode(self, frame: Tensor) -> bytes:
        """The stored bytes of one frame, (h, w, channels)."""
        return frame.numpy().tobytes()

    def decoded(self, frames: Tensor, where: str) -> Tensor:
        """(N, h, w, channels) as the cache gives them, after encoding and decoding; `where` is for messages."""
        return frames

    def frame_bytes(self, size: tuple[int, int]) -> int:
        """Bytes of the pixels of one frame of this height and width."""
        return size[0] * size[1] * self.channels * self.dtype.itemsize

    def file_bytes(self, n_frames: int, size: tuple[int, int]) -> int | None:
        """Bytes of the file of frames; None where they depend on the pixels."""
        return n_frames * self.frame_bytes(size)

    def expected_bytes(self, n_frames: int, size: tuple[int, int], mean: float) -> int:
        """Bytes of all files. Args: mean: stored bytes of a frame, of a sample."""
        return n_frames * self.frame_bytes(size)

    def writer(self, files: Sequence[int], n_frames: int, size: tuple[int, int], end: int) -> FrameWriter:
        """Give the files their sizes and return what writes them.

        Args:
            files: descriptors of `files`.
            end: see `JpegWriter`.
        """
        return PlainWriter(files[0], n_frames, self.frame_bytes(size))

    def reader(self, file: PixelFile, size: tuple[int, int]) -> FrameReader:
        """Open a reader of frames of this height and width. Args: file: the first of `files`."""
        return PlainReader(file, self.frame_bytes(size))


class Raw(Encoding):
    """Every pixel as three bytes."""

    type: Literal["raw"] = "raw"


class Grey(Encoding):
    """The brightness of every pixel in one byte."""

    type: Literal["grey"] = "grey"

    channels: ClassVar[int] = 1

    def pixels(self, frames: Tensor) -> Tensor:
        return greyscale(frames)


class Depth(Encoding):
    """The metres of every pixel as float32."""

    type: Literal["depth"] = "depth"

    files: ClassVar[tuple[str, ...]] = ("frames.f4",)
    channels: ClassVar[int] = 1
    dtype: ClassVar[torch.dtype] = torch.float32
    smaller: ClassVar[str] = "smaller frames"


class Jpeg(Encoding):
    """JPEG, which takes a sixth to a tenth of the space of raw pixels at 96 x 96, and changes pixels."""

    type: Literal["jpeg"] = "jpeg"

    files: ClassVar[tuple[str, ...]] = (JPEG, OFFSETS)
    smaller: ClassVar[str] = "smaller frames"

    def check_packages(self) -> None:
        import_pillow()

    def encode(self, frame: Tensor) -> bytes:
        return encode_jpeg(frame, self.quality)

    def decoded(self, frames: Tensor, where: str) -> Tensor:
        pictures = [decode_picture(self.encode(frame), where, None) for frame in frames]
        return torch.from_numpy(np.stack(pictures))

    def file_bytes(self, n_frames: int, size: tuple[int, int]) -> int | None:
        return None

    def expected_bytes(self, n_frames: int, size: tuple[int, int], mean: float) -> int:
        return n_frames * OFFSET_BYTES + int(mean * n_frames * _JPEG_MARGIN)

    def writer(self, files: Sequence[int], n_frames: int, size: tuple[int, int], end: int) -> JpegWriter:
        return JpegWriter(files, n_frames, end, self.quality)

    def reader(self, file: PixelFile, size: tuple[int, int]) -> JpegReader:
        return JpegReader(file, file.path.with_name(OFFSETS))


EncodingConfig = Annotated[Raw | Grey | Jpeg | Depth, Field(discriminator="type")]

RAW = Raw()


def greyscale(x: Tensor) -> Tensor:
    """(..., 3) uint8 RGB -> (..., 1) uint8, by the weights of ITU-R 601 as in Pillow."""
    weights = torch.tensor([19595, 38470, 7471], dtype=torch.int32)
    return (
        ((x.int() * weights).sum(-1, keepdim=True, dtype=torch.int32) + 32768)
        .div_(65536, rounding_mode="floor")
        .to(torch.uint8)
    )
