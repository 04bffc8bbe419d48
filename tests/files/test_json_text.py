"""Documents as JSON text, sealed or not."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.files.json_text import encode_document, readable_json, seal, unseal
from tests.cases import every
from tests.messages import naming

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text().filter(lambda key: key != "sha256"), JSON, max_size=4))
def test_unseal_reverses_seal_and_seal_is_plain_json(content):
    data = seal(content)
    assert unseal(data) == content
    assert json.loads(data).keys() == {*content, "sha256"}


@given(JSON)
def test_readable_json_is_the_same_content_in_letters_that_utf8_holds(content):
    for indent in (None, 2):
        assert json.loads(readable_json(content, indent).encode()) == content
    assert readable_json({"путь": "機\udcff"}) == '{"путь": "機\\udcff"}'


@every(data=[b"", b"{}", b"[]", b"null", b"[" * 100_000, b'{"sha256": 1}', b"\xff"])
def test_what_is_not_sealed_is_refused(data):
    with pytest.raises(ValueError, match=naming("SHA-256" if data.startswith(b'{"') else "JSON")):
        unseal(data)


def test_numbers_that_json_lacks_become_null():
    assert json.loads(encode_document({"a": [float("nan"), (1, float("inf"))]})) == {"a": [None, [1, None]]}


def test_a_damaged_document_is_not_parsed(monkeypatch):
    data = seal({"a": 1})
    monkeypatch.setattr("json.loads", None)
    for damaged in (data.replace(b"1,", b"2,"), data[:-1], data + b" ", b" " + data):
        with pytest.raises(ValueError, match=naming("SHA-256")):
            unseal(damaged)
