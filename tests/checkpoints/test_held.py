"""A held directory is found again after a move, and its loss is noticed."""

import os
import shutil

import pytest

from dp_prior.checkpoints.errors import CheckpointError
from dp_prior.checkpoints.held import HeldDirectory
from tests.messages import naming


@pytest.fixture
def held(tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    held = HeldDirectory(directory)
    held.open()
    yield held
    held.close()


def test_a_directory_that_stays_is_its_path(held):
    (held.path / "file").write_text("")
    held.check()
    assert held.current() == held.path


def test_a_moved_one_is_an_error_that_names_the_path_and_is_still_reached(held, tmp_path):
    held.path.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=naming(held.path)):
        held.check()
    (held.current() / "exit.json").write_text("{}")
    assert (tmp_path / "elsewhere" / "exit.json").read_text() == "{}"
    (tmp_path / "elsewhere").rename(held.path)
    held.check()


def test_another_directory_at_the_path_is_not_the_one_that_is_held(held, tmp_path):
    held.path.rename(tmp_path / "elsewhere")
    held.path.mkdir()
    with pytest.raises(CheckpointError, match=naming(held.path)):
        held.check()
    assert os.path.samefile(held.current(), tmp_path / "elsewhere")


def test_a_deleted_one_cannot_be_reached(held):
    shutil.rmtree(held.path)
    with pytest.raises(CheckpointError):
        held.check()
    assert held.current() is None


def test_what_is_not_held_is_not_watched(held):
    held.close()
    held.close()
    shutil.rmtree(held.path)
    held.check()
    assert held.current() == held.path


def test_a_network_disk_that_stalls_is_not_gone(held, monkeypatch):
    def stall(*arguments, **options):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "stat", stall)
    held.check()
