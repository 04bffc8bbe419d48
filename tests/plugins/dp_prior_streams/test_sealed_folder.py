import errno
import json
import os
import shutil

import pytest

from dp_prior.data.errors import UnreadableError
from dp_prior_streams import sealed_folder
from dp_prior_streams.sealed_folder import SIZES, SealedFolder, seal_folder
from tests.messages import naming, told
from tests.plugins.dp_prior_streams.damages import DAMAGES, rot


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "part"
    (path / "deep").mkdir(parents=True)
    (path / "a").write_bytes(bytes(range(256)) * 100)
    (path / "deep/b").write_bytes(b"b" * 3000)
    seal_folder(path, "part")
    return path


@pytest.fixture
def read_files(monkeypatch):
    """The files whose every byte was read."""
    paths, sha256 = [], sealed_folder._sha256
    monkeypatch.setattr(sealed_folder, "_sha256", lambda path: (paths.append(path.name), sha256(path))[1])
    return paths


def test_a_sealed_folder_is_read_where_hashes_are_asked_for_and_otherwise_not(folder, read_files):
    sealed = SealedFolder(folder, "part")
    assert sealed.fault("sizes") is None and sealed.is_current() and not read_files
    for _ in range(3):
        assert SealedFolder(folder, "part").fault("hashes") is None
    assert read_files == ["a", "b"] * 3 and sealed.hashes.keys() == {"a", "deep/b"}
    assert sealed.fault("hashes") is None and len(read_files) == 6  # at the first check alone


@pytest.mark.parametrize("verify", ["sizes", "hashes"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_other_bytes_of_the_same_size_are_a_fault_before_and_after_the_first_check(folder, damage, verify):
    before = SealedFolder(folder, "part")
    assert before.fault(verify) is None and not before.is_changed()
    size = (folder / "a").stat().st_size
    DAMAGES[damage](folder / "a")
    assert (folder / "a").stat().st_size == size and before.is_changed()
    for sealed in (before, SealedFolder(folder, "part")):
        assert told(sealed.fault(verify), "a", "SHA-256") and sealed.fault(verify) is not None


def test_a_bit_that_a_disk_flips_without_a_trace_is_seen_by_hashes_and_by_who_cannot_read_it(folder):
    rot(folder / "a", folder / SIZES)
    sealed = SealedFolder(folder, "part")
    assert sealed.fault("sizes") is None and SealedFolder(folder, "part").fault("hashes") is not None
    assert told(sealed.doubt(), "a", "SHA-256") and sealed.fault("sizes") is not None
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "a").write_bytes(b"new")
    seal_folder(folder, "part")
    assert sealed.fault("sizes") is None


@pytest.mark.parametrize("change", ["copied", "touched", "linked"])
def test_the_same_bytes_with_other_times_are_read_once_and_noted(folder, change, read_files):
    if change == "copied":
        shutil.copytree(folder, folder.with_name("copy"))
        shutil.rmtree(folder)
        folder.with_name("copy").rename(folder)
    elif change == "touched":
        os.utime(folder / "a", (1, 1))
    else:
        os.link(folder / "a", folder.with_name("link"))
    assert SealedFolder(folder, "part").fault("sizes") is None and "a" in read_files
    read_files.clear()
    assert SealedFolder(folder, "part").fault("sizes") is None and not read_files


def test_a_document_that_cannot_be_written_again_is_no_fault(folder, monkeypatch):
    def refuse(path, data):
        raise PermissionError

    os.utime(folder / "a", (1, 1))
    monkeypatch.setattr(sealed_folder, "replace_file", refuse)
    sealed = SealedFolder(folder, "part")
    assert sealed.fault("sizes") is None and sealed.is_current()


@pytest.mark.parametrize(("code", "is_fault"), [(errno.EACCES, False), (errno.EMFILE, False), (errno.EIO, True)])
def test_a_file_that_the_system_refuses_is_no_damaged_file_unless_another_in_its_place_would_be_read(
    folder, monkeypatch, code, is_fault
):
    def refused(path):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(sealed_folder, "_stamp", refused)
    if is_fault:
        assert os.strerror(code) in SealedFolder(folder, "part").fault("sizes")
        return
    with pytest.raises(UnreadableError, match=naming(folder / "a", os.strerror(code))):
        SealedFolder(folder, "part").fault("sizes")


def _another_document(path):
    path.write_bytes(sealed_folder.seal({"format": 1, "statistics": {}}))


DOCUMENTS = {
    "a flipped bit": DAMAGES["a flipped bit"],
    "cut": lambda path: os.truncate(path, 50),
    "empty": lambda path: os.truncate(path, 0),
    "missing": lambda path: path.unlink(),
    "of an older version": lambda path: path.write_text(json.dumps({"a": 25600, "deep/b": 3000})),
    "another document": _another_document,
    "no text": lambda path: path.write_bytes(bytes(range(256))),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DOCUMENTS)
def test_a_document_that_proves_nothing_is_a_fault(folder, damage):
    DOCUMENTS[damage](folder / SIZES)
    assert told(SealedFolder(folder, "part").fault("sizes"), SIZES)


def test_a_flipped_bit_of_any_byte_of_a_document_is_a_fault(folder):
    content = (folder / SIZES).read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (folder / SIZES).write_bytes(damaged)
        assert SealedFolder(folder, "part").fault("sizes") is not None, place


@pytest.mark.parametrize("file", ["a", "deep/b"])
def test_a_file_that_is_missing_or_no_file_is_a_fault_by_name(folder, file):
    (folder / file).unlink()
    assert told(SealedFolder(folder, "part").fault("sizes"), file.rpartition("/")[2])
    (folder / file).mkdir()
    assert SealedFolder(folder, "part").fault("hashes") is not None


def test_a_folder_under_the_name_of_another_one_is_a_fault(folder):
    folder.rename(folder.with_name("other"))
    fault = SealedFolder(folder.with_name("other"), "other").fault("sizes")
    assert told(fault, SIZES, "part")


def test_a_folder_that_is_removed_is_missing_and_what_was_opened_of_it_unchanged(folder):
    sealed = SealedFolder(folder, "part")
    assert sealed.fault("sizes") is None
    shutil.rmtree(folder)
    assert sealed.fault("sizes") is not None and not sealed.is_current() and not sealed.is_changed()


def test_a_file_that_cannot_be_read_is_a_fault(folder, monkeypatch):
    def refuse(path):
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(sealed_folder, "_sha256", refuse)
    assert told(SealedFolder(folder, "part").fault("hashes"), folder / "a", "Input/output error")


def test_a_write_in_the_moment_after_the_folder_was_sealed_is_seen(tmp_path):
    """The clock of a file system counts milliseconds."""
    for number in range(20):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "a").write_bytes(b"before")
        seal_folder(path, "part")
        (path / "a").write_bytes(b"behind")
        assert SealedFolder(path, "part").fault("sizes") is not None
