"""Which run it is: kept in its directory, inherited from its checkpoint, changed only on request."""

import json

import pytest

from dp_prior.tracking.identity import IDENTITY, RunIdentity, claim_identity


def test_a_new_run_gets_an_id_and_the_name_of_its_directory_and_keeps_both(tmp_path):
    first = claim_identity(tmp_path / "pusht")
    assert first.name == "pusht" and len(first.id) == 8
    before = (tmp_path / "pusht" / IDENTITY).read_bytes()
    assert claim_identity(tmp_path / "pusht") == first
    assert (tmp_path / "pusht" / IDENTITY).read_bytes() == before
    assert claim_identity(tmp_path / "other").id != first.id


def test_it_moves_with_its_directory(tmp_path):
    first = claim_identity(tmp_path / "here")
    (tmp_path / "here").rename(tmp_path / "there")
    assert claim_identity(tmp_path / "there") == first


def test_on_a_fresh_machine_the_checkpoint_tells_and_the_directory_goes_first_later(tmp_path):
    inherited = {"id": "abcd1234", "name": "pusht"}
    assert claim_identity(tmp_path, inherited=inherited) == RunIdentity("abcd1234", "pusht")
    assert claim_identity(tmp_path, inherited={"id": "other", "name": "x"}) == RunIdentity("abcd1234", "pusht")


def test_what_is_asked_for_goes_first_and_is_kept(tmp_path):
    claim_identity(tmp_path, inherited={"id": "a", "name": "b"})
    assert claim_identity(tmp_path, run_id="mine") == RunIdentity("mine", "b")
    assert claim_identity(tmp_path, name="called") == RunIdentity("mine", "called")
    assert claim_identity(tmp_path) == RunIdentity("mine", "called")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 3, "name": "b"}', '{"id": "a/b", "name": "b"}', '{"id": "a"}'])
def test_a_file_that_cannot_be_read_counts_as_none(tmp_path, text):
    (tmp_path / IDENTITY).write_text(text)
    found = claim_identity(tmp_path)
    assert json.loads((tmp_path / IDENTITY).read_text()) == {"id": found.id, "name": tmp_path.name}
