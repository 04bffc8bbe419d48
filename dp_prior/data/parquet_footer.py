"""Reads what the footer of a parquet file declares: rows, and the values of each column.

pyarrow gives the same numbers, but a damaged footer makes it end the process (26.0: an exception of C++ that no binding
catches). The footer is one struct in Thrift's compact protocol; only a few of its fields are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from typing import Any, BinaryIO, NamedTuple

LARGEST_FOOTER = 64 << 20
"""Most bytes of a footer; it has about 150 for each column of each row group."""

MOST_NESTED = 32

_READ: dict[bytes, Footer] = {}
"""Footers by the SHA-256 of their bytes; those of many row groups are asked for once a column."""

_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}  # BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE
_TEXT, _FIXED = 6, 7  # BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY
_DICTIONARY_PAGE, _DELTA_BYTE_ARRAY = 2, 7
_PAGE_HEADERS = (1 << 14, 1 << 24)  # bytes that are read of the header of a page, which may quote values
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT, _UUID = range(1, 14)


class Leaf(NamedTuple):
    """A column of plain values; lists and structs have one or several.

    Attributes:
        count: of its values in all row groups, nulls included.
        width: bytes of a value; 1 where values have different lengths.
        is_text: whether values have different lengths.
        chunks: (offset, bytes) of its pages in each row group.
    """

    count: int
    width: int
    is_text: bool = False
    chunks: tuple[tuple[int, int], ...] = ()


class Footer(NamedTuple):
    """Attributes: size: bytes of the file. groups: rows of each row group. leaves: by their dotted path.
    rows_at_once: rows to be decoded together, see `check_columns_fit`."""

    size: int
    rows: int
    groups: list[int]
    leaves: dict[str, Leaf]
    rows_at_once: int = 1


def read_footer(file: BinaryIO) -> Footer:
    """The footer of an open parquet file.

    Raises:
        ValueError: it is no parquet file, or its footer is damaged.
        OSError: it cannot be read.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or length > min(size - 8, LARGEST_FOOTER):
        raise ValueError("is no parquet file, or is cut short: it does not end with a footer")
    file.seek(size - 8 - length)
    data = file.read(length)
    digest = hashlib.sha256(data).digest()
    if digest in _READ:
        return _READ[digest]._replace(size=size)
    try:
        _READ[digest] = _footer(_Reader(data).struct(MOST_NESTED), size)
        return _READ[digest]
    except (IndexError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
        raise ValueError(f"has a damaged footer ({type(error).__name__})") from None


def page_bytes(file: BinaryIO, leaf: Leaf) -> tuple[int, int]:
    """Read the headers of all pages of a column: the bytes of the pages together once they are decompressed, and the
    most bytes of a value that further values repeat, in a dictionary or as a prefix.

    Raises:
        ValueError: a header is damaged.
    """
    decompressed, repeated = 0, [0]
    for place, length in leaf.chunks:
        end, total, has_prefixes = place + length, 0, False
        while place < end:
            page = _page_header(file, place)
            total += page.decompressed
            repeated.append(page.decompressed * page.is_dictionary)
            has_prefixes |= page.has_prefixes
            place += page.stored
        decompressed += total
        repeated.append(total * has_prefixes)
    return decompressed, max(repeated)


class _PageHeader(NamedTuple):
    """Attributes: decompressed: bytes of its values. stored: bytes in the file, with its header."""

    decompressed: int
    stored: int
    is_dictionary: bool
    has_prefixes: bool


def _page_header(file: BinaryIO, place: int) -> _PageHeader:
    """Decode the struct PageHeader at a place."""
    for length in _PAGE_HEADERS:
        file.seek(place)
        reader = _Reader(file.read(length))
        with contextlib.suppress(IndexError, KeyError, TypeError, AttributeError, ValueError):
            header = reader.struct(MOST_NESTED)
            decompressed, compressed = _natural(header[2]), _natural(header[3])
            encodings = header.get(5, {}).get(2), header.get(8, {}).get(4)  # of pages of versions 1 and 2
            is_dictionary, has_prefixes = header[1] == _DICTIONARY_PAGE, _DELTA_BYTE_ARRAY in encodings
            return _PageHeader(decompressed, reader.at + compressed, is_dictionary, has_prefixes)
    raise ValueError(f"has a damaged page at byte {place}")


def _footer(document: dict[int, Any], size: int) -> Footer:
    """The struct FileMetaData; numbers are those of parquet.thrift."""
    lengths = [element.get(2, 1) for element in document[2] if not element.get(5)]  # leaves, in their order
    groups, leaves = document.get(4, []), dict[str, Leaf]()
    for group in groups:
        for column, length in zip(group[1], lengths, strict=False):
            chunk = column[3]
            path, kind = ".".join(part.decode() for part in chunk[3]), chunk[1]
            count, chunks = (leaves[path].count, leaves[path].chunks) if path in leaves else (0, ())
            width = max(1, length) if kind == _FIXED else _WIDTHS.get(kind, 1)
            if chunk[5]:  # otherwise writers give places of no pages
                chunks = (*chunks, (min(_natural(chunk[9]), chunk.get(11) or chunk[9]), _natural(chunk[7])))
            leaves[path] = Leaf(count + _natural(chunk[5]), width, kind == _TEXT, chunks)
    return Footer(size, _natural(document[3]), [_natural(group[3]) for group in groups], leaves)


def _natural(value: int) -> int:
    if value < 0:
        raise ValueError(f"has a damaged footer: it counts {value} values")
    return value


class _Reader:
    """Thrift's compact protocol: structs as dicts by field number, other values as Python has them."""

    def __init__(self, data: bytes):
        self._data, self.at = data, 0

    def struct(self, nested: int) -> dict[int, Any]:
        fields: dict[int, Any] = {}
        data, field = self._data, 0
        while head := data[self.at]:
            self.at += 1
            field = field + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            fields[field] = kind == _TRUE if kind <= _FALSE else self._value(kind, nested)
        self.at += 1
        return fields

    def _value(self, kind: int, nested: int) -> Any:
        if not nested:
            raise ValueError(f"has a footer that nests more than {MOST_NESTED} values")
        if _I16 <= kind <= _I64:
            return self._signed()
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind == _STRUCT:
            return self.struct(nested - 1)
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            return [self._value(head & 15, nested - 1) for _ in range(self._counted(count))]
        if kind == _MAP:
            count = self._counted(self._unsigned())
            kinds = self._byte() if count else 0
            key_kind, value_kind = kinds >> 4, kinds & 15
            return [(self._value(key_kind, nested - 1), self._value(value_kind, nested - 1)) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind in (_DOUBLE, _UUID):
            return self._bytes(8 if kind == _DOUBLE else 16)
        raise ValueError(f"has a damaged footer: there is no type {kind}")

    def _counted(self, count: int) -> int:
        """A number of elements, each of which takes a byte or more."""
        if count > len(self._data) - self.at:
            raise IndexError
        return count

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        self.at += self._counted(count)
        return self._data[self.at - count : self.at]

    def _unsigned(self) -> int:
        data, at, value = self._data, self.at, 0
        for shift in range(0, 70, 7):
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                self.at = at
                return value
        raise ValueError("has a damaged footer: a number has more than ten bytes")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
