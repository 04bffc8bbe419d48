"""Files that appear whole or not at all."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.durable import (
    encode_document,
    exchange,
    is_alive,
    is_temporary,
    owner_of,
    replace_file,
    seal,
    temporary_beside,
    unseal,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


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
    with pytest.raises(OSError, match="no"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["index.json"]


def test_a_temporary_name_tells_whose_it_is(tmp_path):
    path = temporary_beside(tmp_path / "step_00000001")
    assert is_temporary(path) and path.parent == tmp_path
    host, pid = owner_of(path)
    assert pid == os.getpid() and is_alive(host, pid)
    assert not is_temporary(tmp_path / "step_00000001")
    assert temporary_beside(path) != temporary_beside(path)


def test_a_dead_process_is_dead_and_one_elsewhere_is_unknown(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    host, _ = owner_of(temporary_beside(tmp_path))
    assert is_alive(host, child) is False
    assert is_alive("elsewhere", child) is None
    assert is_alive(host, 1) is True


@pytest.mark.parametrize("can_swap", [True, False])
def test_exchange_swaps_directories(tmp_path, monkeypatch, can_swap):
    if not can_swap:
        monkeypatch.setattr("ctypes.CDLL", lambda *arguments, **options: object())
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "file").read_text() == "other"
    assert (tmp_path / "other" / "file").read_text() == "one"
    assert sorted(os.listdir(tmp_path)) == ["one", "other"]


@given(st.dictionaries(st.text().filter(lambda key: key != "sha256"), JSON, max_size=4))
def test_unseal_reverses_seal_and_seal_is_plain_json(content):
    data = seal(content)
    assert unseal(data) == content
    assert json.loads(data).keys() == {*content, "sha256"}


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"sha256": 1}', b"\xff"])
def test_what_is_not_sealed_is_refused(data):
    with pytest.raises(ValueError, match="sealed|hash it states"):
        unseal(data)


def test_numbers_that_json_lacks_become_null():
    assert json.loads(encode_document({"a": [float("nan"), (1, float("inf"))]})) == {"a": [None, [1, None]]}
