"""Files that appear whole or not at all."""

import contextlib
import errno
import io
import json
import os
import signal
import stat
import threading
from pathlib import Path

import pytest

from dp_prior.files.durable import (
    creating,
    make_directory,
    replace_file,
    replacing,
    sync_directory,
    temporary_directory,
    vacant,
    write_new,
)
from dp_prior.files.json_text import encode_document, seal, unseal
from dp_prior.files.temporary import is_temporary, owner_of, temporary_beside
from tests.messages import naming


def test_a_file_is_replaced_whole_and_its_mode_obeys_the_umask(tmp_path):
    path = tmp_path / "index.json"
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert os.listdir(tmp_path) == ["index.json"]


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failed_replacement_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "index.json"
    replace_file(path, b"old")

    def broken(*arguments):
        raise OSError("no")

    monkeypatch.setattr(os, call, broken)
    with pytest.raises(OSError, match=naming("no")):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["index.json"]


@pytest.mark.parametrize("write", [creating, temporary_directory])
def test_what_killed_processes_left_of_a_target_is_deleted_when_it_is_written_again(tmp_path, monkeypatch, write):
    names = {}
    for name, pid in (("a", 2**31 - 1), ("a", os.getpid()), ("b", 2**31 - 1)):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        names[name, pid] = temporary_beside(tmp_path / name)
        (names[name, pid] / "part").mkdir(parents=True)
        monkeypatch.undo()
    with write(tmp_path / "a") as temporary:
        assert {*tmp_path.iterdir()} - {temporary} == {*names.values()} - {names["a", 2**31 - 1]}
        temporary.touch()


def intercept(patch, call, instead):
    """Call `instead` of one step of `replace_file`. Returns the step's function in `os`."""
    if call == "open":
        patch.setattr("dp_prior.files.durable.open", instead, raising=False)
    elif call == "write":
        patch.setattr("dp_prior.files.durable.open", type("Broken", (io.FileIO,), {"write": instead}), raising=False)
    else:
        function = getattr(os, call)
        patch.setattr(os, call, instead)
        return function


CODES = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EXDEV, errno.EBUSY, errno.EFBIG]


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
@pytest.mark.parametrize("can_clean", [True, False])
def test_an_error_names_the_file_that_was_meant_and_keeps_the_old_content(tmp_path, monkeypatch, call, code, can_clean):
    path = tmp_path / "index.json"
    replace_file(path, b"old")

    def broken(*arguments):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        intercept(patch, call, broken)
        if not can_clean:
            patch.setattr(os, "unlink", lambda path: os.rmdir("/nowhere"))
        with pytest.raises(OSError, match=naming(os.strerror(code))) as failure:
            replace_file(path, b"new")
    assert (failure.value.errno, failure.value.filename) == (code, str(path))
    assert path.read_bytes() == b"old"
    assert not can_clean or os.listdir(tmp_path) == ["index.json"]


def test_a_link_is_replaced_and_what_it_points_to_is_not_touched(tmp_path):
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    for target in (precious, tmp_path / "nowhere", tmp_path / "link"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(target)
        replace_file(tmp_path / "link", b"new")
        assert not (tmp_path / "link").is_symlink() and (tmp_path / "link").read_bytes() == b"new"
    assert precious.read_bytes() == b"mine" and sorted(os.listdir(tmp_path)) == ["link", "precious"]


def test_a_directory_in_the_way_is_an_error_and_stays(tmp_path):
    (tmp_path / "index.json").mkdir()
    with pytest.raises(IsADirectoryError) as failure:
        replace_file(tmp_path / "index.json", b"new")
    assert failure.value.filename == str(tmp_path / "index.json")
    assert os.listdir(tmp_path) == ["index.json"]
    with pytest.raises(FileNotFoundError, match=naming("nowhere/index.json", 2)):
        replace_file(tmp_path / "nowhere" / "index.json", b"new")


def test_signals_interrupt_no_write(tmp_path):
    """EINTR at any call: the file is whole all the same."""
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *arguments: rang.append(True))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for number in range(50):
            replace_file(tmp_path / "file", bytes([number]) * 1_000_000)
            assert (tmp_path / "file").read_bytes() == bytes([number]) * 1_000_000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rang and os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("call", ["open", "write", "fsync", "rename"])
def test_an_exception_in_a_signal_handler_leaves_no_temporary_file(tmp_path, monkeypatch, call):
    def interrupted(*arguments):
        if call not in ("open", "write"):
            function(*arguments)
        raise KeyboardInterrupt

    function = intercept(monkeypatch, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == (["file"] if call == "rename" else [])


ODD = [
    *[b"a b", b"-rf", b"new\nline", b"\xff\xfe", "\u00e4\u4e2d".encode(), b"%s", b".tmp_a_1_01234567_b"],
    *[b"x" * 255, "\u4e2d".encode() * 85],
]


@pytest.mark.parametrize("name", ODD)
def test_names_of_any_bytes_and_length(tmp_path, name):
    path = tmp_path / os.fsdecode(name)
    replace_file(path, b"new")
    assert os.listdir(os.fsencode(tmp_path)) == [name]
    temporary = temporary_beside(path)
    assert is_temporary(temporary) and owner_of(temporary)[1] == os.getpid()
    assert len(os.fsencode(temporary.name)) <= 255 and os.fsencode(temporary.name).endswith(name[-20:])
    make_directory(temporary)
    document = {"path": str(path)}
    assert json.loads(encode_document(document)) == document == unseal(seal(document))


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS], ids=errno.errorcode.get)
def test_a_file_system_that_cannot_sync_directories_is_used_all_the_same(tmp_path, monkeypatch, code):
    fsync = os.fsync

    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def test_a_directory_that_cannot_be_synced_is_an_error_that_names_it(tmp_path, monkeypatch, code):
    def refuse(descriptor):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=naming(os.strerror(code))) as failure:
        sync_directory(tmp_path)
    assert (failure.value.errno, failure.value.filename) == (code, str(tmp_path))


def test_every_new_directory_is_made_durable_in_its_parent(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("dp_prior.files.durable.sync_directory", synced.append)
    make_directory(tmp_path / "a" / "b" / "c")
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_directory(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for path, code in {"file": errno.EEXIST, "file/a": errno.ENOTDIR, "nowhere": errno.EEXIST}.items():
        with pytest.raises(OSError, match=naming(os.strerror(code), tmp_path / path)):
            make_directory(tmp_path / path)


def test_a_place_for_a_folder_is_new_or_empty_and_can_be_replaced(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    assert vacant(tmp_path / "empty") == tmp_path / "empty" and vacant(tmp_path / "a/b") == tmp_path / "a/b"
    assert sorted(os.listdir(tmp_path)) == ["a", "full"]
    (tmp_path / "a/c").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a/c")
    (tmp_path / "lost").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path / "a/c")
    for place, remedy in (
        (".", "new folder"),
        (tmp_path / "link", "new folder"),
        (tmp_path / "full", "another folder"),
        (tmp_path / "lost", "another folder"),
    ):
        with pytest.raises(FileExistsError, match=naming(place, remedy)):
            vacant(place)
    with pytest.raises(FileExistsError, match=naming("file exists", "another folder")):
        vacant(tmp_path / "full/file/inside/it")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "a/c").is_dir()


def test_a_new_file_gets_its_folders_and_replaces_nothing(tmp_path):
    write_new(tmp_path / "a/b/c.json", "{}")
    assert (tmp_path / "a/b/c.json").read_text() == "{}"
    places = {"a/b/c.json": "c.json", "a/b/c.json/d": "c.json", "a/b/c.json/d/e": "c.json", "a/b": "b"}
    for place, found in places.items():
        with pytest.raises(FileExistsError, match=naming(f"{found} exists", "another file")):
            write_new(tmp_path / place, "new")
    assert (tmp_path / "a/b/c.json").read_text() == "{}"


def test_a_new_file_that_cannot_be_written_whole_is_not_there_and_the_error_names_it(tmp_path, monkeypatch):
    def cut(self, text, **how):
        with open(self, "w", **how) as file:
            file.write(text[:2])
        raise OSError(errno.ENOSPC, "no room", str(self))

    monkeypatch.setattr(Path, "write_text", cut)
    with pytest.raises(OSError) as found:
        write_new(tmp_path / "cfg.json", '{"a": 1}')
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(tmp_path / "cfg.json"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_never_takes_the_place_of_one_that_another_process_writes_meanwhile(
    tmp_path, monkeypatch, has_links
):
    if not has_links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links")))
    with creating(tmp_path / "new.npz") as temporary:
        temporary.write_text("ours")
    with (
        pytest.raises(FileExistsError, match=naming("link.npz exists", "another file")),
        creating(tmp_path / "link.npz") as temporary,
    ):
        temporary.write_text("ours")
        (tmp_path / "link.npz").symlink_to("nowhere")
    assert sorted(os.listdir(tmp_path)) == ["link.npz", "new.npz"] and (tmp_path / "new.npz").read_text() == "ours"
    assert os.readlink(tmp_path / "link.npz") == "nowhere"


@pytest.mark.parametrize("how", [replacing, creating, temporary_directory])
def test_a_full_disk_whose_error_names_no_file_is_told_with_the_place(how, tmp_path):
    with pytest.raises(OSError) as found, how(tmp_path / "set"):
        raise OSError(errno.ENOSPC, "Error writing bytes to file")
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, str(tmp_path / "set"))
    assert found.value.strerror == os.strerror(errno.ENOSPC) and not list(tmp_path.iterdir())
    for other in (OSError(errno.ENOSPC, "full", "/elsewhere"), OSError(errno.EIO, "of the source"), OSError("own")):
        with pytest.raises(OSError) as found, how(tmp_path / "set"):
            raise other
        assert found.value is other


def test_a_folder_that_threads_of_a_library_still_fill_after_its_error_is_removed(tmp_path):
    def fill(folder):
        while not is_over.wait(0.001):
            with contextlib.suppress(OSError):
                (folder / "data").mkdir(parents=True, exist_ok=True)
                (folder / "data" / "chunk").touch()

    is_over = threading.Event()
    with pytest.raises(OSError), temporary_directory(tmp_path / "set") as temporary:
        writer = threading.Thread(target=fill, args=(temporary,))
        writer.start()
        threading.Timer(0.1, is_over.set).start()
        raise OSError(errno.ENOSPC, "full")
    writer.join()
    assert not list(tmp_path.iterdir())
