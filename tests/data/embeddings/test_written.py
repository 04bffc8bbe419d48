"""The record of a folder of embeddings is read whole or refused, and says when texts were cut."""

import pytest

from dp_prior.data.embeddings.written import RECORD, EmbeddingsRecord, cut_warnings, read_record
from dp_prior.data.errors import DataError
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.files.json_text import seal
from tests.messages import naming, told

RECORDED = EmbeddingsRecord(embedder=HashedConfig(), source={"texts": "text", "sha256": "a"}, rows=7)


def test_a_record_comes_back_and_a_folder_of_another_program_has_none(tmp_path):
    assert read_record(tmp_path) is None
    for record in (RECORDED, RECORDED.model_copy(update={"cut": 2})):
        (tmp_path / RECORD).write_bytes(seal(record.model_dump(mode="json")))
        assert read_record(tmp_path) == record


def test_a_damaged_record_is_refused(tmp_path):
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(DataError, match=naming(RECORD, "SHA-256")):
        read_record(tmp_path)


def test_texts_that_were_cut_are_counted():
    assert cut_warnings(None, "here") == cut_warnings(RECORDED, "here") == []
    [line] = cut_warnings(RECORDED.model_copy(update={"cut": 2}), "here")
    assert told(line, "here", 2, 7)
