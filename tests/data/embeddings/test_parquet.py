"""Any range of rows of parquet files, local and behind a URL; and wrong lists are named."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.errors import DataError
from tests.data.embeddings.folders import COUNTS, assert_reads, embeddings, remote, write_parquet
from tests.messages import naming


@pytest.mark.parametrize("kind", ["list", pytest.param("fixed", marks=pytest.mark.slow)])
def test_any_range_of_parquet_files(tmp_path, kind):
    rows = embeddings(19)
    folder = write_parquet(tmp_path / "t", {"image_embedding": rows, "other": np.arange(19)}, COUNTS)
    if kind == "fixed":
        for path in folder.glob("*"):
            table = parquet.read_table(path)
            column = table.column("image_embedding").cast(pa.list_(pa.float32(), 6))
            parquet.write_table(table.set_column(0, "image_embedding", column), path, row_group_size=4)
    record = FolderConfig(path=str(folder), format="parquet", column="image_embedding")
    assert_reads(record, rows)
    assert record.create().rows.largest_read == 4
    assert_reads(record.model_copy(update={"path": remote(folder, f"parquet_{kind}")}), rows)


def test_wrong_lists_in_parquet_are_named(tmp_path):
    ragged = pa.table({"embedding": pa.array([[1.0, 2.0], [3.0]])})
    parquet.write_table(ragged, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=naming("a.parquet", "'embedding'", "row 1", "2 numbers")):
        FolderConfig(path=str(tmp_path), format="parquet").create().rows.read(0, 2)
    parquet.write_table(pa.table({"embedding": pa.array([[1.0, 2.0], None])}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=naming("a.parquet", "'embedding'", "row 1", "2 numbers")):
        FolderConfig(path=str(tmp_path), format="parquet").create().rows.read(0, 2)
    parquet.write_table(pa.table({"embedding": pa.array([[1.0, 2.0], [3.0, None]])}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=naming("a.parquet", "'embedding'", "row 1", "2 numbers")):
        FolderConfig(path=str(tmp_path), format="parquet").create().rows.read(0, 2)
    parquet.write_table(pa.table({"embedding": pa.array([None, [1.0, 2.0]])}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=naming(tmp_path, "row")):
        FolderConfig(path=str(tmp_path), format="parquet").create()
    parquet.write_table(pa.table({"embedding": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=naming("a.parquet", "'embedding'", "string")):
        FolderConfig(path=str(tmp_path), format="parquet").create()
    with pytest.raises(DataError, match=naming("'embeddings'", "'embedding'")):
        FolderConfig(path=str(tmp_path), format="parquet", column="embeddings").create()
