"""Images in a folder: labels from the names of folders or files, or from a CSV beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from dp_prior.config import Change, Config
from dp_prior.data.errors import DataError, MissingError
from dp_prior.data.files import decoding, reading
from dp_prior.data.found_files import find_files
from dp_prior.data.frames import FramePart
from dp_prior.data.pictures.decode import PICTURE_ENDINGS, decode_image
from dp_prior.data.pictures.image_source import ImageSource, numbered
from dp_prior.files.regular_files import expanded, open_regular
from dp_prior.tensors.pixels.picture_files import encoded_picture, import_pillow


class FolderImagesConfig(Config):
    """Images in a folder and in those inside, in the order of their names; hidden ones are ignored."""

    type: Literal["folder"] = "folder"

    path: Annotated[Path, Change("harmless")]
    """The folder."""

    labels_from: Literal["folder", "prefix", "csv"] = "folder"
    """Source of the labels. folder: the folder inside `path` that holds the image. prefix: the file's name up to the
    first underscore, as in improved-diffusion. csv: see `csv`."""

    csv: Annotated[Path | None, Change("harmless")] = None
    """A CSV with the columns `file_name`, relative to the folder, and `label`; null for `metadata.csv` in the
    folder."""

    def faults(self) -> Iterator[str]:
        if self.csv is not None and self.labels_from != "csv":
            yield f"csv is given, but labels_from is {self.labels_from!r}; set it to 'csv', or remove csv"

    def places(self) -> dict[str, tuple[str, ...]]:
        """Endings of the files that are read, by path; see `Integrity`."""
        places: dict[str, tuple[str, ...]] = {str(self.path): PICTURE_ENDINGS}
        if self.labels_from == "csv":
            places[str(self.table)] = (".csv",)
        return places

    @property
    def table(self) -> Path:
        """The CSV."""
        return self.path / "metadata.csv" if self.csv is None else self.csv

    def create(self, *, labelled: bool, uniform: bool) -> FolderImages:
        """List the images and read their labels; see `ImagesConfig.create`."""
        return FolderImages(self, labelled, uniform)


class FolderImages(ImageSource):
    """See `FolderImagesConfig`. Any thread reads any chunk."""

    def __init__(self, config: FolderImagesConfig, labelled: bool, uniform: bool):
        import_pillow("image")
        root = expanded(config.path)
        if not root.is_dir():
            raise MissingError(str(root.absolute()), ["there is no such folder of images; check data.source.path"])
        pictures = find_files(str(root), PICTURE_ENDINGS)
        self._paths = pictures.paths
        names = [path[len(pictures.place) + 1 :] for path in pictures.paths]
        labels = None
        if labelled:
            read_labels = {"folder": _by_folder, "prefix": _by_prefix, "csv": _by_table}[config.labels_from]
            labels = numbered(read_labels(root, names, expanded(config.table)))
        super().__init__(Path(pictures.place), [len(names)], [pictures.place], labels)
        self.parts = [FramePart(pictures.place, (chunk,)) for chunk in range(len(self.ends))]
        self.size = self._decoded(0, None).shape[:2]
        self._expected = self.size if uniform else None

    def read(self, part: FramePart, skip: int) -> Iterator[np.ndarray]:
        first, stop = part.rows(self.ends)
        for number in range(first + skip, stop):
            yield self._decoded(number, self._expected)[None]

    def files(self) -> list[Path]:
        return [Path(path) for path in self._paths]

    def describe(self) -> dict[str, Any]:
        return {"format": "image files"}

    def locate(self, number: int) -> str:
        return str(Path(self._paths[number]).relative_to(self.root))

    def _decoded(self, number: int, size: tuple[int, int] | None) -> np.ndarray:
        path = self._paths[number]
        with reading(path):
            data = encoded_picture(path)
        return decode_image(data, path, size)


def _by_folder(root: Path, names: list[str], table: Path) -> list[str]:
    """Label each image by the first folder of its name; refuse an empty folder, whose images went missing."""
    loose = [name for name in names if "/" not in name]
    if loose:
        advice = "put each class into a folder of its own, or set labels_from"
        raise DataError(str(root), [f"{name} lies in no folder that names its class; {advice}" for name in loose])
    labels = [name.partition("/")[0] for name in names]
    folders = {entry.name for entry in root.iterdir() if entry.is_dir() and entry.name[0] != "."}
    empty = sorted(folders - set(labels))
    if empty:
        raise DataError(str(root), [f"folder {name!r} holds no images; fill it, or remove it" for name in empty])
    return labels


def _by_prefix(root: Path, names: list[str], table: Path) -> list[str]:
    """Label each image by its file's name up to the first underscore."""
    files = [name.rpartition("/")[2] for name in names]
    unlabelled = [name for name, file in zip(names, files, strict=True) if file.find("_") < 1]
    if unlabelled:
        problems = [f"{name} has no label before an underscore, as in cat_1.png" for name in unlabelled]
        raise DataError(str(root), problems)
    return [file.partition("_")[0] for file in files]


def _by_table(root: Path, names: list[str], path: Path) -> list[str]:
    """Read the label of each image from the CSV at `path`."""
    with reading(path), open_regular(path) as file:
        data = file.read()
    labels: dict[str, str] = {}
    problems = []
    with decoding(path):
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig")))
        missing = {"file_name", "label"} - set(rows.fieldnames or ())
        if missing:
            raise DataError(str(path), [f"has columns {rows.fieldnames}; expected 'file_name' and 'label'"])
        for row in rows:
            name, label = row["file_name"], row["label"]
            if not label:
                problems.append(f"{name} has no label")
            elif name in labels:
                problems.append(f"{name} is listed twice")
            labels[name] = label
    images = set(names)
    problems += [f"{name} is listed, but there is no such image" for name in labels if name not in images]
    problems += [f"{name} is not listed, so it has no label" for name in names if name not in labels]
    if problems:
        raise DataError(str(path), problems)
    return [labels[name] for name in names]
