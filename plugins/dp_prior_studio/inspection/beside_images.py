"""Tables, arrays, texts and other parts beside the pictures of a set of images, which does not read these files."""

from __future__ import annotations

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from dp_prior.data.errors import first_few
from dp_prior.data.files import reading
from dp_prior.data.found_files import by_number
from dp_prior.data.pictures.decode import PICTURE_ENDINGS
from dp_prior.data.pictures.images import ImagesConfig
from dp_prior.files.regular_files import expanded
from dp_prior.tensors.pixels.picture_files import ENDINGS
from dp_prior_studio.inspection.finding import Finding
from dp_prior_studio.inspection.image_survey import parts_at

_ENDINGS = {
    *(".csv", ".json", ".jsonl", ".npy", ".npz", ".parquet", ".hdf5", ".h5"),
    *(".pkl", ".pickle", ".mat", ".pt", ".mcap", ".bag", ".db3"),
}

_OTHER_PICTURES = {
    *(".avif", ".dng", ".exr", ".heic", ".heif", ".hdr", ".j2k", ".jp2", ".jxl", ".psd", ".svg", ".tga", *ENDINGS),
}
"""Endings of pictures, of which those that are read are no others."""

_TEXTS = {"text", "caption", "captions", "prompt", "description"}

_LONGEST_LINE = 4096


def unread_beside(record: ImagesConfig) -> Iterator[Finding]:
    """A finding for each kind of unread file beside the pictures: the content of the first file, and the remedy."""
    for source in record.sources().values():
        places = {expanded(place): endings for place, endings in source.places().items()}
        for place, endings in places.items():
            yield from _other_parts(place, record)
            yield from _kinds(place, (file for file in place.rglob("*") if file not in places), endings)
            if endings:
                yield from _other_pictures(place, endings)


def _other_parts(place: Path, record: ImagesConfig) -> Iterator[Finding]:
    """A finding for each unread part of the set beside the folder `train`."""
    read = {expanded(place) for place in record.places()}
    parts = parts_at(place.parent) if place.name.lower() == "train" else {}
    for part in parts.values():
        if part not in read:
            remedy = "data.split takes parts from train; to test on this folder, name it in data.test_source"
            yield Finding("warning", f"{part.name}/ beside {place.name}/ is not read; {remedy}", code="part-not-read")
    if parts:
        yield from _kinds(place.parent, (file for file in place.parent.iterdir() if file not in read), ())


def _other_pictures(place: Path, endings: tuple[str, ...]) -> Iterator[Finding]:
    """A finding about pictures in a folder whose endings are not read."""
    others = Counter(
        file.suffix.lower()
        for file in place.rglob("*")
        if file.suffix not in endings and file.suffix.lower() in _OTHER_PICTURES and file.is_file()
    )
    if others:
        listed = first_few(sorted(others), 8)
        text = f"{sum(others.values()):,} pictures with other endings are not read: {listed}"
        yield Finding(
            "warning", f"{text}; save them as PNG or JPEG, with an ending in lower case", code="pictures-not-read"
        )


def _kinds(place: Path, files: Iterable[Path], endings: tuple[str, ...]) -> Iterator[Finding]:
    """A finding for each kind among files below a place, other than those that are read by their endings."""
    kinds = defaultdict[str, list[Path]](list)
    for file in files:
        if file.suffix not in endings and _may_belong(file.relative_to(place), file):
            kinds[file.suffix].append(file)
    for _, files_of_kind in sorted(kinds.items()):
        yield _finding(place, sorted(files_of_kind, key=lambda file: by_number(str(file))))


def _finding(place: Path, files: list[Path]) -> Finding:
    columns = _columns(files[0])
    holds = f" with {first_few(columns, 6)}" * bool(columns)
    text = f"*{files[0].suffix} beside the images: {len(files):,} not read, first {files[0].relative_to(place)}{holds}"
    if files[0].suffix == ".txt" or _TEXTS & {column.lower() for column in columns}:
        return Finding(
            "warning",
            f"{text}; images take labels, not texts. Pair embeddings of both: docs/prior.md",
            code="texts-not-read",
        )
    remedy = "if they were recorded with the images, these are demonstrations: docs/own_data.md#other-files"
    return Finding("warning", f"{text}; {remedy}", code="files-not-read")


def _may_belong(name: Path, file: Path) -> bool:
    """Whether a file may describe the pictures: a table or arrays, or a text with the name of a picture."""
    if any(part.startswith(".") for part in name.parts):
        return False
    is_caption = file.suffix == ".txt" and any(file.with_suffix(ending).exists() for ending in PICTURE_ENDINGS)
    return (is_caption or file.suffix in _ENDINGS) and file.is_file()


def _columns(file: Path) -> list[str]:
    """The names of the columns of a table; empty for other files."""
    if file.suffix not in (".csv", ".jsonl"):
        return []
    with reading(file), file.open(encoding="utf-8", errors="replace") as lines:
        line = lines.readline(_LONGEST_LINE).replace("\0", "")
    if file.suffix == ".csv":
        return next(csv.reader([line]), [])
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        return []
    return list(row) if isinstance(row, dict) else []
