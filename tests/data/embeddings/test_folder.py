"""Any range of rows of the three formats, local and behind a URL; and every fault is named."""

import errno
import os

import numpy as np
import pytest

from dp_prior.config import ConfigError
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.errors import DataError, UnreadableError
from tests.data.embeddings.folders import COUNTS, assert_reads, embeddings, remote, write_npy, write_parquet
from tests.messages import naming


def test_arrays_and_metadata_behind_urls(tmp_path):
    rows = embeddings(19)
    place = remote(write_npy(tmp_path / "img", rows, COUNTS), "pairs_img")
    table = remote(write_parquet(tmp_path / "meta", {"n": np.arange(19)}, COUNTS), "pairs_meta")
    record = FolderConfig(path=place, format="parquet_npy", metadata=table)
    assert_reads(record, rows)
    found = np.concatenate([part["n"] for part in record.create().columns(["n"])])
    assert found.tolist() == list(range(19))


def test_it_reads_what_embedding_reader_reads(tmp_path):
    from embedding_reader import EmbeddingReader

    rows = embeddings(19)
    img = str(write_npy(tmp_path / "img", rows, COUNTS))
    meta = str(write_parquet(tmp_path / "meta", {"caption": np.array([f"c{i}" for i in range(19)])}, COUNTS))
    table = str(write_parquet(tmp_path / "table", {"embedding": rows}, COUNTS))
    for record, reader in (
        (FolderConfig(path=img), EmbeddingReader(img, "npy")),
        (FolderConfig(path=table, format="parquet"), EmbeddingReader(table, "parquet")),
        (
            FolderConfig(path=img, format="parquet_npy", metadata=meta),
            EmbeddingReader(img, "parquet_npy", meta_columns=["caption"], metadata_folder=meta),
        ),
    ):
        (theirs, columns), *rest = list(reader(19, 0, 19, show_progress=False))
        folder = record.create()
        assert not rest and np.array_equal(folder.rows.read(0, 19), theirs)
        if record.metadata:
            found = np.concatenate([part["caption"] for part in folder.columns(["caption"])])
            assert found.tolist() == columns["caption"].tolist()


def test_folders_within_and_odd_names_are_found(tmp_path):
    rows = embeddings(8)
    write_npy(tmp_path / "a [1]*" / "part 0", rows[:4], [4])
    write_npy(tmp_path / "a [1]*" / "part 1", rows[4:], [4])
    (tmp_path / "a [1]*" / "notes.txt").write_text("not an array")
    assert_reads(FolderConfig(path=str(tmp_path / "a [1]*")), rows)


def test_hidden_files_and_folders_are_passed_over(tmp_path):
    folder = write_npy(tmp_path / ".home/img", embeddings(8), [4, 4])
    write_npy(folder / ".ipynb_checkpoints", embeddings(4), [4])
    (folder / "._img_emb_00.npy").write_bytes(b"made by a file browser")
    assert_reads(FolderConfig(path=str(folder)), embeddings(8))


def test_folders_behind_links_are_read_once(tmp_path):
    folder = write_npy(tmp_path / "img", embeddings(8)[:4], [4])
    (folder / "more").symlink_to(write_npy(tmp_path / "disk", embeddings(8)[4:], [4]))
    (folder / "back").symlink_to(folder)
    assert_reads(FolderConfig(path=str(folder)), embeddings(8))


def test_a_folder_inside_that_cannot_be_listed_is_an_error_and_not_passed_over(tmp_path, monkeypatch):
    folder, scandir = write_npy(tmp_path / "img", embeddings(4), [4]), os.scandir
    write_npy(folder / "more", embeddings(4), [4])

    def refuse(path):
        if str(path).endswith("more"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(UnreadableError, match=naming(os.strerror(errno.EACCES), tmp_path / "img")):
        FolderConfig(path=str(folder)).create()


def test_one_file_is_a_folder_of_one(tmp_path):
    rows = embeddings(7)
    np.save(tmp_path / "image.npy", rows)
    np.save(tmp_path / "text.npy", rows + 1)
    assert_reads(FolderConfig(path=str(tmp_path / "image.npy")), rows)


def test_tokens_give_rows_a_second_axis(tmp_path):
    folder = write_npy(tmp_path / "enc", embeddings(4, dim=12), [4])
    assert FolderConfig(path=str(folder), tokens=3).create().shape == (3, 4)
    with pytest.raises(DataError, match=naming("12 numbers", "5 tokens")):
        FolderConfig(path=str(folder), tokens=5).create()


def test_an_empty_file_among_others_is_no_rows(tmp_path):
    rows = embeddings(8)
    folder = write_npy(tmp_path / "img", rows, [4, 0, 4])
    meta = write_parquet(tmp_path / "meta", {"n": np.arange(8)}, [4, 0, 4])
    assert_reads(FolderConfig(path=str(folder), format="parquet_npy", metadata=str(meta)), rows)
    assert_reads(FolderConfig(path=remote(folder, "empty_one")), rows)


def test_metadata_files_that_are_missing_are_noticed(tmp_path):
    folder = write_npy(tmp_path / "img", embeddings(8), [4, 4])
    meta = write_parquet(tmp_path / "meta", {"n": np.arange(4)}, [4])
    record = FolderConfig(path=str(folder), format="parquet_npy", metadata=str(meta))
    with pytest.raises(DataError, match=naming("2 .npy", "1 parquet")):
        record.create()
    write_parquet(tmp_path / "meta", {"n": np.arange(9)}, [4, 5])
    with pytest.raises(DataError, match=naming("img_emb_01.npy", 4, "metadata_01.parquet", 5)):
        record.create()


def test_places_that_are_not_there(tmp_path):
    for place, message in (
        (tmp_path / "no", "no such"),
        (tmp_path, "*.npy"),
        ("nothing://a/b", "URL"),
    ):
        with pytest.raises(DataError, match=naming(place, message)):
            FolderConfig(path=str(place)).create()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=naming("*.npy", "notes.txt")):
        FolderConfig(path=str(tmp_path / "notes.txt")).create()
    with pytest.raises((ConfigError, ValueError), match=naming("'parquet_npy'", "metadata", "'npy'")):
        FolderConfig(path=str(tmp_path), format="parquet_npy")


@pytest.mark.parametrize(
    ("size", "is_taken"), [(1e-6, True), (1e9, True), (9e11, True), (1.1e12, False), (1e30, False), (0.0, False)]
)
def test_a_row_is_damaged_without_a_length_and_with_one_that_no_embedding_has(tmp_path, size, is_taken):
    rows = np.zeros((5, 6), np.float32)
    rows[:, 2] = 1
    rows[3] *= size
    folder = FolderConfig(path=str(write_npy(tmp_path / "img", rows, [5]))).create(needs_length=True)
    if is_taken:
        assert folder.scan() == 5
        return
    with pytest.raises(DataError, match=naming("img_emb_00.npy", "row 3")):
        folder.scan()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
@pytest.mark.filterwarnings("error")
def test_a_number_beyond_float32_is_refused_by_its_row_without_a_warning_of_numpy(tmp_path, kind):
    rows = embeddings(19, dtype="float64")
    rows[7, 2] = 1e300
    if kind == "npy":
        record = FolderConfig(path=str(write_npy(tmp_path / "img", rows, COUNTS)))
    else:
        place = write_parquet(tmp_path / "img", {"embedding": rows}, COUNTS)
        record = FolderConfig(path=str(place), format="parquet", column="embedding")
    with pytest.raises(DataError, match=naming(tmp_path / "img", "finite", "float32")) as caught:
        record.create().scan()
    (line,) = str(caught.value).splitlines()[1:]
    assert line.count("row") == 2, "one row is named, and the remedy"


def test_rows_of_metadata_beyond_the_embeddings_are_an_error_and_never_given(tmp_path, monkeypatch):
    monkeypatch.setattr("dp_prior.data.embeddings.metadata.ROWS_AT_ONCE", 3)
    folder = str(write_npy(tmp_path / "img", embeddings(5), [5]))
    table = str(write_parquet(tmp_path / "meta", {"n": np.arange(7)}, [7]))
    numbers = []
    with pytest.raises(DataError, match=naming("7 rows", "5 embeddings")):
        for part in FolderConfig(path=folder, metadata=table).create().columns(["n"]):
            numbers += part["n"].tolist()
    assert numbers == [0, 1, 2]
