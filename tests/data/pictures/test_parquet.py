"""Images in parquet files, as Hugging Face data sets have them."""

import json

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.pictures.parquet import ParquetImagesConfig
from tests.data.pictures.sets import CLASSES, encoded, images, write_parquet
from tests.messages import naming

pytest.importorskip("PIL", reason="needs the extra image")
pa = pytest.importorskip("pyarrow", reason="needs the extra lerobot")


def source(path, labelled=True, uniform=True, **change):
    return ParquetImagesConfig(path=path, **change).create(labelled=labelled, uniform=uniform)


def write(path, **columns):
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), path)
    return path


def structs(*data):
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.array([{"bytes": each, "path": "x.png"} for each in data], kind)


def test_names_of_classes_are_those_of_the_metadata(tmp_path):
    pixels, labels = images()
    write_parquet(tmp_path / "set", pixels, labels)
    found = source(tmp_path / "set")
    assert found.classes == CLASSES and [CLASSES[i] for i in found.labels] == labels
    assert found.ends.tolist() == [7, 12] and len(found.parts) == 2
    for part, rows in zip(found.parts, (range(7), range(7, 12)), strict=True):
        for skip in (0, 2):
            blocks = np.concatenate(list(found.read(part, skip)))
            assert np.array_equal(blocks, pixels[rows[skip:]])
    assert source(tmp_path / "set", labelled=False).classes == ()


def test_columns_of_other_names_and_labels_as_texts(tmp_path):
    pixels, labels = images(4)
    path = write(tmp_path / "a.parquet", picture=structs(*map(encoded, pixels)), kind=labels)
    found = source(path, image="picture", label="kind")
    assert found.classes == CLASSES and len(found) == 4


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [1]}, ("a.parquet", "'image'", "label")),
        ({"image": ["a.png"], "label": [1]}, ("'image'", "'bytes'")),
        ({"image": [{"bytes": b"x"}]}, ("'label'", "a.parquet", "image.bytes")),
        ({"image": [{"bytes": b"x"}], "label": [None]}, ("row 0", "'label'", "None")),
        ({"image": [{"bytes": b"x"}], "label": [0.5]}, ("row 0", "'label'", 0.5)),
        ({"image": [{"bytes": b"x"}] * 3, "label": [0, 1, None]}, ("row 2", "'label'", "None")),
        (
            {"image": [{"bytes": None, "path": "x"}], "label": [1]},
            ("a.parquet", "row 0", "no bytes"),
        ),
        ({"image": [{"bytes": b"x"}], "label": [1]}, ("a.parquet", "row 0", "b'x'")),
    ],
)
def test_files_that_are_refused(columns, message, tmp_path):
    given = dict(columns)
    if given.get("image") not in (None, ["a.png"]):
        given["image"] = structs(*(each["bytes"] for each in given["image"]))
    with pytest.raises(DataError, match=naming(*message)):
        source(write(tmp_path / "a.parquet", **given))


def test_label_that_the_metadata_do_not_name(tmp_path):
    pixels, labels = images(3)
    write_parquet(tmp_path / "set", pixels, labels, (3,))
    from pyarrow import parquet

    table = parquet.read_table(tmp_path / "set/0.parquet")
    table = table.set_column(1, "label", pa.array([0, 3, 1]))
    parquet.write_table(table.replace_schema_metadata(parquet.read_schema(tmp_path / "set/0.parquet").metadata),
                        tmp_path / "set/0.parquet")  # fmt: skip
    with pytest.raises(DataError, match=naming("row 1", "label 3", "3 classes")):
        source(tmp_path / "set")


def test_files_that_name_their_classes_otherwise_are_refused(tmp_path):
    from pyarrow import parquet

    pixels, _ = images(2)
    for name, classes in (("a", ["cat", "dog"]), ("b", ["dog", "cat"])):
        table = pa.table({"image": structs(*map(encoded, pixels)), "label": [0, 1]})
        info = {"info": {"features": {"label": {"names": classes}}}}
        parquet.write_table(
            table.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / f"{name}.parquet"
        )
    with pytest.raises(DataError, match=naming("b.parquet", "['dog', 'cat']", "a.parquet", "['cat', 'dog']")):
        source(tmp_path)
    assert len(source(tmp_path, labelled=False).parts) == 2


@pytest.mark.parametrize("names", [[1, 2], ["cat", "cat"], [["cat"], "dog"]])
def test_metadata_whose_classes_are_not_different_texts_are_refused(names, tmp_path):
    from pyarrow import parquet

    pixels, _ = images(2)
    table = pa.table({"image": structs(*map(encoded, pixels)), "label": [0, 1]})
    info, path = {"info": {"features": {"label": {"names": names}}}}, tmp_path / "a.parquet"
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(info)}), path)
    with pytest.raises(DataError, match=naming("a.parquet", "'label'", "different")):
        source(path)
    assert len(source(path, labelled=False)) == 2


@pytest.mark.parametrize("info", [None, [], {"features": None}, {"features": {"label": [{"dtype": "int64"}]}}])
def test_metadata_without_names_of_classes_leave_the_numbers(tmp_path, info):
    """A list is how Hugging Face's metadata describe a column of sequences."""
    from pyarrow import parquet

    pixels, _ = images(3)
    table = pa.table({"image": structs(*map(encoded, pixels)), "label": [4, 2, 4]})
    path = tmp_path / "a.parquet"
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": info})}), path)
    assert source(path).classes == ("2", "4")


def test_damaged_files_and_unequal_images_are_named(tmp_path):
    pixels, labels = images(3)
    path = write(tmp_path / "a.parquet", image=structs(encoded(pixels[0]), encoded(pixels[1][:2])), label=[0, 1])
    found = source(path)
    with pytest.raises(DataError, match=naming("a.parquet", "row 1", "2 x 4", "6 x 4")):
        list(found.read(found.parts[0], 0))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=naming("a.parquet", "footer")):
        source(path)
