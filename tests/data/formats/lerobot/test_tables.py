"""Parquet files that are damaged, and columns that are no arrays of numbers."""

import pytest

from tests.data.formats.lerobot.test_dataset import STATE, columns, problem_of, store, write_table, write_v2, write_v3
from tests.messages import told

pa = pytest.importorskip("pyarrow", reason="NOT CHECKED: LeRobot stores, the extra dp_prior[lerobot] is not installed")


@pytest.mark.promise("H1")
@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_a_file_cut_short_is_named(tmp_path, kept):
    root = write_v3(tmp_path)
    path = root / "data/chunk-000/file-000.parquet"
    path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    assert told(problem_of(lambda: store(root).read("action")), path, "parquet")


def test_flipped_bytes_are_noticed_where_the_writer_made_checksums(tmp_path):
    root = write_v3(tmp_path)
    path = root / "data/chunk-000/file-000.parquet"
    content = bytearray(path.read_bytes())
    where = content.index(STATE[:2].tobytes())
    content[where + 5] ^= 0xFF
    path.write_bytes(content)
    assert f"{path}: is damaged" in problem_of(lambda: store(root).read("observation.state"))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1.0, 2.0], [1.0], [1.0, 2.0]], ("'action', row 1", "1 elements", "row 0", 2)),
        ([[1.0, 2.0], None, [1.0, 2.0]], ("'action', row 1", "null", "every frame")),
        ([[1.0, 2.0], [3.0, None], [1.0, 2.0]], ("'action', row 1", "null", "every frame")),
        (["a", "b", "c"], ("'action'", "string", "number")),
        ([[1.0, 2.0, 3.0]] * 3, ("'action'", "shapes", "[(2,), (3,)]")),
    ],
)
def test_columns_that_are_no_arrays_are_explained(tmp_path, column, message):
    root = write_v2(tmp_path)
    write_table(root / "data/chunk-000/episode_000001.parquet", {**columns([1]), "action": pa.array(column)})
    assert told(problem_of(lambda: store(root).read("action")), *message)


def test_a_declared_column_that_is_missing_is_named(tmp_path):
    root = write_v2(tmp_path)
    table = columns([2])
    del table["action"]
    write_table(root / "data/chunk-001/episode_000002.parquet", table)
    message = problem_of(lambda: store(root).read("action"))
    assert told(message, "episode_000002.parquet", "'action'", "meta/info.json")


def test_columns_of_an_extension_type_are_read_whether_it_is_registered_or_not():
    """`datasets` registers the type of its Array2D when it is imported."""
    from pathlib import Path

    import numpy as np

    from dp_prior.data.formats.lerobot.tables import to_numpy

    class Array2D(pa.ExtensionType):
        def __init__(self):
            super().__init__(pa.list_(pa.list_(pa.float32())), "a.test.Array2D")

        def __arrow_ext_serialize__(self):
            return b""

        @classmethod
        def __arrow_ext_deserialize__(cls, storage, serialized):
            return cls()

    values = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    stored = pa.array(values.tolist(), pa.list_(pa.list_(pa.float32())))
    for column in (stored, pa.ExtensionArray.from_storage(Array2D(), stored)):
        np.testing.assert_array_equal(to_numpy(pa.chunked_array([column]), Path("x"), "key"), values)
