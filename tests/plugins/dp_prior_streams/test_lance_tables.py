import pytest

from dp_prior.data.errors import DataError, MissingError
from tests.extras import needs
from tests.messages import naming

needs("lance", "lance")

import pyarrow as pa  # noqa: E402

from dp_prior_streams import lance_tables  # noqa: E402
from dp_prior_streams.lance_tables import LanceTables  # noqa: E402


@pytest.fixture
def tables(tmp_path):
    import lance

    lance.write_dataset(pa.table({"a": range(10), "b_c": range(10, 20)}), str(tmp_path / "frames.lance"))
    return LanceTables(str(tmp_path))


def test_a_range_of_rows_of_some_columns_is_read(tables):
    assert tables.count("frames") == 10 and tables.columns("frames") == ["a", "b_c"]
    assert tables.read("frames", ["b_c"], 3, 4).to_pydict() == {"b_c": [13, 14, 15, 16]}
    assert tables.read("frames", ["b_c", "a"], 8).to_pydict() == {"b_c": [18, 19], "a": [8, 9]}
    blocks = [block.to_pylist() for block in tables.batches("frames", "a", 2, 7, 3)]
    assert blocks == [[2, 3, 4], [5, 6, 7], [8]]


def test_a_table_is_read_at_the_version_asked_for(tables, tmp_path):
    import lance

    lance.write_dataset(pa.table({"a": [100], "b_c": [200]}), str(tmp_path / "frames.lance"), mode="append")
    newest = LanceTables(str(tmp_path))
    assert (newest.version("frames"), newest.count("frames")) == (2, 11)
    assert LanceTables(str(tmp_path), {"frames": 1}).count("frames") == 10


def test_large_values_are_written_piece_by_piece(tmp_path, monkeypatch):
    import lance

    values = [b"short", bytes(range(256)) * 40, b""]
    schema = pa.schema([lance.blob_field("data")])
    table = pa.table([lance.blob_array(values)], schema=schema)
    lance.write_dataset(table, str(tmp_path / "videos.lance"), data_storage_version="2.2")
    monkeypatch.setattr(lance_tables, "PIECE", 1000)
    for row, value in enumerate(values):
        LanceTables(str(tmp_path)).save("videos", "data", row, tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == value


def test_what_is_missing_is_named(tables, tmp_path):
    with pytest.raises(DataError, match=naming("frames.lance", "'b.c'", "b_c", "of info.json")):
        tables.read("frames", ["a", "b.c"], why=", of info.json")
    with pytest.raises(MissingError, match=naming("videos.lance", "lerobot-lance-convert")):
        tables.count("videos")


def test_a_damaged_table_is_named(tables, tmp_path):
    for file in (tmp_path / "frames.lance/data").iterdir():
        file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(DataError, match=naming(str(tmp_path / "frames.lance"))):
        LanceTables(str(tmp_path)).read("frames", ["a"])
