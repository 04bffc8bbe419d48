import json

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from dp_prior.config import ConfigError
from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.parts import PARTS, EmbeddingSplitConfig
from dp_prior.data.errors import DataError
from tests.data.embeddings.folders import embeddings, write_npy
from tests.messages import naming


def split(**change) -> EmbeddingSplitConfig:
    return EmbeddingSplitConfig(**{"train": 0.6, "val": 0.3, "test": 0.1, **change})


def make(tmp_path, n=50, names=None):
    folder = write_npy(tmp_path / f"img_{n}", embeddings(n, dim=2), [n])
    metadata = None
    if names is not None:
        metadata = str(tmp_path / f"meta_{n}.parquet")
        parquet.write_table(pa.table({"image": names}), metadata)
    return FolderConfig(path=str(folder), metadata=metadata).create()


def all_rows(parts):
    return {name: part.rows(np.arange(len(part))).tolist() for name, part in parts.items()}


@pytest.mark.parametrize("by", [None, "image"])
def test_every_row_is_in_one_part_in_order(tmp_path, by, monkeypatch):
    monkeypatch.setattr("dp_prior.data.embeddings.parts.KEYS_AT_ONCE", 7)
    monkeypatch.setattr("dp_prior.data.embeddings.parts.CHUNKS_KEPT", 2)
    names = [f"i{row // 5}" for row in range(200)]
    parts = split(by=by).assign(make(tmp_path, 200, names))
    rows = all_rows(parts)
    assert sorted(sum(rows.values(), [])) == list(range(200))
    assert all(rows[name] == sorted(rows[name]) and len(rows[name]) == len(parts[name]) for name in PARTS)
    shuffled = np.random.default_rng(0).permutation(len(parts["train"]))
    assert parts["train"].rows(shuffled).tolist() == [rows["train"][i] for i in shuffled]


@pytest.mark.parametrize("by", [None, "image"])
def test_appended_rows_change_no_part(tmp_path, by):
    names = [f"i{row // 3}" for row in range(90)]
    before = all_rows(split(by=by).assign(make(tmp_path, 60, names[:60])))
    after = all_rows(split(by=by).assign(make(tmp_path, 90, names)))
    for name in PARTS:
        assert [row for row in after[name] if row < 60] == before[name]


def test_equal_values_stay_together_wherever_they_lie(tmp_path):
    names = [f"i{row % 20}" for row in range(200)]
    rows = all_rows(split(by="image").assign(make(tmp_path, 200, names)))
    images = [{names[row] for row in rows[name]} for name in PARTS]
    assert sum(map(len, images)) == 20 and all(images)


@pytest.mark.parametrize("kind", ["int64 and float64", "long", "null", "text and int64", "csv"])
def test_equal_values_stay_together_however_a_file_holds_them(tmp_path, kind):
    first = second = [(123_456_789_012 if kind == "long" else 0) + i for i in range(20)] * 5
    meta = tmp_path / "meta"
    meta.mkdir()
    if kind == "csv":  # in the first file all are numbers, in the second not
        (meta / "a.csv").write_text("image\n" + "".join(f"{i:04d}\n" for i in first))
        (meta / "b.csv").write_text("image\n" + "".join(f"{i:04d}\n" for i in second[:-1]) + "last\n")
    else:
        as_floats = pa.array(second, pa.float64())
        columns = {"int64 and float64": as_floats, "long": as_floats, "text and int64": pa.array(map(str, second))}
        column = columns.get(kind, pa.array([*second[:-1], None], pa.int64()))
        parquet.write_table(pa.table({"image": pa.array(first)}), meta / "a.parquet")
        parquet.write_table(pa.table({"image": column}), meta / "b.parquet")
    folder = write_npy(tmp_path / "img", embeddings(200, dim=2), [200])
    rows = all_rows(split(by="image").assign(FolderConfig(path=str(folder), metadata=str(meta)).create()))
    images = [{[*first, *second][row] for row in rows[name] if row < 199} for name in PARTS]
    assert sum(map(len, images)) == 20 and all(images)


def test_metadata_with_more_rows_than_embeddings_are_refused(tmp_path):
    folder = make(tmp_path, 60, ["a"] * 60)
    folder.count -= 7
    with pytest.raises(DataError, match=naming("60 rows", "53 embeddings")):
        split(by="image").assign(folder)


def test_a_column_that_is_no_name_is_refused(tmp_path):
    with pytest.raises(DataError, match=naming("meta_50.parquet", "['image']", "list")):
        split(by="image").assign(make(tmp_path, 50, [[1, 2]] * 50))


def test_fractions_are_met(tmp_path):
    parts = split().assign(make(tmp_path, 20_000))
    for name, share in (("train", 0.6), ("val", 0.3), ("test", 0.1)):
        assert len(parts[name]) / 20_000 == pytest.approx(share, abs=0.015)  # 4 standard errors


def test_every_knob_changes_the_parts(tmp_path):
    folder = make(tmp_path, 50, [f"i{row // 5}" for row in range(50)])
    plain = all_rows(split().assign(folder))
    changes = {"train": 0.5, "val": 0.4}, {"val": 0.2, "test": 0.2}, {"seed": 1}, {"by": "image"}, {"max_rows": 20}
    for change in changes:
        assert all_rows(split(**change).assign(folder)) != plain


@pytest.mark.parametrize("by", [None, "image"])
def test_only_the_first_rows_are_split_if_so_many_are_asked_for(tmp_path, by):
    folder = make(tmp_path, 50, [f"i{row // 5}" for row in range(50)])
    every, some = (all_rows(split(by=by, max_rows=most).assign(folder)) for most in (None, 20))
    assert some == {part: [row for row in rows if row < 20] for part, rows in every.items()}
    assert all_rows(split(by=by, max_rows=1000).assign(folder)) == every
    assert len(split(max_rows=20).rows(50, "images")["train"]) < 20


def test_test_may_be_nothing_and_training_may_not(tmp_path):
    parts = split(train=0.7, test=0.0).assign(make(tmp_path))
    assert len(parts["test"]) == 0 and parts["test"].rows(np.arange(0)).tolist() == []
    with pytest.raises(DataError, match=naming("1 rows", "data.split")):
        split(train=1e-9, val=1 - 1e-9, test=0.0).assign(make(tmp_path, 1))
    with pytest.raises(ConfigError, match=naming(0.9, 0.2, 1.1, 1)):
        EmbeddingSplitConfig.from_json(json.dumps({"train": 0.9, "val": 0.2}))
