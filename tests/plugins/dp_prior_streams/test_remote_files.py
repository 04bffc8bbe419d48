import contextlib
import errno
import os
import socket
import sys
import time
import zipfile
from pathlib import Path

import fsspec
import pytest

from dp_prior.data.errors import DataError, UnreachableError, UnwritableError
from dp_prior.run.exit_file import classify
from dp_prior_streams import remote_files
from dp_prior_streams.manifest import RemoteSet
from dp_prior_streams.remote_files import (
    ATTEMPTS,
    CutShortError,
    FileVersion,
    FsspecPlace,
    Pace,
    WebPlace,
    place_at,
    retried,
    save,
)
from tests.messages import naming
from tests.plugins.dp_prior_streams.web_store import served


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_S", 0.0)


def places(folder):
    """The same files behind each kind of place."""
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/streams/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*.bin")})
    return {"path": str(folder), "memory": "memory://streams", "file": f"file://{folder}"}


@pytest.mark.parametrize("kind", ["path", "memory", "file", "web"])
def test_every_place_gives_ranges_of_bytes_and_versions(tmp_path, kind):
    (tmp_path / "deep").mkdir()
    data = bytes(range(256)) * 40_000  # 10 MB
    (tmp_path / "deep/a b.bin").write_bytes(data)
    with served(tmp_path) as web:
        place = place_at(web.url if kind == "web" else places(tmp_path)[kind])
        assert isinstance(place, WebPlace if kind == "web" else FsspecPlace)
        for begin, end in ((0, len(data)), (5, 9), (255, 9_000_001)):
            assert b"".join(place.pieces("deep/a b.bin", begin, end)) == data[begin:end]
        assert place.version("deep/a b.bin").size == len(data)
        listing = place.listing()
        assert listing is None if kind == "web" else listing["deep/a b.bin"].size == len(data)
        with pytest.raises(FileNotFoundError):
            place.version("deep/none.bin")
        with pytest.raises(FileNotFoundError):
            list(place.pieces("deep/none.bin", 0, 4))


@pytest.mark.parametrize("fault", [503, 429, "cut", "reset"])
def test_a_failing_place_is_asked_again(tmp_path, fault):
    (tmp_path / "a.bin").write_bytes(bytes(5000))
    with served(tmp_path) as web:
        web.fault = lambda number, name: fault if number < ATTEMPTS else None
        place = place_at(web.url)
        retried("a.bin", lambda: save(place.pieces("a.bin", 0, 5000), tmp_path / "got", 5000))
        assert (tmp_path / "got").read_bytes() == bytes(5000) and web.requests == ATTEMPTS


@pytest.mark.parametrize(("fault", "count"), [(503, ATTEMPTS), ("cut", ATTEMPTS), (403, 1)])
def test_a_place_that_never_answers_ends_in_one_line_and_the_code_of_unavailable(tmp_path, fault, count):
    (tmp_path / "a.bin").write_bytes(bytes(5000))
    with served(tmp_path) as web:
        web.fault = lambda number, name: fault
        place = place_at(web.url)
        with pytest.raises(UnreachableError, match=naming(f"{web.url}/a.bin")) as caught:
            retried(f"{web.url}/a.bin", lambda: save(place.pieces("a.bin", 0, 5000), tmp_path / "got", 5000))
        assert web.requests == count and classify(caught.value) == ("unavailable", 69)
        assert "\n" not in str(caught.value)


def test_a_missing_file_and_an_unknown_place_are_faults_of_the_data():
    with pytest.raises(DataError, match=naming("data.episodes.url")):
        retried("x/y", lambda: (_ for _ in ()).throw(FileNotFoundError()))
    with pytest.raises(DataError, match=naming("nowhere://x")):
        place_at("nowhere://x")


def test_a_server_that_ignores_ranges_is_read_and_one_that_sends_others_is_not(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with served(tmp_path) as web:
        web.is_whole = True
        assert b"".join(WebPlace(web.url).pieces("a", 3, 6)) == b"345"
        web.is_whole, web.shift = False, 1
        with pytest.raises(CutShortError):
            list(WebPlace(web.url).pieces("a", 3, 6))


def test_more_bytes_than_expected_are_refused_before_they_are_written(tmp_path):
    def endless():
        while True:
            yield b"0" * 10

    with pytest.raises(CutShortError):
        save(endless(), tmp_path / "a", 25)
    assert (tmp_path / "a").stat().st_size <= 25


def test_a_look_ends_the_wait_for_a_place_that_hangs(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "TIMEOUT_S", 600)  # a look alone can end the wait
    (tmp_path / "a").write_bytes(b"0123456789")

    class AskedError(Exception):
        pass

    def look():
        if web.is_hanging.is_set():
            raise AskedError

    with served(tmp_path) as web:
        web.fault = lambda number, name: "hang"
        with pytest.raises(AskedError):
            retried("a", lambda: list(WebPlace(web.url).pieces("a", 0, 10)), look)


@pytest.mark.parametrize("drips", [1, ATTEMPTS])
def test_a_place_that_drips_is_asked_again_and_then_given_up(tmp_path, monkeypatch, drips):
    content = bytes(range(256)) * 20
    (tmp_path / "a.bin").write_bytes(content)
    monkeypatch.setattr(remote_files, "WINDOW_S", 0.3)
    with served(tmp_path) as web:
        web.fault = lambda number, name: "drip" if number <= drips else None
        (tmp_path / "cache").mkdir()
        remote = RemoteSet(web.url, tmp_path / "cache")
        remote.note(["a.bin"])
        if drips == 1:
            remote.fetch("a.bin", tmp_path / "got")
            assert (tmp_path / "got").read_bytes() == content
        else:
            with pytest.raises(UnreachableError, match=naming(f"{web.url}/a.bin", "bytes", "0 seconds", ATTEMPTS)):
                remote.fetch("a.bin", tmp_path / "got")
            assert not (tmp_path / "got").exists()
        assert web.requests == min(drips + 1, ATTEMPTS)
        time.sleep(0.2)  # an abandoned transfer writes to a file of its own
        assert drips > 1 or (tmp_path / "got").read_bytes() == content


def test_a_fast_transfer_longer_than_a_window_is_not_abandoned(monkeypatch):
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(remote_files.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(remote_files, "WINDOW_S", 100)
    monkeypatch.setattr(remote_files, "LEAST_RATE", 1000)
    pace = Pace()
    for _ in range(50):
        pace.count += 11_000
        pace.check()
    with pytest.raises(CutShortError, match=naming("60,000 bytes", "100 seconds")):
        for _ in range(50):
            pace.count += 6000
            pace.check()


def test_a_full_disk_of_this_machine_is_no_fault_of_the_place(tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with pytest.raises(UnwritableError, match=naming("/dev/full", "data.episodes.cache")):
        retried("a", lambda: save(iter([b"1"]), Path("/dev/full"), 1))


def test_a_folder_of_this_machine_that_is_gone_or_refused_is_no_fault_of_the_place(tmp_path, monkeypatch):
    path = tmp_path / "gone" / "a"
    with pytest.raises(UnwritableError, match=naming(path, os.strerror(errno.ENOENT), "data.episodes.cache")):
        retried("a", lambda: save(iter([b"1"]), path, 1))

    def refused(*arguments, **named):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(UnwritableError, match=naming(path, os.strerror(errno.EACCES), "data.episodes.cache")):
        retried("a", lambda: save(iter([b"1"]), path, 1))


def test_the_files_of_an_archive_are_listed_by_their_names(tmp_path):
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        archive.writestr("meta/info.json", "{}")
    place = FsspecPlace(f"zip://::{tmp_path}/set.zip")
    assert list(place.listing()) == ["meta/info.json"]
    assert b"".join(place.pieces("meta/info.json", 0, 2)) == b"{}"


WORDS = {
    "a tag": ({"ETag": '"1"'}, {"ETag": '"2"'}),
    "a time": ({"Last-Modified": "Mon, 01 Jun 2026 10:00:00 GMT"}, {"Last-Modified": "Mon, 01 Jun 2026 10:00:09 GMT"}),
}


@pytest.mark.parametrize("name", WORDS)
def test_a_file_of_a_server_is_recognized_by_whatever_the_server_says(tmp_path, name):
    (tmp_path / "a").write_bytes(b"0123456789")
    with served(tmp_path) as web:
        versions = []
        for headers in WORDS[name]:
            web.headers = lambda path, headers=headers: headers
            versions.append(WebPlace(web.url).version("a"))
    assert versions[0].differs(versions[1]) and not versions[0].differs(versions[0])
    assert all(version.is_recognized for version in versions) and str(versions[0]) != str(versions[1])


def test_a_time_counts_only_where_both_versions_have_it_and_there_is_no_tag(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with served(tmp_path) as web:
        web.headers = lambda path: {"ETag": '"1"', "Last-Modified": "Mon, 01 Jun 2026 10:00:00 GMT"}
        assert WebPlace(web.url).version("a") == FileVersion(10, '"1"')  # mirrors share tags, and not times
        web.headers = lambda path: {}
        assert not WebPlace(web.url).version("a").is_recognized
    assert not FileVersion(10).differs(FileVersion(10, modified="now"))  # in a manifest of an older version
    assert FileVersion(10, modified="then").differs(FileVersion(11, modified="then"))


DETAILS = {
    "s3": ({"ETag": '"abc"', "LastModified": "1"}, FileVersion(5, "abc")),
    "gs": ({"etag": "CJ=", "md5Hash": "x", "mtime": "1"}, FileVersion(5, "CJ=")),
    "hub": ({"blob_id": "a", "lfs": {"sha256": "b", "size": 5}}, FileVersion(5, "a", "b")),
    "azure": ({"etag": "0x8", "last_modified": "1"}, FileVersion(5, "0x8")),
    "folder": ({"mtime": 17.5, "created": 9.0, "ino": 3}, FileVersion(5, modified="17.5")),
    "archive": ({"CRC": 77, "date_time": (1980,)}, FileVersion(5, modified="77")),
    "silent": ({}, FileVersion(5)),
}


@pytest.mark.parametrize("place", DETAILS)
def test_each_client_s_word_for_the_version_of_a_file_is_understood(place):
    detail, expected = DETAILS[place]
    assert remote_files._version({"size": 5, **detail}) == expected


def test_a_client_that_remembers_what_it_listed_is_asked_anew(tmp_path):
    class Remembering(fsspec.AbstractFileSystem):
        """Answers from its listing, as s3fs and gcsfs do."""

        protocol, cachable, tag = "remembering", False, "1"

        @classmethod
        def _strip_protocol(cls, path):
            return path.removeprefix("remembering://")

        def find(self, path, **options):
            self.dircache[path] = [{"name": f"{path}/a", "size": 5, "ETag": self.tag}]
            return {f"{path}/a": self.dircache[path][0]}

        def info(self, path, **options):
            folder = path.rpartition("/")[0]
            return self.dircache[folder][0] if folder in self.dircache else {"size": 5, "ETag": self.tag}

        def invalidate_cache(self, path=None):
            self.dircache.clear()

    fsspec.register_implementation("remembering", Remembering, clobber=True)
    place = FsspecPlace("remembering://bucket")
    before = place.listing()["a"]
    assert place.version("a") == before
    Remembering.tag = "2"
    assert before.differs(place.version("a"))


def test_bytes_that_a_server_compressed_though_asked_not_to_are_no_content(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    with served(tmp_path) as web:
        web.headers = lambda path: {"Content-Encoding": "gzip"}
        with pytest.raises(CutShortError, match=naming("gzip")):
            list(WebPlace(web.url).pieces("a", 0, 10))


@pytest.mark.parametrize("scheme", ["s3", "s3a", "gs", "gcs"])
def test_a_store_whose_package_is_missing_is_told_with_its_extra(scheme, monkeypatch):
    package = "s3fs" if scheme.startswith("s3") else "gcsfs"
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    extra = "s3" if package == "s3fs" else "gs"
    with pytest.raises(ImportError, match=naming(package, f'pip install "dp_prior[{extra}]"')):
        retried("x", lambda: place_at(f"{scheme}://bucket/folder"))


def test_a_host_that_cannot_be_reached_is_told_with_the_reason_and_a_hint(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/set"
    with pytest.raises(UnreachableError, match=naming(url, "refuses", ATTEMPTS, "data.episodes.url")):
        retried(url, lambda: place_at(url).version("a"))
    with pytest.raises(UnreachableError, match=naming("http://nowhere.invalid/set", "name", "data.episodes.url")):
        retried("http://nowhere.invalid/set", lambda: place_at("http://nowhere.invalid/set").version("a"))
    with served(Path(__file__).parent) as web:
        monkeypatch.setattr(remote_files, "TIMEOUT_S", 0.2)
        web.fault = lambda number, name: "hang"
        place = place_at(web.url)
        with pytest.raises(UnreachableError, match=naming(web.url, "time", "firewall")):
            retried(web.url, lambda: list(place.pieces("web_store.py", 0, 5)))


@pytest.mark.parametrize(("status", "length"), [(204, "0"), (200, "-5"), (200, "9" * 20)])
def test_a_length_that_no_file_has_is_asked_for_again(monkeypatch, status, length):
    class Answer:
        headers = {"Content-Length": length}

    Answer.status = status

    place = WebPlace("http://host")
    monkeypatch.setattr(place, "_answer", lambda *request: contextlib.nullcontext(Answer))
    with pytest.raises(CutShortError):
        place.version("a")


def test_a_tag_in_a_message_is_short_and_cannot_reach_the_terminal():
    text = str(FileVersion(1, "\x1b]0;title\x07" + "x" * 5000))
    assert "\x1b" not in text and len(text) < 200
