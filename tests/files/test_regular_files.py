"""Reading small files: nothing blocks, nothing large is read."""

import os
import socket
from pathlib import Path

import pytest

from dp_prior.files.regular_files import UnfitError, expanded, open_regular, read_small
from tests.messages import naming


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (os.mkfifo, "named pipe"),
        (os.mkdir, "folder"),
        (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "socket"),
        (lambda path: os.symlink("/dev/zero", path), "device"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(make, problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    make("file")
    for read in (open_regular, read_small):
        with pytest.raises(UnfitError, match=naming("file", problem)):
            read("file")


@pytest.mark.parametrize("size", [0, 1, 7, 8])
def test_small_file_is_read_whole(size, tmp_path):
    (tmp_path / "file").write_bytes(bytes(size))
    assert read_small(tmp_path / "file", 8) == bytes(size)


def test_larger_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(bytes(9))
    with pytest.raises(UnfitError, match=naming("file", "9 bytes", 8)):
        read_small(tmp_path / "file", 8)


def test_file_without_a_size_of_its_own_is_read_up_to_the_bound():
    with pytest.raises(UnfitError, match=naming("/proc/self/status", "6 bytes", 5)):
        read_small("/proc/self/status", 5)


def test_missing_file_is_an_error_of_the_system_that_names_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=naming(tmp_path / "nothing")):
        read_small(tmp_path / "nothing")


def test_a_tilde_is_the_home_directory_and_before_a_name_that_no_user_has_a_letter(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expanded("~/data") == expanded(Path("~/data")) == tmp_path / "data"
    assert [str(expanded(name)) for name in ("a/~", "~nobody-has-this/x", "")] == ["a/~", "~nobody-has-this/x", "."]


def test_a_user_without_a_home_directory_is_told_so(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(FileNotFoundError, match=naming("~/data", "HOME")):
        expanded("~/data")


def test_a_variable_is_replaced_where_no_file_has_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LARGE_DISK", str(tmp_path / "disk"))
    monkeypatch.setenv("PRICE", "a$b")
    for name in ("$LARGE_DISK/runs/a", "${LARGE_DISK}/runs/a"):
        assert expanded(name) == tmp_path / "disk/runs/a"
    assert str(expanded("below/x-$PRICE/$LARGE_DISK")) == f"below/x-a$b{tmp_path}/disk"  # as in a shell
    (tmp_path / "$LARGE_DISK").mkdir()
    assert [str(expanded(name)) for name in ("$LARGE_DISK/a", "cost$/a", "$", "a$-b")] == [
        *("$LARGE_DISK/a", "cost$/a", "$", "a$-b")
    ]


@pytest.mark.parametrize("name", ["$NOT_SET_HERE/a", "a/x-${NOT_SET_HERE}"])
def test_a_variable_that_is_not_set_is_named(monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=naming(name, "NOT_SET_HERE")):
        expanded(name)


def test_paths_of_users_are_expanded_in_one_place():
    root = Path(__file__).parents[2] / "dp_prior"
    others = [
        path for path in root.rglob("*.py") if ".expanduser()" in path.read_text() and path.name != "regular_files.py"
    ]
    assert not others
