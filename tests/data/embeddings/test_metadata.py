"""Columns beside embeddings: the same values and texts however a file holds them."""

import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.metadata import read_columns, read_table
from dp_prior.data.errors import DataError
from tests.data.embeddings.folders import embeddings, write_npy
from tests.messages import naming


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_metadata_columns_row_by_row(tmp_path, ending):
    img = write_npy(tmp_path / "img", embeddings(4), [4])
    names = ['a, "b"', "c\nd", "e", "é"]
    if ending == "csv":
        quoted = ['"' + name.replace('"', '""') + '"' for name in names]
        (tmp_path / "m.csv").write_text("caption,n\n" + "".join(f"{q},{i}\n" for i, q in enumerate(quoted)))
    else:
        parquet.write_table(pa.table({"caption": names, "n": [0, 1, 2, 3]}), tmp_path / "m.parquet")
    folder = FolderConfig(path=str(img), metadata=str(tmp_path / f"m.{ending}")).create()
    found = list(folder.columns(["caption", "n"]))
    assert np.concatenate([part["caption"] for part in found]).tolist() == names
    assert np.concatenate([part["n"] for part in found]).tolist() == [0, 1, 2, 3]
    with pytest.raises(DataError, match=naming("'captoin'", "'caption'")):
        list(folder.columns(["captoin"]))
    longer = FolderConfig(path=str(write_npy(tmp_path / "more", embeddings(5), [5])), metadata=folder._metadata)
    with pytest.raises(DataError, match=naming("4 rows", "5 embeddings")):
        list(longer.create().columns(["n"]))


def test_values_as_text_are_those_of_a_csv_however_parquet_holds_them(tmp_path):
    """Whole numbers that pandas stored as floats, because one was missing, read as the integers that they were."""
    numbers = [0, -7, 123_456_789_012, 2**53]
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{number}\n" for number in numbers))
    for name, kind in (("b", pa.int64()), ("c", pa.float64()), ("d", pa.string())):
        values = map(str, numbers) if kind == pa.string() else numbers
        parquet.write_table(pa.table({"n": pa.array(values, kind)}), tmp_path / f"{name}.parquet")
    parts = read_columns(str(tmp_path), ["n"], as_text=True)
    assert [part["n"].tolist() for part in parts] == [[str(number) for number in numbers]] * 4
    parquet.write_table(pa.table({"n": pa.array([1.5, None], pa.float64())}), tmp_path / "odd.parquet")
    (odd,) = read_columns(str(tmp_path / "odd.parquet"), ["n"], as_text=True)
    assert odd["n"].tolist() == ["1.5", "None"]


def test_a_table_reads_alike_from_every_kind_of_file(tmp_path):
    texts = ["007", "1.50", "a, dog", "é"]
    (tmp_path / "t.txt").write_bytes("\r\n".join(texts).encode("utf-8-sig"))
    (tmp_path / "t.csv").write_text("caption,n\n" + "".join(f'"{text}",{n}\n' for n, text in enumerate(texts)))
    rows = ({"caption": text, "n": n} for n, text in enumerate(texts))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pa.table({"caption": texts, "n": range(len(texts))}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.txt", "caption") == {"caption": texts}
    for kind in ("csv", "jsonl", "parquet"):
        assert read_table(tmp_path / f"t.{kind}", "caption") == {"caption": texts, "n": [0, 1, 2, 3]}, kind
        with pytest.raises(DataError, match=naming(f"t.{kind}", "'captoin'", "'caption'")):
            read_table(tmp_path / f"t.{kind}", "captoin")
