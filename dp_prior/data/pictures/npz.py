"""Images in an .npz file: an array (N, H, W, channels) uint8 and an array of labels, as published sets have them."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dp_prior.config import Change, Config
from dp_prior.data.errors import DataError, MissingError, nearest_name
from dp_prior.data.files import check_memory, decoding, load_npz, npy_header, reading
from dp_prior.data.formats.npz import read_header
from dp_prior.data.frames import FramePart, frames_per_block
from dp_prior.data.pictures.decode import as_rgb
from dp_prior.data.pictures.image_source import ImageSource, numbered
from dp_prior.files.regular_files import check_regular, expanded

IMAGES, LABELS = ("images", "arr_0"), ("labels", "arr_1")


class NpzImagesConfig(Config):
    """Images in an .npz file."""

    type: Literal["npz"] = "npz"

    path: Annotated[Path, Change("harmless")]
    """The file."""

    images: str | None = None
    """Array of the images, uint8 of (N, H, W) or (N, H, W, 1, 3 or 4); null for `images` or else `arr_0`."""

    labels: str | None = None
    """Array of the labels, (N,) whole numbers or texts; null for `labels` or else `arr_1`."""

    def places(self) -> dict[str, tuple[str, ...]]:
        """Endings of the files that are read, by path; see `Integrity`."""
        return {str(self.path): (".npz",)}

    def create(self, *, labelled: bool, uniform: bool) -> NpzImages:
        """Open the file and read its headers and labels; see `ImagesConfig.create`."""
        return NpzImages(self, labelled)


class NpzImages(ImageSource):
    """See `NpzImagesConfig`. One thread reads all: a member of a zip file is decompressed from its beginning."""

    def __init__(self, config: NpzImagesConfig, labelled: bool):
        path = expanded(config.path)
        if not path.exists():
            raise MissingError(str(path.absolute()), ["there is no such file; check data.source.path"])
        with reading(path):
            check_regular(path, path.stat().st_mode)
        with decoding(path, "is no .npz file"), zipfile.ZipFile(path) as archive:
            arrays = {name.removesuffix(".npy") for name in archive.namelist()}
        self._key = _chosen(path, config.images, IMAGES, arrays)
        self._where = f"{path}[{self._key}]"
        with decoding(self._where), zipfile.ZipFile(path) as archive, archive.open(f"{self._key}.npy") as stream:
            self._shape, is_fortran, dtype = npy_header(stream)
            read_header(archive, f"{self._key}.npy")  # checks the sizes
        if dtype != np.uint8 or len(self._shape) not in (3, 4) or self._shape[3:] not in ((), (1,), (3,), (4,)):
            content = f"holds {dtype.name} of shape {self._shape}"
            raise DataError(self._where, [f"{content}; expected uint8 of (N, H, W) or (N, H, W, 1, 3 or 4)"])
        if is_fortran or 0 in self._shape[1:]:
            problem = "is in Fortran order; save np.ascontiguousarray of it" if is_fortran else "has images of size 0"
            raise DataError(self._where, [problem])
        self.size = self._shape[1:3]
        labels = None
        if labelled:
            labels = _labels(path, _chosen(path, config.labels, LABELS, arrays), self._shape[0])
        super().__init__(path, [self._shape[0]], [self._where], labels)

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        image_bytes = int(np.prod(self._shape[1:]))
        step = frames_per_block(image_bytes)
        with (
            decoding(self._where, "images cannot be read"),
            zipfile.ZipFile(self.root) as archive,
            archive.open(f"{self._key}.npy") as stream,
        ):
            npy_header(stream)
            stream.seek(skip * image_bytes, 1)
            for row in range(skip, len(self), step):
                count = min(step, len(self) - row)
                block = np.frombuffer(stream.read(count * image_bytes), np.uint8).reshape(count, *self._shape[1:])
                yield as_rgb(block if block.ndim == 4 else block[..., None])

    def files(self) -> list[Path]:
        return [self.root]

    def describe(self) -> dict[str, Any]:
        return {"format": "npz", "key": self._key}


def _chosen(path: Path, name: str | None, usual: tuple[str, ...], arrays: set[str]) -> str:
    """Choose the array `name`, or the first of the `usual` names where `name` is None.

    Raises:
        DataError: the file has no such array.
    """
    candidates = usual if name is None else (name,)
    for candidate in candidates:
        if candidate in arrays:
            return candidate
    expected = " or ".join(map(repr, candidates))
    raise DataError(str(path), [f"has no array {expected}. {nearest_name(candidates[0], arrays)}"])


def _labels(path: Path, key: str, count: int) -> tuple[np.ndarray, list[str]]:
    """Read the labels: (count,) int64 number of the class of each image, and the classes."""
    where = f"{path}[{key}]"
    with decoding(where), zipfile.ZipFile(path) as archive:
        shape, dtype = read_header(archive, f"{key}.npy")
        if dtype.kind not in "iuU" or not shape or shape[1:] not in ((), (1,)):
            raise DataError(where, [f"holds {dtype} of shape {shape}; expected (N,) whole numbers or texts"])
        if shape[0] != count:
            raise DataError(where, [f"holds {shape[0]} labels for {count} images; expected one each"])
    check_memory(where, count * (dtype.itemsize + 8) * 2)
    with decoding(where):
        labels, inverse = np.unique(load_npz(path, [key])[key].reshape(-1), return_inverse=True)
    numbers, classes = numbered([str(label) for label in labels.tolist()])
    return numbers[inverse], classes
