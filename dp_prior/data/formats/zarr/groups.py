"""The metadata of the arrays in a zarr group, read without opening the group, and their codecs."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from functools import partialmethod
from pathlib import Path
from typing import Any

from dp_prior.data.errors import DataError, MissingError
from dp_prior.data.files import check_count, decoding, reading
from dp_prior.data.found_files import raise_error
from dp_prior.files.regular_files import SMALL, read_small


def read_metadata(path: Path) -> dict[str, dict[str, Any]]:
    """Read the metadata of every array, by the array's name from the top."""
    with decoding(path, "is not a readable zarr group"), reading(path):
        if not path.exists():
            raise MissingError(str(path.absolute()), ["no such file or directory; check data.episodes.path"])
        documents = _documents_in_zip(path) if path.is_file() else _documents_in(path)
    check_count(path, len(documents), "arrays and groups")
    if not {".zgroup", "zarr.json"} & set(documents):
        raise DataError(str(path), [f"is not a zarr group: it has no .zgroup or zarr.json{_folder_hint(documents)}"])
    return {name.rpartition("/")[0]: document for name, document in documents.items() if _is_array(document)}


def check_codecs(where: str, metadata: Mapping[str, Any]) -> None:
    """Raises DataError for a zarr v2 array with an unregistered codec, such as JPEG XL in the archives of UMI; makes
    numcodecs decode texts within bounds."""
    from numcodecs import registry, vlen

    for texts in (vlen.VLenUTF8, vlen.VLenBytes, vlen.VLenArray):
        if texts.decode.__module__ == vlen.__name__:
            texts.decode = partialmethod(_decode_bounded, texts.decode)
    coding = [metadata.get("compressor"), *(metadata.get("filters") or ())]
    names = [str(codec["id"]) for codec in coding if isinstance(codec, dict) and "id" in codec]
    for name in sorted({*names} - {*registry.codec_registry, *registry.entries}):
        remedy = "install the package that has it, and --import a module that registers it"
        if name.startswith("imagecodecs_"):
            code = "import imagecodecs.numcodecs; imagecodecs.numcodecs.register_codecs()"
            remedy = f"pip install imagecodecs, and --import MODULE, your module with the line `{code}`"
        raise DataError(where, [f"is stored with the codec {name!r}, which nothing has registered: {remedy}"])


def _decode_bounded(codec: Any, decode: Callable[..., Any], buf: Any, out: Any = None) -> Any:
    """Decode a chunk of texts, unless the chunk declares more than its bytes hold; numcodecs takes memory for all
    declared texts before the first is read, 34 GB for 4 bytes."""
    chunk = memoryview(buf).cast("B")
    if 4 + 4 * int.from_bytes(chunk[:4], "little") > len(chunk):  # 4 bytes for the number, and for each text's length
        raise ValueError(f"a chunk of {len(chunk):,} bytes declares more texts than its bytes can hold")
    return decode(codec, buf, out)


def _documents_in_zip(path: Path) -> dict[str, Any]:
    """Read the metadata of groups and arrays in a zip file."""
    with zipfile.ZipFile(path) as archive:
        if any("\\" in name for name in archive.namelist()):
            remedy = "write the zip anew, by python -m zipfile -c NEW.zip FOLDER/*"
            raise DataError(str(path), [f"holds names with the backslashes of Windows; {remedy}"])
        members = sorted({info.filename: info for info in archive.infolist() if _is_metadata(info.filename)}.items())
        check_count(path, len(members), "arrays and groups")
        for name, info in members:
            if info.file_size > SMALL:
                raise DataError(f"{path}/{name}", [f"declares {info.file_size} bytes; expected at most {SMALL}"])
        return {name: json.loads(archive.read(name)) for name, _ in members}


def _documents_in(path: Path) -> dict[str, Any]:
    """Read the metadata of groups and arrays in a directory, without listing the many folders of chunks."""
    documents: dict[str, Any] = {}
    for folder, inside, names in os.walk(path, followlinks=True, onerror=raise_error):
        inside.sort()
        here = {name: _read_json(Path(folder, name)) for name in sorted(filter(_is_metadata, names))}
        documents |= {Path(folder, name).relative_to(path).as_posix(): document for name, document in here.items()}
        if any(map(_is_array, here.values())):
            inside.clear()
    return documents


def _read_json(path: Path) -> Any:
    with reading(path):
        return json.loads(read_small(path))


def _is_metadata(name: str) -> bool:
    return name.rpartition("/")[2] in (".zgroup", ".zarray", "zarr.json")


def _is_array(document: Any) -> bool:
    shape = document.get("shape") if isinstance(document, dict) else None
    return isinstance(shape, list) and all(type(length) is int and length >= 0 for length in shape)


def _folder_hint(documents: dict[str, Any]) -> str:
    """Advice for a path whose group lies in a folder further down."""
    groups = [name.rpartition("/")[0] for name in documents if name.endswith(("/.zgroup", "/zarr.json"))]
    if not groups:
        return ""
    return f". The folder {min(groups, key=len)!r} inside is one: give that as path (unpack it first if this is a zip)"
