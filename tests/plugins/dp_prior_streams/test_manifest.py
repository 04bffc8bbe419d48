import json

import pytest

from dp_prior.data.errors import ChangedError, DataError
from dp_prior_streams import remote_files
from dp_prior_streams.manifest import HASHES, MANIFEST, RemoteSet
from tests.messages import naming
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


def test_a_file_of_another_size_is_refused_before_it_was_ever_hashed(folder, tmp_path):
    remote = RemoteSet(str(folder), tmp_path / "cache")
    (folder / "data/a.bin").write_bytes(b"a" * 1000)
    with pytest.raises(ChangedError, match=naming("data/a.bin", "1,000", "900")):
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
