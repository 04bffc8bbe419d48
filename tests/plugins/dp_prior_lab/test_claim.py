"""A folder belongs to one comparison; the comparisons and trials that claim it are tested with them."""

import errno
import fcntl
import json
import os
import socket
import subprocess
from unittest.mock import Mock

import pytest

from dp_prior.config import ConfigError
from dp_prior.files.temporary import temporary_beside
from dp_prior_lab.claim import PLAYERS, claim, held
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
        ({"policies": {"b": {"files": 1}, "a": {"files": 2, "env": {"type": "toy"}}}}, ["a", "env;"]),
        ({"policies": {"b": {}, "a": {"files": 2}}}, ["b", "files;"]),
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


def test_what_a_killed_process_left_half_written_is_no_other_work_and_is_deleted(tmp_path):
    places = [tmp_path / name for name in ("", "round_1", "round_1/lost", "round_1/run")]
    for place in places:
        place.mkdir(exist_ok=True)
    (killed := subprocess.Popen(["true"])).wait()
    for host, pid in ((socket.gethostname(), killed.pid), ("another-host", 1)):
        left = [place / f".tmp_{host}_{pid}_0123abcd_{PLAYERS}" for place in places]
        for path in left:
            path.touch()
        held(tmp_path, "round_*", "round_*/lost").release()
        assert [path.exists() for path in left] == [False, False, False, True]
        (out := tmp_path / host).mkdir()
        left[-1].rename(out / left[-1].name)
        claim(out, IDENTITY)
        assert [path.name for path in out.iterdir()] == [PLAYERS]


def test_a_folder_that_a_process_claims_now_is_not_claimed(tmp_path):
    temporary_beside(tmp_path / PLAYERS).touch()
    with pytest.raises(FileExistsError, match=naming(tmp_path, "--out")):
        claim(tmp_path, IDENTITY)


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    with pytest.raises(ConfigError, match=naming("--out", tmp_path, os.strerror(errno.ENOLCK), "flock")):
        held(tmp_path)


def test_a_folder_that_another_process_claims_or_holds_is_left_to_it(tmp_path):
    """Two first calls at once: the second one neither deletes what the first writes, nor fails on a missing file."""
    out = tmp_path / "out"
    out.mkdir()
    with held(out), pytest.raises(FileExistsError, match=naming("another process", out, "--out")):
        claim(out, IDENTITY)
    assert not list(out.iterdir())
    written = []

    def write_while_held(path, data):
        with pytest.raises(FileExistsError, match=naming("another process")):
            held(out)
        written.append(path)
        path.write_bytes(data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dp_prior_lab.claim.replace_file", write_while_held)
        claim(out, IDENTITY)
    assert written == [out / PLAYERS] and claim(out, IDENTITY) == ["b", "a"]
