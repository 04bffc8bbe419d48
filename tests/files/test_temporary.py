"""Temporary names tell whose they are."""

import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from dp_prior.files.temporary import is_alive, is_temporary, owner_of, remove_leftovers, temporary_beside
from tests.messages import told


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


def test_a_process_of_another_user_lives(tmp_path, monkeypatch):
    host, pid = owner_of(temporary_beside(tmp_path))
    monkeypatch.setattr(os, "kill", Mock(side_effect=PermissionError))
    assert is_alive(host, pid) is True


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_leftover_that_another_deletes_is_passed_over_and_one_that_stays_told(tmp_path, monkeypatch, caplog, is_gone):
    path = temporary_beside(tmp_path / "a")
    path.write_text("")
    code = errno.ENOENT if is_gone else errno.EACCES
    monkeypatch.setattr(Path, "unlink", Mock(side_effect=OSError(code, os.strerror(code))))
    remove_leftovers(tmp_path, is_stale=lambda host, pid: True)
    assert told(caplog.text, path, os.getpid(), os.strerror(code)) != is_gone


@pytest.mark.parametrize("pid", [0, -1, -(10**30), 2**31, 2**63, 10**30])
def test_a_number_that_no_process_can_have_is_dead(tmp_path, pid):
    host, _ = owner_of(temporary_beside(tmp_path))
    assert is_alive(host, pid) is False
