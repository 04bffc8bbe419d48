"""A download that breaks anywhere goes on where it stopped, and ends as the bytes that were there."""

import hashlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.checkpoints.format import FileEntry
from dp_prior.places.source import RemoteError, StreamedSource, is_intact
from tests.cases import every
from tests.messages import naming

CONTENT = bytes(range(200))


class Breaking(StreamedSource):
    """Streams `CONTENT` in pieces of 7 bytes; each connection breaks after the next number in `reaches`."""

    def __init__(self, reaches=()):
        super().__init__("https://host/folder")
        self.reaches = list(reaches)
        self.starts = []

    def stream(self, path, start):
        if path == "none":
            raise FileNotFoundError
        self.starts.append(start)
        reach = self.reaches.pop(0) if self.reaches else len(CONTENT)
        rest = CONTENT[start : start + reach]
        for at in range(0, len(rest), 7):
            yield rest[at : at + 7]
        if start + reach < len(CONTENT):
            raise ConnectionError("reset")


@given(st.lists(st.integers(0, 80), max_size=4), st.integers(0, 250))
@example([], len(CONTENT))
@example([], len(CONTENT) + 1)
def test_a_download_that_breaks_anywhere_is_completed_and_reads_no_byte_twice(tmp_path_factory, reaches, held):
    target, source = tmp_path_factory.mktemp("target") / "file", Breaking(reaches)
    target.write_bytes((CONTENT * 2)[:held])
    source.download("file", len(CONTENT), target, anew=False)
    assert target.read_bytes() == CONTENT
    first = held if held <= len(CONTENT) else 0  # longer than the file: something else, begun anew
    expected = [min(first + sum(reaches[:count]), len(CONTENT)) for count in range(len(source.starts))]
    assert source.starts == expected


@pytest.mark.parametrize("size", [1, 7, 100])
def test_a_server_that_sends_more_than_the_file_is_cut(tmp_path, size):
    Breaking().download("file", size, tmp_path / "file", anew=False)
    assert (tmp_path / "file").read_bytes() == CONTENT[:size]


def test_a_download_that_keeps_breaking_ends_with_what_has_arrived(tmp_path):
    source = Breaking([10] * 9)
    with pytest.raises(RemoteError, match=naming("file", "ConnectionError", "reset")) as caught:
        source.download("file", len(CONTENT), tmp_path / "file", anew=False)
    assert caught.value.trouble == "unavailable"
    assert (tmp_path / "file").read_bytes() == CONTENT[: 10 * len(source.starts)]


@every(most=[0, 1, len(CONTENT) - 1, len(CONTENT), 1000])
def test_a_small_file_is_read_whole_or_refused_with_its_bound(most):
    if most >= len(CONTENT):
        assert Breaking().read("file", most) == CONTENT
    else:
        with pytest.raises(RemoteError, match=naming("https://host/folder/file", f"{most} bytes")):
            Breaking().read("file", most)


def test_a_missing_file_is_told_from_a_broken_connection():
    with pytest.raises(FileNotFoundError, match=naming("https://host/folder/none")):
        Breaking().read("none", 1000)
    with pytest.raises(RemoteError, match=naming("https://host/folder/file", "reset")):
        Breaking([3]).read("file", 1000)


def test_a_file_is_intact_only_with_every_bit_of_its_hash(tmp_path):
    path = tmp_path / "file"
    entry = FileEntry(size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())
    for change in (0, 1):
        path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ change]))
        assert is_intact(path, entry) == (not change)
