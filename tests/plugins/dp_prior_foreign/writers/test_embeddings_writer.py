"""Folders of embeddings appear complete or not at all, go on where they stopped, and never mix two models."""

import socket

import numpy as np
import pytest

from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.written import EmbeddingsRecord, read_record
from dp_prior.embedders.hashed import HashedConfig
from dp_prior.embedders.transformers import TransformersConfig
from dp_prior_foreign.writers import embeddings_writer
from dp_prior_foreign.writers.embeddings_writer import Job, write_embeddings
from tests.messages import naming

N = 10
VALUES = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(embeddings_writer, "ROWS_WRITTEN", 4)


def job(calls=None, die_at=None, embedder=None, source="a", rows=N):
    def embed(first, stop):
        if first == die_at:
            raise KeyboardInterrupt
        (calls if calls is not None else []).append((first, stop))
        return VALUES[first:stop]

    record = EmbeddingsRecord(
        embedder=embedder or HashedConfig(), source={"texts": "text", "sha256": source}, rows=rows
    )
    return Job(record, {"text": [f"text {i}" for i in range(rows)], "id": np.arange(rows)}, embed)


def read(folder):
    opened = FolderConfig(path=str(folder), format="parquet").create()
    (part,) = [{**part} for part in opened.columns(["text", "id"])] if opened.count < 5 else [None]
    ids = np.concatenate([part["id"] for part in opened.columns(["id"])])
    return opened.rows.read(0, opened.count), ids


def test_rows_and_columns_come_back(tmp_path):
    lines = []
    assert write_embeddings(tmp_path / "e", job(), lines.append)
    values, ids = read(tmp_path / "e")
    np.testing.assert_array_equal(values, VALUES)
    np.testing.assert_array_equal(ids, np.arange(N))
    assert read_record(tmp_path / "e") == job().record and lines[-1] == "10 of 10 rows"
    calls = []
    assert not write_embeddings(tmp_path / "e", job(calls)) and not calls


def test_an_interrupted_job_is_not_there_and_goes_on_where_it_stopped(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_embeddings(tmp_path / "e", job(die_at=8))
    dead = ".tmp_localhost_99999999999_0123abcd_part_000002.parquet"
    (tmp_path / ".e.unfinished" / dead.replace("localhost", socket.gethostname())).touch()
    assert not (tmp_path / "e").exists()
    calls = []
    write_embeddings(tmp_path / "e", job(calls))
    assert calls == [(8, 10)]
    np.testing.assert_array_equal(read(tmp_path / "e")[0], VALUES)
    assert [path.name for path in tmp_path.iterdir()] == ["e"]
    assert len(list((tmp_path / "e").iterdir())) == 4


def test_a_second_process_of_the_same_job_is_refused_and_leaves_the_first_alone(tmp_path):
    class Twice(dict):
        """Columns of which a second process wants a part while the first writes."""

        def items(self):
            with pytest.raises(FileExistsError, match=naming("another process", ".e.unfinished", "wait")):
                write_embeddings(tmp_path / "e", job())
            return super().items()

    first = job()
    assert write_embeddings(tmp_path / "e", Job(first.record, Twice(first.columns), first.embed))
    np.testing.assert_array_equal(read(tmp_path / "e")[0], VALUES)
    assert [path.name for path in tmp_path.iterdir()] == ["e"]


OTHERS = {"embedder": {"embedder": HashedConfig(dimension=8)}, "source": {"source": "b"}, "rows": {"rows": 9}}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("is_finished", [True, False])
def test_another_job_is_refused(tmp_path, what, is_finished):
    if is_finished:
        write_embeddings(tmp_path / "e", job())
    else:
        with pytest.raises(KeyboardInterrupt):
            write_embeddings(tmp_path / "e", job(die_at=4))
    with pytest.raises(FileExistsError, match=naming(what, "another folder" if is_finished else "delete")):
        write_embeddings(tmp_path / "e", job(**OTHERS[what]))
    write_embeddings(tmp_path / "e", job())


def test_the_same_model_elsewhere_is_the_same_job(tmp_path):
    here, there = (TransformersConfig(model=name, sha256="f" * 64) for name in ("here", "there"))
    write_embeddings(tmp_path / "e", job(embedder=here))
    assert not write_embeddings(tmp_path / "e", job(embedder=there))


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "e").mkdir()
    assert read_record(tmp_path / "e") is None
    with pytest.raises(FileExistsError, match=naming(tmp_path / "e", "embedder.json")):
        write_embeddings(tmp_path / "e", job())


@pytest.mark.parametrize(("room", "expected"), [(24, [2, 2]), (35, [2, 2]), (36, [3, 1]), (0, [1] * 4), (1 << 20, [4])])
def test_a_row_group_has_the_rows_that_fit_its_bytes(tmp_path, monkeypatch, room, expected):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(embeddings_writer, "GROUP_BYTES", room)  # a row takes 12
    write_embeddings(tmp_path / "e", job())
    stored = parquet.ParquetFile(tmp_path / "e" / "part_000000.parquet").metadata
    assert [stored.row_group(number).num_rows for number in range(stored.num_row_groups)] == expected
