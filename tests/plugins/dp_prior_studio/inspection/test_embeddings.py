"""Embeddings that are looked at: the same rows of every folder, and faults at their place."""

import numpy as np
import pytest

from dp_prior.data.embeddings.pairs import EmbeddingsConfig
from dp_prior.data.errors import DataError
from dp_prior_studio.inspection import embeddings as module
from dp_prior_studio.inspection.embeddings import embeddings_at, find_in_rows, read_rows
from tests.messages import naming, told


def write(place, count=40, dimension=6, **change):
    """Images and texts that lie beside each other and belong together; returns the record."""
    random = np.random.default_rng(0)
    image = random.normal(size=(count, dimension)).astype(np.float32)
    arrays = {"image": image, "text": image + 0.3 * random.normal(size=image.shape).astype(np.float32), **change}
    for name, array in arrays.items():
        (place / name).mkdir(exist_ok=True)
        np.save(place / name / "0.npy", array)
    return EmbeddingsConfig.model_validate(
        {"type": "embeddings", **{name: {"path": str(place / name)} for name in arrays}}
    ), arrays


def found_in(record):
    return [finding.text for finding in find_in_rows(read_rows(record), record)]


def test_rows_are_those_of_the_files_and_lengths_are_norms(tmp_path):
    record, arrays = write(tmp_path)
    for rows in read_rows(record):
        np.testing.assert_array_equal(rows.values, arrays[rows.name][rows.numbers])
        np.testing.assert_allclose(rows.lengths, np.linalg.norm(arrays[rows.name], axis=1), rtol=1e-6)
    assert found_in(record) == []


def test_of_many_rows_evenly_spread_blocks_are_read_the_same_of_each_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 4)
    monkeypatch.setattr(module, "MOST_ROWS", 12)
    record, arrays = write(tmp_path, count=42)
    image, text = read_rows(record)
    np.testing.assert_array_equal(image.numbers, text.numbers)
    assert len(image.numbers) <= 12 and image.numbers[0] == 0 and image.numbers[-1] >= 28
    np.testing.assert_array_equal(text.values, arrays["text"][text.numbers])


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_row_that_is_zero_or_not_finite_is_named(tmp_path, value):
    record, arrays = write(tmp_path)
    arrays["text"][7] = value
    np.save(tmp_path / "text" / "0.npy", arrays["text"])
    (said,) = [text for text in found_in(record) if "not finite" in text]
    assert said.startswith("text: 1 of 40") and " 7: " in said


def test_copies_are_counted(tmp_path):
    record, arrays = write(tmp_path)
    arrays["image"][5:8] = arrays["image"][4]
    np.save(tmp_path / "image" / "0.npy", arrays["image"])
    assert any(text.startswith("image: 3 of 40") and "data.split.by" in text for text in found_in(record))


def test_texts_of_other_images_are_noticed(tmp_path):
    record, arrays = write(tmp_path)
    np.save(tmp_path / "text" / "0.npy", arrays["text"][::-1])
    assert any(told(text, "no better") for text in found_in(record))
    arrays["image"][3] = np.inf
    np.save(tmp_path / "image" / "0.npy", arrays["image"])
    assert any(told(text, "no better") for text in found_in(record))


def test_folders_of_different_length_are_refused_with_their_counts(tmp_path):
    record, arrays = write(tmp_path)
    np.save(tmp_path / "text" / "0.npy", arrays["text"][:-1])
    with pytest.raises(DataError, match=naming(40, 39)):
        read_rows(record)


@pytest.mark.parametrize("names", [("img_emb", "text_emb"), ("image", "caption"), ("x", "txt")])
def test_a_place_is_read_by_the_names_of_its_folders(tmp_path, names):
    image, text = names
    record, arrays = write(tmp_path)
    for old, new in (("image", image), ("text", text)):
        (tmp_path / old).rename(tmp_path / new)
    data = embeddings_at(tmp_path)
    assert data == {
        "type": "embeddings", "text": {"path": str(tmp_path / text)}, "image": {"path": str(tmp_path / image)}
    }  # fmt: skip
    assert EmbeddingsConfig.model_validate(data)


def test_without_npy_files_there_are_no_embeddings(tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert embeddings_at(tmp_path) is None and embeddings_at(tmp_path / "a.txt") is None


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("image_id\n" + "".join(f"{row // 2}\n" for row in range(40)), None),
        ("image_id\n1\n2\n", ("metadata.csv", "2 rows", "40 embeddings")),
        ("caption\n" + "a\n" * 40, ("metadata.csv", "'image_id'", "caption")),
        ("image_id\n" + "7\n" * 40, ("40 rows", "data.split")),
    ],
)
def test_what_training_refuses_of_the_split_is_an_error(tmp_path, table, said):
    record, _ = write(tmp_path)
    (tmp_path / "metadata.csv").write_text(table)
    image = record.image.model_copy(update={"metadata": str(tmp_path / "metadata.csv")})
    split = record.split.model_copy(update={"by": "image_id"})
    record = record.model_copy(update={"image": image, "split": split})
    try:
        record.create()
        refused = []
    except DataError as error:
        refused = [f"{error.source}: {problem}" for problem in error.problems]
    found = [finding.text for finding in find_in_rows(read_rows(record), record) if finding.severity == "error"]
    assert found == refused and (told(" ".join(found), *said) if said else not found)


def test_a_place_whose_table_names_no_images_is_proposed_without_it(tmp_path):
    write(tmp_path)
    for table in ("", "caption\na\n", "image_id\n"):
        (tmp_path / "metadata.csv").write_text(table)
        assert "split" not in embeddings_at(tmp_path)
    (tmp_path / "metadata.csv").write_text("caption,image_id\na,1\n")
    assert embeddings_at(tmp_path)["split"] == {"by": "image_id"}


def test_an_encoding_of_zeros_alone_is_the_padding_of_an_empty_text(tmp_path):
    encodings = np.random.default_rng(1).normal(size=(40, 12)).astype(np.float32)
    encodings[7] = 0
    record, _ = write(tmp_path)
    (tmp_path / "text_encodings").mkdir()
    np.save(tmp_path / "text_encodings" / "0.npy", encodings)
    folder = {"path": str(tmp_path / "text_encodings"), "tokens": 2}
    record = EmbeddingsConfig.model_validate(record.model_dump() | {"text_encodings": folder})
    assert found_in(record) == []
    encodings[9, 3] = np.nan
    np.save(tmp_path / "text_encodings" / "0.npy", encodings)
    (line,) = found_in(record)
    assert told(line, "text_encodings", "1 of 40", "first row 9")
