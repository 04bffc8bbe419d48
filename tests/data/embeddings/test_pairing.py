"""Folders whose files or rows only agree in sum are no pairs."""

import json

import numpy as np
import pytest

from dp_prior.data.embeddings.folder import FolderConfig
from dp_prior.data.embeddings.pairing import check_pairs, pair_warnings
from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.errors import DataError
from tests.messages import told

RNG = np.random.default_rng(0)


def folder(path, files: dict[str, int], keys=None):
    """Embeddings in files of so many rows, and a table of keys beside them."""
    path.mkdir(exist_ok=True)
    for name, rows in files.items():
        np.save(path / f"{name}.npy", RNG.normal(size=(rows, 4)).astype(np.float32))
    record = {"path": str(path), "format": "npy"}
    if keys is not None:
        pytest.importorskip("pyarrow")
        (path / "keys.csv").write_text("image_path\n" + "\n".join(keys) + "\n")
        record["metadata"] = str(path / "keys.csv")
    return FolderConfig.from_json(json.dumps(record)).create()


def faults(one, other):
    with pytest.raises(DataError) as error:
        check_pairs([one, other])
    return str(error.value)


@pytest.mark.parametrize(
    ("images", "texts"),
    [
        ({"img_emb_0": 5, "img_emb_1": 3}, {"text_emb_0": 5, "text_emb_1": 3}),
        ({"clip_32_img_0": 5, "clip_32_img_7": 3}, {"t00": 5, "t07": 3}),
        ({"a": 5, "b": 3}, {"one": 5, "two": 3}),
        ({"image": 8}, {"text": 8}),
    ],
)
def test_files_of_the_same_numbers_and_rows_are_pairs(tmp_path, images, texts):
    one, other = folder(tmp_path / "i", images), folder(tmp_path / "t", texts)
    check_pairs([one, other])
    assert pair_warnings([one, other]) == []


def test_a_lost_file_on_each_side_is_found_though_the_rows_agree_in_all(tmp_path):
    one = folder(tmp_path / "i", {"img_0": 4, "img_1": 4, "img_3": 4})
    other = folder(tmp_path / "t", {"text_0": 4, "text_2": 4, "text_3": 4})
    assert "img_1.npy lies beside" in faults(one, other) and "text_2.npy" in faults(one, other)


def test_names_that_sort_otherwise_are_found(tmp_path):
    one = folder(tmp_path / "i", {"img_1": 4, "img_2": 4, "img_10": 4})
    other = folder(tmp_path / "t", {"text_01": 4, "text_02": 4, "text_10": 4})
    assert "img_10.npy lies beside" in faults(one, other)


def test_rows_that_only_agree_in_sum_are_said(tmp_path):
    one, other = folder(tmp_path / "i", {"a_0": 5, "a_1": 3}), folder(tmp_path / "t", {"b_0": 3, "b_1": 5})
    (line,) = pair_warnings([one, other])
    assert told(line, "a_0.npy", "5 rows", 3, "metadata")
    assert told(faults(one, folder(tmp_path / "u", {"c": 7})), tmp_path / "i", 8, 7)


@pytest.mark.parametrize(("images", "texts"), [("0123", "013"), ("02", "0123"), ("01", "0")])
def test_a_file_without_its_partner_is_named_where_the_rows_differ(tmp_path, images, texts):
    one = folder(tmp_path / "i", {f"img_{number}": 4 for number in images})
    other = folder(tmp_path / "t", {f"text_{number:0>2}": 4 for number in texts})
    alone = {"0123": "img_2.npy", "02": "text_01.npy"}.get(images)
    told_files = faults(one, other)
    assert told(told_files, f"{len(images)} files", len(texts)) and (alone is None or told(told_files, alone))


def test_keys_of_both_metadata_are_compared(tmp_path):
    names = [f"{number}.png" for number in range(8)]
    one = folder(tmp_path / "i", {"a_0": 5, "a_1": 3}, names)
    check_pairs([one, folder(tmp_path / "t", {"b": 8}, names)])
    assert pair_warnings([one, folder(tmp_path / "t", {"b": 8}, names)]) == []
    swapped = [*names[:6], names[7], names[6]]
    assert "row 6 has the image_path '6.png', but '7.png'" in faults(one, folder(tmp_path / "u", {"b": 8}, swapped))


def test_files_that_cannot_be_compared_are_said_when_training_begins(tmp_path):
    folder(tmp_path / "i", {"a_0": 50, "a_1": 30}), folder(tmp_path / "t", {"b": 80})
    record = {
        "image": {"path": str(tmp_path / "i"), "format": "npy"},
        "text": {"path": str(tmp_path / "t"), "format": "npy"},
    }
    warnings = EmbeddingsConfig.from_json(json.dumps(record)).create().warnings()
    assert any(told(line, "2 files", "metadata") for line in warnings)
