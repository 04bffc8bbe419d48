"""Changes files to well-formed ones that say absurd things: sizes, counts, attributes, nesting, repeats.

Flipped bytes never find these: a checksum, a header or the syntax refuses the file before its content is believed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [0, 1, -1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32, 10**9, 10**12, 2**63 - 1, 2**63, 2**64, 10**300]
WORDS = [
    "",
    "x",
    "../x",
    "/etc/passwd",
    "|O",
    "<f8",
    "<U99999999",
    ">i1",
    "|V2000000000",
    "object",
    "string",
    "\x1b[2J",
]
WORDS += ["a" * 100_000, "\ud800", "\0", "nan", "vlen-utf8", "blosc", "zstd", "gzip", "bz2", "pickle", "json2", "delta"]


class Unchanged(Exception):
    """A drawn change has no place in a file."""


def absurd(draws: np.random.Generator) -> Any:
    """A value of JSON that no honest file holds in most places."""
    kind = draws.integers(7)
    if kind == 0:
        return [None, True, False, [], {}, 1.5, -0.0, 1e308][draws.integers(8)]
    if kind == 1:
        return str(draws.choice(WORDS)) if draws.integers(4) else WORDS[draws.integers(len(WORDS))]
    if kind == 2:
        return [SIZES[draws.integers(len(SIZES))] for _ in range(draws.integers(1, 5))]
    if kind == 3:
        nested: Any = 1
        for _ in range(int(draws.choice([3, 40, 900]))):
            nested = [nested] if draws.integers(2) else {"a": nested}
        return nested
    if kind == 4:
        return [1] * int(draws.choice([33, 1000, 50_000]))
    return SIZES[draws.integers(len(SIZES))]


def places_in(document: Any) -> list[tuple[Any, Any]]:
    """Every container with every key of a document, the outer ones first."""
    places, containers = [], [document]
    while containers:
        container = containers.pop(0)
        keys = list(container) if isinstance(container, dict) else list(range(len(container)))
        places += [(container, key) for key in keys[:1000]]
        containers += [container[key] for key in keys[:1000] if isinstance(container[key], (dict, list))]
    return places


def change_document(document: Any, draws: np.random.Generator) -> str:
    """Change one or two values of a document in place; says which."""
    changes = []
    for _ in range(draws.integers(1, 3)):
        places = places_in(document)
        if not places:
            raise Unchanged
        container, key = places[draws.integers(len(places))]
        way = draws.integers(8)
        if way == 0:
            del container[key]
            changes.append(f"{key!r} left out")
            continue
        if way == 1 and isinstance(container, dict):
            container[f"{key}{draws.integers(9)}"] = container[key]
        if way == 2 and isinstance(container[key], list):
            container[key] = container[key] * int(draws.choice([2, 40, 5000]))
        else:
            container[key] = absurd(draws)
        changes.append(f"{key!r} = {str(container[key])[:60]}")
    return ", ".join(changes)


def change_json(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change one document in JSON, or a line of one in JSON lines."""
    names = (".json", ".jsonl", ".zarray", ".zattrs", ".zgroup")
    files = [file for file in sorted(place.rglob("*")) if file.is_file() and file.name.endswith(names)]
    if not files:
        raise Unchanged
    file = files[draws.integers(len(files))]
    text = file.read_text()
    if file.suffix != ".jsonl":
        document = json.loads(text)
        change = change_document(document, draws)
        file.write_text(json.dumps(document))
        return file, change
    lines = text.splitlines()
    number = draws.integers(len(lines))
    document = json.loads(lines[number])
    change = change_document(document, draws)
    lines[number] = json.dumps(document)
    file.write_text("\n".join(lines) + "\n")
    return file, change


def change_zarr(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change metadata, or make the array of ends or of states texts whose chunk declares any number of them."""
    arrays = sorted(place.rglob(".zarray"))
    if not arrays or draws.integers(3):
        return change_json(place, draws)
    file = arrays[draws.integers(len(arrays))]
    document = json.loads(file.read_text())
    document |= {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "compressor": None, "fill_value": None}
    file.write_text(json.dumps(document))
    count = SIZES[draws.integers(len(SIZES))] % 2**32
    for chunk in file.parent.iterdir():
        if chunk.is_file() and chunk.name[0].isdigit():
            chunk.write_bytes(struct.pack("<I", count) + b"\1\0\0\0x" * int(draws.integers(0, 40)))
    return file, f"{count} texts"


def change_npz(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change the header of an array, its values, or the document of metadata."""
    file = sorted(place.rglob("*.npz"))[0]
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(members)[draws.integers(len(members))]
    way, change = draws.integers(5), ""
    if way == 0:
        members["meta.json"] = json.dumps(absurd(draws)).encode()
    elif way == 1:
        length = int(draws.integers(1, 9))
        members[name] = npy(np.array([SIZES[draws.integers(9)] for _ in range(length)]))
        change = f"{name} of {length}"
    elif way == 2:
        kinds = ["U5", "S3", "f2", "c16", "?", "M8[s]", "m8[D]", "V7", "f4,i2", ">f8", "f16"]
        kind = kinds[draws.integers(len(kinds))]
        members[name] = npy(np.zeros((20, 3), kind))
        change = f"{name} of {kind}"
    else:
        header = npy_document(members[name])
        change = change_document(header, draws)
        members[name] = with_header(members[name], header)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return file, change


def change_npy(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change the header of a file of NumPy."""
    file = sorted(place.rglob("*.npy"))[0]
    header = npy_document(file.read_bytes())
    change = change_document(header, draws)
    file.write_bytes(with_header(file.read_bytes(), header))
    return file, change


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def npy_document(data: bytes) -> dict[str, Any]:
    header = ast.literal_eval(data[10 : 10 + int.from_bytes(data[8:10], "little")].decode("latin1"))
    return {name: list(value) if isinstance(value, tuple) else value for name, value in header.items()}


def with_header(data: bytes, header: dict[str, Any]) -> bytes:
    shape = header.get("shape")
    header = header | ({"shape": tuple(shape)} if isinstance(shape, list) else {})
    text = repr(header).encode("latin1", "replace") + b"\n"
    version = b"\x01\x00" if len(text) < 2**16 else b"\x02\x00"
    length = len(text).to_bytes(2 if len(text) < 2**16 else 4, "little")
    return data[:6] + version + length + text + data[10 + int.from_bytes(data[8:10], "little") :]


def change_hdf5(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change attributes, shapes, types, links and nesting of an HDF5 file."""
    try:
        return _change_hdf5(place, draws)
    except (ValueError, TypeError, KeyError, RuntimeError, OSError, OverflowError):
        raise Unchanged from None  # HDF5 has no such thing


def _change_hdf5(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    import h5py

    (file,) = place.rglob("*.hdf5")
    with h5py.File(file, "a") as top:
        names: list[str] = []
        top.visit(names.append)
        name = names[draws.integers(len(names))]
        way = int(draws.integers(8))
        if way == 0:
            attribute = ["num_samples", "env_args", "dp_prior", "total"][draws.integers(4)]
            value = absurd(draws)
            values = [
                json.dumps(value)[:60_000],
                np.arange(9),
                b"\xff",
                h5py.Empty("f4"),
                np.zeros((2, 2), "f4,i2"),
                2**63,
            ]
            top[name].attrs[attribute] = values[draws.integers(len(values))]
        elif way == 1:
            shapes = [(), (0,), (9,), (9, 0), (1,) * 32, (2**40,), (9, 2**33), (10**6, 3)]
            shape = shapes[draws.integers(len(shapes))]
            kinds = ["f4", "u1", "S9", "f4,i2", "c8", "?", "f2", ">i8"]
            options = {"chunks": tuple(min(length, 4) for length in shape)} if shape and 0 not in shape else {}
            del top[name]
            top.create_dataset(name, shape, kinds[draws.integers(len(kinds))], **options)
        elif way == 2:
            texts = ["x" * int(draws.choice([0, 5, 2_000_000]))] * 9
            number = draws.integers(3)
            kind = [h5py.string_dtype(), h5py.vlen_dtype("u1"), h5py.ref_dtype][number]
            del top[name]
            top.create_dataset(name, (9,), kind, data=texts if number == 0 else None)
        elif way == 3:
            del top[name]
            top[name] = [h5py.SoftLink("/"), h5py.SoftLink(f"/{name}"), h5py.SoftLink(f"/{name}/x"),
                         h5py.SoftLink("/data"), np.dtype("f4,i2")][draws.integers(5)]  # fmt: skip
        elif way == 4:
            group = top[name].parent
            for _ in range(int(draws.choice([3, 30, 300]))):
                group = group.create_group("deep")
            group["state"] = np.ones((9, 3))
        elif way == 5:
            for number in range(int(draws.choice([5, 100]))):
                top[f"data/demo_{number + 5}"] = top["data/demo_0"]
        elif way == 6:
            top["mask/train"] = [np.array([b"demo_0", b"x" * 9]), np.arange(3), np.array(5.0)][draws.integers(3)]
        else:
            odd = ["demo_9" + "9" * 40, "demo_\u0663", "demo_-1", "..", "a/b", "x" * 9000, "\x1b[2J", "demo_00"]
            top.move(name, f"data/{odd[draws.integers(len(odd))]}")
    return file, f"{name}, way {way}"


def change_parquet(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Write a column anew with another type, encoding, nesting, or with one long value that all rows repeat; or change
    a document beside the tables."""
    import pyarrow as pa
    from pyarrow import parquet

    if draws.integers(2) and any(place.rglob("*.json*")):
        return change_json(place, draws)
    files = sorted(place.rglob("*.parquet"))
    file = files[draws.integers(len(files))]
    table = parquet.read_table(file)
    rows, number = len(table), int(draws.integers(table.num_columns))
    long = "x" * int(draws.choice([10, 100_000, 8_000_000]))
    nested: Any = 1.0
    for _ in range(int(draws.integers(1, 12))):
        nested = [nested]
    columns = [
        lambda: pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [long]),
        lambda: pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [long.encode()]),
        lambda: pa.array([long, *[long[: int(draws.integers(0, 9))]] * rows][:rows], pa.string()),
        lambda: pa.nulls(rows),
        lambda: pa.array([nested] * rows),
        lambda: pa.array([[]] * rows, pa.list_(pa.float32())),
        lambda: pa.array([{"bytes": long.encode(), "path": None}] * rows),
        lambda: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
        lambda: pa.array([2**63 - 1] * rows),
        lambda: pa.array([-1] * rows),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array([1] * rows, pa.timestamp("us")),
        lambda: pa.array([float("nan")] * rows),
        lambda: pa.array([b"abc"] * rows, pa.binary(3)),
        lambda: pa.array([1] * rows).cast(pa.decimal128(38, 9)),
        lambda: pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 4000, "f4")), 4000),
        lambda: table.column(number).slice(0, rows),
    ]  # fmt: skip
    way = int(draws.integers(len(columns)))
    try:
        column = columns[way]()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Unchanged from None
    name = table.column_names[number]
    table = table.set_column(number, name, column)
    if draws.integers(5) == 0:
        table = pa.concat_tables([table] * int(draws.choice([2, 30]))) if draws.integers(2) else table.slice(0, 0)
    codec = str(draws.choice(["zstd", "gzip", "snappy", "none", "brotli"]))
    options: dict[str, Any] = {"use_dictionary": bool(draws.integers(2)), "data_page_version": "2.0"}
    if way == 2 and draws.integers(2):
        options = {"use_dictionary": False, "column_encoding": {name: "DELTA_BYTE_ARRAY"}}
    try:
        parquet.write_table(table, file, compression=codec, store_schema=bool(draws.integers(2)), **options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise Unchanged from None
    return file, f"column {name!r}, way {way}, {len(long)} letters, {codec}, {len(table)} rows"


def change_embeddings(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    return (change_npy if draws.integers(2) else change_parquet)(place, draws)


def change_picture(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Declare another size in the header of a picture: with a right checksum in PNG."""
    files = sorted(place.iterdir())
    file = files[draws.integers(len(files))]
    data, width, height = bytearray(file.read_bytes()), *(SIZES[draws.integers(12)] % 2**32 for _ in range(2))
    if file.suffix == ".PNG":
        data[16:24] = struct.pack(">II", width, height)
        data[24:26] = bytes([int(draws.choice([1, 8, 16])), int(draws.choice([0, 2, 3, 4, 6]))])
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif file.suffix == ".GIF":
        data[6:10] = struct.pack("<HH", width % 2**16, height % 2**16)
    elif file.suffix == ".BMP":
        data[18:26] = struct.pack("<II", width, height)
    elif file.suffix == ".PPM":
        data[:] = f"P{draws.integers(1, 8)}\n{width} {height}\n{SIZES[draws.integers(12)]}\n".encode() + bytes(360)
    elif file.suffix == ".JPEG":
        place_of = data.find(b"\xff\xc0")
        data[place_of + 5 : place_of + 9] = struct.pack(">HH", height % 2**16, width % 2**16)
    elif file.suffix == ".TIFF":
        count_at = struct.unpack("<I", data[4:8])[0]
        (count,) = struct.unpack("<H", data[count_at : count_at + 2])
        entry = count_at + 2 + 12 * int(draws.integers(count))
        data[entry + 4 : entry + 12] = struct.pack("<II", *(SIZES[draws.integers(12)] % 2**32 for _ in range(2)))
    else:
        raise Unchanged
    file.write_bytes(data)
    return file, f"{width} x {height}"


def change_safetensors(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change the header of a file of tensors."""
    file = place / "a.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change = change_document(header, draws)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return file, change


def change_bag(place: Path, draws: np.random.Generator) -> tuple[Path, str]:
    """Change the metadata of a bag, with aliases and merge keys among them."""
    import yaml

    (file,) = place.rglob("metadata.yaml")
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    document = yaml.safe_load(file.read_text())
    if draws.integers(3) == 0:
        lines = [f"a0: &a0 {['{}', '[]', '{x: 1}', 'x'][draws.integers(4)]}"]
        for number in range(1, int(draws.integers(2, 12))):
            repeats = ", ".join([f"*a{number - 1}"] * 10)
            lines.append(f"a{number}: &a{number} " + (f"{{<<: [{repeats}]}}" if draws.integers(2) else f"[{repeats}]"))
        file.write_text("\n".join([*lines, yaml.dump(document, Dumper=dumper)]))
        return file, "aliases"
    change = change_document(document, draws)
    text = json.dumps(document)  # JSON is YAML
    with contextlib.suppress(RecursionError, yaml.YAMLError, OverflowError, UnicodeEncodeError):
        if len(text) < 100_000:  # longer ones take seconds
            text = yaml.dump(document, Dumper=dumper).encode().decode()
    file.write_text(text)
    return file, change


CHANGES: dict[str, Callable[[Path, np.random.Generator], tuple[Path, str]]] = {
    "npz": change_npz,
    "npz images": change_npz,
    "robomimic": change_hdf5,
    "zarr v2": change_zarr,
    "zarr v3": change_zarr,
    "lerobot v2.1": change_parquet,
    "lerobot v3.0": change_parquet,
    "parquet images": change_parquet,
    "embeddings": change_embeddings,
    "pictures": change_picture,
    "safetensors": change_safetensors,
    "bags": change_bag,
}
"""By kind of `tests.fuzzing`; a change says which file it changed, and how."""
