"""Files below a URL: their sizes and versions, and ranges of their bytes, asked for again when a request fails.

fsspec reads every kind of place but `http` and `https`: its client for these needs a further package, and an HTTP
server lists no folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dp_prior.data.errors import DataError, UnreachableError, UnwritableError
from dp_prior.data.remote_files import reached
from dp_prior.files.client_errors import is_denied, remedy
from dp_prior.files.entry_points import needing
from dp_prior.files.left_behind import left_behind
from dp_prior.files.printable import printable
from dp_prior.files.regular_files import expanded
from dp_prior_streams.connection_faults import connection_fault
from dp_prior_streams.part_cache import writing

ATTEMPTS = 6
"""Requests for the same bytes before a place counts as unreachable."""

FIRST_PAUSE_S = 0.25
"""Pause after the first failed request; each further pause is twice as long."""

LOOK_S = 0.1
"""Pause between two looks for a request to stop."""

PIECE = 1 << 20
"""Bytes that are read and hashed at a time."""

LARGEST_FILE = 1 << 50
"""Bytes above which the length that a server states is none."""

LONGEST_TAG = 80
"""Characters of a tag in messages."""

TIMEOUT_S = 30.0
"""Longest silence of an HTTP server."""

LEAST_RATE = 64 << 10
"""Bytes per second below which a place counts as failing, though it is never silent."""

WINDOW_S = TIMEOUT_S + 8 * PIECE / LEAST_RATE
"""Seconds over which the rate is measured: a client gives up to 8 pieces at a time."""

LISTING_S = 600.0
"""Longest time in which a place opens, and lists its files."""

TAGS = ("ETag", "etag", "md5Hash", "crc32c", "blob_id")
TIMES = ("LastModified", "last_modified", "mtime", "updated", "modify", "last_write_time", "CRC", "created")
"""What clients of fsspec call the version of a file: s3fs, gcsfs, adlfs, the Hub's; and its time: folders of this
machine, SFTP, SMB, FTP, archives, memory."""

_S3, _GS = ("s3", "reading s3:// needs s3fs"), ("gs", "reading gs:// needs gcsfs")
PACKAGES = {"s3": _S3, "s3a": _S3, "gs": _GS, "gcs": _GS}
"""Extra, and what needs which package, by the beginning of a URL."""

T = TypeVar("T")


class CutShortError(OSError):
    """An answer ended before its last byte, or is none to the question."""


class StatusError(CutShortError):
    """A server answered with a status of failure."""


class IncompleteError(UnreachableError):
    """Every answer of a place ended before its last byte, or was none to the question."""


class Pace:
    """The rate of a transfer, which ends it when bytes arrive too slowly. Attributes: count: bytes that arrived."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Measure anew, from now on."""
        self.count, self._counted, self._end = 0, 0, time.monotonic() + WINDOW_S

    def check(self) -> None:
        """Compare the rate with the least one at the end of each window.

        Raises:
            CutShortError: it is lower.
        """
        if time.monotonic() < self._end:
            return
        if (arrived := self.count - self._counted) < LEAST_RATE * WINDOW_S:
            raise CutShortError(f"{arrived:,} bytes came in {WINDOW_S:.0f} seconds")
        self._counted, self._end = self.count, time.monotonic() + WINDOW_S


class ListingLimit(Pace):
    """The time of a request that says how many bytes arrive only at its end, such as the list of all files."""

    def __init__(self, url: str):
        self._url = url
        super().__init__()

    def begin(self) -> None:
        """Measure anew, from now on."""
        self._end = time.monotonic() + LISTING_S

    def check(self) -> None:
        """Compare the time with the limit.

        Raises:
            UnreachableError: the time is over; the same place would not be faster at once.
        """
        if time.monotonic() >= self._end:
            finding = f"{self._url} did not list its files within {LISTING_S:g} seconds"
            raise UnreachableError(
                f"{finding}; start again later, or download the data set and read it as type lerobot"
            )


@dataclass(frozen=True)
class FileVersion:
    """What a place says about a file.

    Attributes:
        size: bytes.
        tag: changes with the content, such as an ETag; None for a place that has none.
        sha256: of the content; None for a place that does not say it.
        modified: when the file was written, of a place without tags that says it; belongs to no identity, since the
            same file has other times in a copy.
    """

    size: int
    tag: str | None = None
    sha256: str | None = None
    modified: str | None = None

    def differs(self, now: FileVersion) -> bool:
        """Whether a later version shows another content; older manifests know no times."""
        is_written_again = None not in (self.modified, now.modified) and self.modified != now.modified
        return (self.size, self.tag) != (now.size, now.tag) or is_written_again

    @property
    def is_recognized(self) -> bool:
        """Whether the place says anything that changes with the content."""
        return any((self.tag, self.sha256, self.modified))

    def __str__(self) -> str:
        return f"{self.size:,} bytes, version {printable((self.tag or self.modified or 'unknown')[:LONGEST_TAG])}"


class Place(Protocol):
    """A folder of files somewhere else. A missing file is FileNotFoundError; other errors are those of the client."""

    url: str
    """The folder at one version, where the place has versions; as a user would write it."""

    def listing(self) -> dict[str, FileVersion] | None:
        """Every file below the folder by name; None for a place that lists no folder."""

    def version(self, name: str) -> FileVersion:
        """Ask the place for the version of a file."""

    def pieces(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` to `end` of a file, in pieces; fewer if the place cuts the answer short."""


def place_at(url: str) -> Place:
    """Open the folder at a URL or a path.

    Raises:
        DataError: fsspec knows no such place.
        ImportError: the package that reads the place is not installed.
        UnreachableError: the place did not answer.
    """
    return WebPlace(url) if url.startswith(("http://", "https://")) else FsspecPlace(url)


def retried(
    where: str, attempt: Callable[[], T], look: Callable[[], object] = lambda: None, pace: Pace | None = None
) -> T:
    """The result of an attempt, which is repeated after an error of the place.

    Args:
        look: called ten times a second; an error of this call abandons the attempt, see `left_behind`.
        pace: of the bytes that an attempt receives; an attempt that is too slow is abandoned. None for no limit.

    Raises:
        DataError: there is no such file.
        UnreachableError: every attempt failed, or access is refused.
        UnwritableError: the disk of this machine is full.
    """

    def tried() -> tuple[T | None, Exception | None]:
        try:
            return attempt(), None
        except Exception as error:  # each client has its own types
            return None, error

    def look_at_pace() -> None:
        look()
        if pace is not None:
            pace.check()

    for number in itertools.count(1):
        if pace is not None:
            pace.begin()
        try:
            result, error = left_behind(tried, look_at_pace)
        except CutShortError as slow:
            result, error = None, slow
        if error is None:
            return result
        if isinstance(error, (DataError, ImportError, UnwritableError)):
            raise error
        if isinstance(error, FileNotFoundError):
            raise DataError(where, ["there is no such file; check data.episodes.url"])
        if number == ATTEMPTS or is_denied(error):
            raise _last_error(where, error, number)
        end = time.monotonic() + FIRST_PAUSE_S * 2 ** (number - 1)
        while (rest := end - time.monotonic()) > 0:
            look()
            time.sleep(min(rest, LOOK_S))


def _last_error(where: str, error: Exception, attempts: int) -> UnreachableError:
    """The error of a place that is asked no more."""
    reason, hint = (str(error), "") if isinstance(error, CutShortError) else connection_fault(error)
    count = f"after {attempts} attempts" if attempts > 1 else "at the first attempt"
    advice = remedy(error) or (f"; {hint}" if hint else "")
    has_answered = isinstance(error, CutShortError) and not isinstance(error, StatusError)
    kind = IncompleteError if has_answered else UnreachableError
    return kind(f"{where} cannot be read now ({reason}, {count}){advice}")


class FsspecPlace:
    """See `Place`: whatever fsspec knows, and folders of this machine."""

    def __init__(self, url: str):
        from fsspec.core import url_to_fs

        packages = PACKAGES.get(url.partition("://")[0])
        needs = contextlib.nullcontext() if packages is None else needing(*packages)
        with reached(url), needs:
            try:
                self._fs, root = url_to_fs(url if "://" in url else str(expanded(url)))
            except ValueError as error:
                raise DataError(url, [f"is neither a path nor a URL that fsspec knows: {error}"]) from None
        self.url, self._root = url, root.rstrip("/")
        if url.startswith("hf://"):
            self._pin()

    def listing(self) -> dict[str, FileVersion]:
        """See `Place`."""
        self._fs.invalidate_cache()
        details = self._fs.find(self._root, detail=True)
        beginning = f"{self._root}/" if self._root else ""  # an archive is its own root
        return {path.removeprefix(beginning): _version(detail) for path, detail in details.items()}

    def version(self, name: str) -> FileVersion:
        """See `Place`; asks the place, since clients remember what they listed. A commit of the Hub does not change."""
        if not self.url.startswith("hf://"):
            self._fs.invalidate_cache()
        return _version(self._fs.info(f"{self._root}/{name}"))

    def pieces(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """See `Place`."""
        if (size := end - begin) <= 8 * PIECE:
            yield self._fs.cat_file(f"{self._root}/{name}", start=begin, end=end)
            return
        with self._fs.open(f"{self._root}/{name}", "rb", block_size=8 * PIECE) as file:
            file.seek(begin)
            while size and (piece := file.read(min(PIECE, size))):
                size -= len(piece)
                yield piece

    def _pin(self) -> None:
        """Keep to the newest commit of a data set on the Hub, unless the URL names a version."""
        resolved = self._fs.resolve_path(self._root)
        repo = {"repo_type": resolved.repo_type, "revision": resolved.revision}
        commit = self._fs._api.repo_info(resolved.repo_id, **repo).sha
        inside = f"/{resolved.path_in_repo}" if resolved.path_in_repo else ""
        self._root = f"{resolved.repo_type}s/{resolved.repo_id}@{commit}{inside}"
        self.url = f"hf://{self._root}"


class WebPlace:
    """See `Place`: files behind HTTP, which lists none."""

    def __init__(self, url: str):
        self.url = url.rstrip("/")

    @cached_property
    def _opener(self) -> Any:
        from urllib.request import build_opener

        from dp_prior_streams.redirects import SafeRedirects

        return build_opener(SafeRedirects())

    def listing(self) -> None:
        """See `Place`."""

    def version(self, name: str) -> FileVersion:
        """See `Place`."""
        with self._answer(name, "HEAD", {}) as answer:
            size = answer.headers.get("Content-Length", "")
            if answer.status != 200 or not size.isdecimal() or int(size) > LARGEST_FILE:
                raise CutShortError("the server does not say how long the file is")
            tag, modified = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
            return FileVersion(int(size), tag, modified=None if tag else modified)

    def pieces(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        """See `Place`; a server that ignores the range sends the whole file."""
        if begin == end:
            return
        with self._answer(name, "GET", {"Range": f"bytes={begin}-{end - 1}"}) as answer:
            if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
                raise CutShortError(f"the server sent the bytes encoded as {encoding[:20]!r}")
            if answer.headers.get_content_maintype() == "multipart":
                raise CutShortError("the server sent several ranges instead of one")
            span = answer.headers.get("Content-Range", f"bytes {begin}-")
            if answer.status == 206 and not span.startswith(f"bytes {begin}-"):
                raise CutShortError(f"the server sent other bytes than those from {begin:,} on")
            skipped, size = (0 if answer.status == 206 else begin), end - begin
            while size and (piece := answer.read1(PIECE)):
                asked_for = piece[skipped : skipped + size]
                skipped, size = max(skipped - len(piece), 0), size - len(asked_for)
                yield asked_for

    @contextlib.contextmanager
    def _answer(self, name: str, method: str, headers: Mapping[str, str]) -> Iterator[Any]:
        """The open answer of the server."""
        from http.client import IncompleteRead
        from urllib.error import HTTPError
        from urllib.parse import quote
        from urllib.request import Request

        address = f"{self.url}/{quote(name)}"
        request = Request(address, method=method, headers={"Accept-Encoding": "identity", **headers})
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                yield answer
        except IncompleteRead as error:
            raise CutShortError(f"{len(error.partial):,} bytes came and no more") from None
        except HTTPError as error:
            if error.code in (404, 410):
                raise FileNotFoundError(address) from None
            if error.code in (401, 403):
                raise PermissionError(error.code, "access refused") from None
            if error.code == 416:
                raise CutShortError("the file ends before the range begins") from None
            raise StatusError(f"HTTP {error.code}") from None


def _version(detail: dict[str, Any]) -> FileVersion:
    """The version in an answer of fsspec, whose clients have names of their own for it."""
    pointer = detail.get("lfs")
    sha256 = getattr(pointer, "sha256", None) or (pointer.get("sha256") if isinstance(pointer, dict) else None)
    tag = next((str(detail[name]).strip('"') for name in TAGS if detail.get(name)), None)
    modified = next((str(detail[name]) for name in TIMES if detail.get(name)), None)
    return FileVersion(int(detail["size"]), tag, sha256, None if tag or sha256 else modified)


def save(pieces: Iterator[bytes], path: Path, size: int, pace: Pace | None = None) -> str:
    """Write pieces to a file; returns the SHA-256. Args: pace: learns how many bytes have arrived.

    Raises:
        CutShortError: there are fewer bytes, or more.
        UnwritableError: the file cannot be written, which is no fault of the place.
    """
    digest, count = hashlib.sha256(), 0
    with writing(path):
        file = path.open("wb", buffering=0)
    with file:
        for piece in pieces:
            count += len(piece)
            if count > size:
                raise CutShortError(f"more than {size:,} bytes came")
            digest.update(piece)
            with writing(path):
                _write(file, piece)
            if pace is not None:
                pace.count = count
    if count != size:
        raise CutShortError(f"{count:,} of {size:,} bytes came")
    return digest.hexdigest()


def _write(file: io.FileIO, content: bytes) -> None:
    """Write all bytes to an unbuffered file, whose end writes nothing that could fail then."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]
