"""Any range of rows of .npy files, local and behind a URL; and every fault is named."""

import fsspec
import numpy as np
import pytest

from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.errors import DataError
from tests import forks
from tests.data.embeddings.folders import COUNTS, assert_reads, embeddings, remote, write_npy
from tests.messages import naming


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_any_range_of_npy_files(tmp_path, dtype):
    rows = embeddings(19, dtype=dtype)
    assert_reads(FolderConfig(path=str(write_npy(tmp_path / "img", rows, COUNTS))), rows)


def test_any_range_behind_a_url_is_what_the_local_files_hold(tmp_path):
    rows = embeddings(19)
    url = remote(write_npy(tmp_path / "img", rows, COUNTS), "ranges")
    assert_reads(FolderConfig(path=url), rows)
    assert_reads(FolderConfig(path=url + "/"), rows)


@pytest.mark.slow
def test_windows_behind_a_url_are_bounded_and_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr("dp_prior.data.embeddings.npy.WINDOW_BYTES", 4 * 6 * 3)  # 3 rows
    rows = embeddings(19)
    place = remote(write_npy(tmp_path / "img", rows, COUNTS), "bounded")
    assert_reads(FolderConfig(path=place), rows)
    monkeypatch.undo()
    monkeypatch.setattr("dp_prior.data.embeddings.npy.WINDOW_FILES", 1)
    assert_reads(FolderConfig(path=place), rows)


def break_folder(folder, fault: str) -> None:
    path = folder / "img_emb_01.npy"
    if fault == "fortran":
        np.save(path, np.asfortranarray(embeddings(4)))
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:-3])
    elif fault == "grown":
        path.write_bytes(path.read_bytes() + b"12345678")
    elif fault == "no npy":
        path.write_bytes(b"<html>")
    elif fault == "one axis":
        np.save(path, np.zeros(4, np.float32))
    elif fault == "integers":
        np.save(path, np.zeros((4, 6), np.int8))
    elif fault == "big endian":
        np.save(path, np.zeros((4, 6), ">f4"))
    elif fault == "objects":
        np.save(path, np.array([[None] * 6]), allow_pickle=True)
    elif fault == "wider":
        np.save(path, embeddings(4, dim=7))


FAULTS = {
    "fortran": "numpy.ascontiguousarray",
    "truncated": "(4, 6) float32",
    "grown": "(4, 6) float32",
    "no npy": "no .npy",
    "one axis": "(4,)",
    "integers": "|i1",
    "big endian": ">f4",
    "objects": "docs/own_data.md#other-files",
    "wider": "img_emb_00.npy",
}


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_file_is_named(tmp_path, fault, is_local):
    folder = write_npy(tmp_path / "img", embeddings(8), [4, 4])
    break_folder(folder, fault)
    place = str(folder) if is_local else remote(folder, f"fault_{fault.replace(' ', '_')}")
    with pytest.raises(DataError, match=naming("img_emb_01.npy", FAULTS[fault])):
        FolderConfig(path=place).create()


def test_files_of_two_types_are_read_where_that_can_be_done(tmp_path):
    folder = write_npy(tmp_path / "img", embeddings(8), [4, 4])
    np.save(folder / "img_emb_01.npy", embeddings(8)[4:].astype("float16"))
    found = FolderConfig(path=str(folder)).create().rows.read(2, 8)
    assert np.allclose(found, embeddings(8)[2:], atol=1e-2) and found.dtype == np.float32
    with pytest.raises(DataError, match=naming("'float16'", "'float32'", "URL")):
        FolderConfig(path=remote(folder, "types")).create()


def test_a_file_that_shrinks_after_opening_is_an_error(tmp_path):
    folder = write_npy(tmp_path / "img", embeddings(8), [8])
    rows = FolderConfig(path=str(folder)).create().rows
    path = folder / "img_emb_00.npy"
    path.write_bytes(path.read_bytes()[:-24])
    assert len(rows.read(0, 7)) == 7
    with pytest.raises(DataError, match=naming("img_emb_00.npy", "shorter")):
        rows.read(0, 8)


def test_a_process_that_stops_reading_ends(tmp_path):
    """embedding-reader's iterations hang when left early; ours are drained, so an error in between ends the process."""
    folder = write_npy(tmp_path / "img", embeddings(160), [4] * 40)
    program = (
        "import sys, fsspec, pathlib\n"
        "from dp_prior.data.embeddings.folder import FolderConfig\n"
        "fs = fsspec.filesystem('memory')\n"
        f"for p in pathlib.Path({str(folder)!r}).glob('*'): fs.pipe('/x/' + p.name, p.read_bytes())\n"
        "rows = FolderConfig(path='memory://x').create().rows\n"
        "rows.read(0, 159)\n"
        "raise SystemExit(7)\n"
    )
    assert forks.call(["-c", program]).returncode == 7


def test_a_folder_without_rows_and_what_embedding_reader_cannot_read_are_refused(tmp_path):
    with pytest.raises(DataError, match=naming(tmp_path / "empty", "rows")):
        FolderConfig(path=str(write_npy(tmp_path / "empty", embeddings(0), [0]))).create()
    url = remote(write_npy(tmp_path / "emb", embeddings(6), [4, 2]), tmp_path.name)
    with pytest.raises(DataError, match=naming(f"{url}/img_emb_00.npy", "embedding-reader", "folder")):
        FolderConfig(path=f"{url}/img_emb_00.npy").create()
    fs, place = fsspec.filesystem("memory"), f"/{tmp_path.name}"
    fs.cp(f"{place}/img_emb_01.npy", f"{place}/.img_emb_01.npy")
    with pytest.raises(DataError, match=naming(url, "embedding-reader", "8 rows", 6, "hidden")):
        FolderConfig(path=url).create()
    fs.pipe(f"{place}/._img_emb_01.npy", b"as macOS leaves beside a copy")
    with pytest.raises(DataError, match=naming(url, "embedding-reader", f"{url}/._img_emb_01.npy", "hidden")):
        FolderConfig(path=url).create()


@pytest.mark.parametrize("shape", [(4, 2), (2, 6), (2, 2)])
def test_an_order_of_columns_is_refused_from_two_rows_and_columns_on(tmp_path, shape):
    values = embeddings(shape[0], dim=shape[1])
    (tmp_path / "img").mkdir()
    np.save(tmp_path / "img" / "img_emb_00.npy", np.asfortranarray(values))
    with pytest.raises(DataError, match=naming("img_emb_00.npy", "numpy.ascontiguousarray")):
        FolderConfig(path=str(tmp_path / "img")).create()
