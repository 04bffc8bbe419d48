"""A folder belongs to one comparison; the comparisons and trials that claim it are tested with them."""

import errno
import fcntl
import json
import os
from unittest.mock import Mock

import pytest

from dp_prior.commands.claim import PLAYERS, claim, held
from dp_prior.config import ConfigError
from tests.messages import naming

IDENTITY = {"policies": {"b": {"files": 1}, "a": {"files": 2}}, "range": [0, 1]}


def test_the_names_are_those_of_the_first_call(tmp_path):
    turned = {**IDENTITY, "policies": dict(reversed(IDENTITY["policies"].items()))}
    assert claim(tmp_path / "out", IDENTITY) == claim(tmp_path / "out", turned) == ["b", "a"]
    assert json.loads((tmp_path / "out" / PLAYERS).read_text()) == IDENTITY


def test_what_differs_is_named(tmp_path):
    claim(tmp_path, IDENTITY)
    for change, parts in (
        ({"range": [0, 2]}, ["range [0, 1]"]),
        ({"policies": {"b": {"files": 1}}}, ["b, a"]),
        ({"policies": {"b": {"files": 1}, "a": {"files": 3}}}, ["a", "files"]),
    ):
        with pytest.raises(ConfigError, match=naming(tmp_path, *parts, "--out")):
            claim(tmp_path, {**IDENTITY, **change})


def test_one_policy_under_two_names_is_refused(tmp_path):
    policies = {"one": {"files": 1}, "third": {"files": 2}, "other": {"files": 1}}
    with pytest.raises(ConfigError, match=naming("other", "one;")):
        claim(tmp_path, {"policies": policies})
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "out").touch()
    with pytest.raises(FileExistsError, match=naming(tmp_path / "out", "--out")):
        claim(tmp_path / "out", IDENTITY)


def test_one_process_holds_it(tmp_path):
    with held(tmp_path), pytest.raises(FileExistsError, match=naming(tmp_path, "--out")):
        held(tmp_path)
    held(tmp_path).release()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    with pytest.raises(ConfigError, match=naming("--out", tmp_path, os.strerror(errno.ENOLCK), "flock")):
        held(tmp_path)
