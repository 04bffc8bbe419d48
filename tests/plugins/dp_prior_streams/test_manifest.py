import errno
import hashlib
import json
import os
import threading

import pytest

from dp_prior.data.errors import ChangedError, DataError, UnreachableError
from dp_prior.files.json_text import seal
from dp_prior_streams import manifest, remote_files
from dp_prior_streams.manifest import HASHES, MANIFEST, RemoteSet
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.web_store import served


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_S", 0.0)
    for name, data in {"meta/info.json": b"{}", "data/a.bin": b"a" * 900, "data/b.bin": b"b" * 800}.items():
        path = tmp_path / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "cache").mkdir()
    return tmp_path / "set"


def test_the_first_opening_notes_sizes_and_later_openings_ask_nobody(folder, tmp_path):
    with served(folder) as web:
        remote = RemoteSet(web.url, tmp_path / "cache")
        assert remote.files == {} and remote.exists("meta/info.json") and not remote.exists("meta/none")
        remote.note(["data/a.bin", "data/b.bin"])
    again = RemoteSet(web.url, tmp_path / "cache")  # the server is gone
    assert {name: version.size for name, version in again.files.items()} == {
        "meta/info.json": 2,
        "data/a.bin": 900,
        "data/b.bin": 800,
    }
    names = ["data/a.bin", "data/b.bin"]
    assert again.identity(names) == remote.identity(reversed(names)) != remote.identity(names[:1])


def test_files_that_the_episode_list_names_must_exist(folder, tmp_path):
    for number, url in enumerate((str(folder), None)):
        cache = tmp_path / f"cache{number}"
        cache.mkdir()
        with served(folder) as web, pytest.raises(DataError, match=naming("data/c.bin", "data/d.bin")):
            RemoteSet(url or web.url, cache).note(["data/a.bin", "data/d.bin", "data/c.bin"])


@pytest.mark.parametrize("is_again", [False, True], ids=["another process", "the same process"])
def test_bytes_that_differ_from_those_noted_are_refused_and_not_left(folder, tmp_path, is_again):
    remote, target = RemoteSet(str(folder), tmp_path / "cache"), tmp_path / "got"
    remote.fetch("data/a.bin", target)
    remote.fetch("data/b.bin", target, 100, 300)
    assert target.read_bytes() == b"b" * 200 and remote.fetched_bytes == 1100
    assert len((tmp_path / "cache" / HASHES).read_text().splitlines()) == 2
    (folder / "data/a.bin").write_bytes(b"a" * 899 + b"x")
    (folder / "data/b.bin").write_bytes(b"b" * 299 + b"x" + b"b" * 500)
    other = remote if is_again else RemoteSet(str(folder), tmp_path / "cache")
    for name, span in (("data/a.bin", ()), ("data/b.bin", (100, 300))):
        with pytest.raises(ChangedError, match=naming(name)):
            other.fetch(name, target, *span)
        assert not target.exists()


@pytest.mark.parametrize("size", [1000, 899, 0])
@pytest.mark.parametrize("kind", ["folder", "server"])
@pytest.mark.parametrize("was_hashed", [False, True])
def test_a_file_of_another_size_is_refused_whether_or_not_it_was_hashed(folder, tmp_path, size, kind, was_hashed):
    with served(folder) as web:
        remote = RemoteSet(str(folder) if kind == "folder" else web.url, tmp_path / "cache")
        remote.note(["data/a.bin"])
        if was_hashed:
            remote.fetch("data/a.bin", tmp_path / "got")
        (folder / "data/a.bin").write_bytes(b"c" * size)
        sizes = () if was_hashed and size > 900 else (f"{size:,}", "900")  # whose first bytes are compared
        with pytest.raises(ChangedError, match=naming("data/a.bin", tmp_path / "cache", *sizes)):
            remote.fetch("data/a.bin", tmp_path / "got")


def test_a_byte_that_changed_on_the_way_is_fetched_again(folder, tmp_path):
    remote = RemoteSet(str(folder), tmp_path / "cache")
    remote.fetch("data/a.bin", tmp_path / "got")
    good, answers = remote.place.pieces, [b"x" * 900]

    def pieces(name, begin, end):
        return iter([answers.pop()]) if answers else good(name, begin, end)

    remote.place.pieces = pieces
    remote.fetch("data/a.bin", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"a" * 900


def test_bytes_that_could_not_be_decoded_are_not_those_expected_later(folder, tmp_path):
    remote = RemoteSet(str(folder), tmp_path / "cache")
    good, name = (folder / "data/a.bin").read_bytes(), "data/a.bin"
    (folder / name).write_bytes(b"x" * 900)  # something else of the same size
    remote.fetch(name, tmp_path / "got", is_proven=False)
    remote.drop()
    (folder / name).write_bytes(good)
    remote.fetch(name, tmp_path / "got", is_proven=False)
    remote.confirm()
    (folder / name).write_bytes(b"x" * 900)
    for opened in (remote, RemoteSet(str(folder), tmp_path / "cache")):
        with pytest.raises(ChangedError):
            opened.fetch(name, tmp_path / "got", is_proven=False)


def test_a_damaged_manifest_is_told_with_the_remedy(folder, tmp_path):
    RemoteSet(str(folder), tmp_path / "cache")
    path = tmp_path / "cache" / MANIFEST
    path.write_text(path.read_text().replace("900", "901"))
    with pytest.raises(DataError, match=naming(str(path), str(tmp_path / "cache"))):
        RemoteSet(str(folder), tmp_path / "cache")
    json.loads(path.read_text())


@pytest.mark.parametrize("request_name", ["place_at", "listing"])
def test_a_place_that_lists_its_files_without_end_is_given_up(folder, tmp_path, monkeypatch, request_name):
    """A server that sends a byte now and then is never silent, and a client counts no bytes of a list."""
    end, waits = threading.Event(), []
    owner = manifest if request_name == "place_at" else remote_files.FsspecPlace
    monkeypatch.setattr(owner, request_name, lambda *args: waits.append(end.wait(200)))
    monkeypatch.setattr(remote_files, "LISTING_S", 0.2)
    with pytest.raises(UnreachableError, match=naming(folder, 0.2, "lerobot")):
        RemoteSet(str(folder), tmp_path / "cache")
    assert waits == [] and not (tmp_path / "cache" / MANIFEST).exists()
    end.set()


def written_again(path, content):
    """With another time, as the clock of a disk may count whole seconds."""
    path.write_bytes(content)
    os.utime(path, (1, 1))


@pytest.mark.parametrize("kind", ["folder", "server with times", "server with tags"])
def test_a_file_of_the_same_size_that_was_written_again_before_it_arrived_is_refused(folder, tmp_path, kind):
    with served(folder) as web:
        if kind == "server with tags":
            web.headers = lambda path: {"ETag": hashlib.md5(path.read_bytes()).hexdigest()}
        url = str(folder) if kind == "folder" else web.url
        RemoteSet(url, tmp_path / "cache").note(["data/a.bin", "data/b.bin"])
        written_again(folder / "data/a.bin", b"x" * 900)
        remote = RemoteSet(url, tmp_path / "cache")
        with pytest.raises(ChangedError, match=naming("data/a.bin", tmp_path / "cache")):
            remote.fetch("data/a.bin", tmp_path / "got", 5, 9)
        if kind != "folder":  # where a file that was restored has another time
            with pytest.raises(ChangedError, match=naming("data/a.bin", tmp_path / "cache")):
                remote.fetch("data/a.bin", tmp_path / "got")
        remote.fetch("data/b.bin", tmp_path / "got")
        written_again(folder / "data/b.bin", b"b" * 800)
        remote.fetch("data/b.bin", tmp_path / "got")  # its bytes are those noted, whenever they were written


def test_times_are_in_the_manifest_and_in_no_identity(folder, tmp_path):
    identities = set()
    for number, time_of_change in enumerate((1000, 2000)):
        os.utime(folder / "data/a.bin", (time_of_change, time_of_change))
        cache = tmp_path / f"cache{number}"
        cache.mkdir()
        remote = RemoteSet(str(folder), cache)
        identities.add(remote.identity(["data/a.bin"]))
        document = json.loads((cache / MANIFEST).read_text())
        assert document["modified"]["data/a.bin"] == f"{time_of_change}.0"
        assert document["files"]["data/a.bin"] == {"size": 900, "tag": None, "sha256": None}  # as older versions read
    assert len(identities) == 1


def test_a_manifest_of_an_older_version_knows_no_times_and_goes_on(folder, tmp_path):
    files = {"data/a.bin": {"size": 900, "tag": None, "sha256": None}}
    document = {"format": 1, "asked": str(folder), "url": str(folder), "files": files}
    (tmp_path / "cache" / MANIFEST).write_bytes(seal(document))
    sha256 = hashlib.sha256(b"b" * 800).hexdigest()
    (tmp_path / "cache" / HASHES).write_text(json.dumps(["data/a.bin 0-8", sha256]) + "\n")
    remote = RemoteSet(str(folder), tmp_path / "cache")
    remote.fetch("data/a.bin", tmp_path / "got")
    with pytest.raises(ChangedError):
        remote.fetch("data/a.bin", tmp_path / "got", 0, 8)


def test_a_line_of_hashes_that_was_damaged_costs_no_run_and_is_told(folder, tmp_path, caplog):
    remote = RemoteSet(str(folder), tmp_path / "cache")
    for name in ("data/a.bin", "data/b.bin"):
        remote.fetch(name, tmp_path / "got")
    path = tmp_path / "cache" / HASHES
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        caplog.clear()
        remote = RemoteSet(str(folder), tmp_path / "cache")
        hashes = [remote.hash_of(name) for name in ("data/a.bin", "data/b.bin")]
        is_whole = place < len(content) - 1  # without its end, the last line is one that is being written
        assert told(caplog.text, str(path)) == (None in hashes and is_whole), place
        for name, sha256 in zip(("data/a.bin", "data/b.bin"), hashes, strict=True):
            assert sha256 in (None, hashlib.sha256((folder / name).read_bytes()).hexdigest()), place


def test_a_version_that_a_server_answers_wrongly_once_costs_no_run(folder, tmp_path):
    answers = []

    def headers(path):
        answers.append(path.name)
        return {"ETag": "wrong" if len(answers) == 3 else "right"}  # the first of the check, after the bytes

    with served(folder) as web:
        web.headers = headers
        remote = RemoteSet(web.url, tmp_path / "cache")
        remote.note(["data/a.bin"])
        remote.fetch("data/a.bin", tmp_path / "got")
        assert len(answers) == 4 and remote.hash_of("data/a.bin") is not None


def test_a_server_that_fails_is_asked_for_no_version(folder, tmp_path):
    with served(folder) as web:
        remote = RemoteSet(web.url, tmp_path / "cache")
        remote.note(["data/a.bin"])
        web.methods.clear()
        web.fault = lambda number, name: 503
        with pytest.raises(UnreachableError, match=naming(f"{web.url}/data/a.bin", "HTTP 503")):
            remote.fetch("data/a.bin", tmp_path / "got")
        assert {*web.methods} == {"GET"}


def test_a_place_that_cannot_be_opened_again_is_asked_as_often_as_any_other_and_told_with_the_reason(
    folder, tmp_path, monkeypatch
):
    """Opened as the Hub is, whose commit is asked for: not by every attempt to fetch bytes anew."""
    RemoteSet(str(folder), tmp_path / "cache")
    attempts = []

    def refused(url):
        attempts.append(url)
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    monkeypatch.setattr(manifest, "place_at", refused)
    remote = RemoteSet(str(folder), tmp_path / "cache")
    with pytest.raises(UnreachableError, match=naming(folder, remote_files.ATTEMPTS, "data.episodes.url")):
        remote.fetch("data/a.bin", tmp_path / "got")
    assert len(attempts) == remote_files.ATTEMPTS
