"""Images in chunks: every image is in one chunk, none crosses a file, and classes are numbered in their order."""

from pathlib import Path

import numpy as np
import pytest

from dp_prior.data.errors import DataError
from dp_prior.data.pictures import image_source
from dp_prior.data.pictures.image_source import ImageSource, numbered


class Held(ImageSource):
    """Images of one pixel, none of which is read."""

    size = (1, 1)

    def read(self, part, skip):
        raise NotImplementedError

    def files(self):
        return []

    def describe(self):
        return {}


def source(counts, labels=None):
    return Held(Path("set"), counts, [f"file {number}" for number in range(len(counts))], labels)


@pytest.mark.parametrize("at_once", [1, 3, 1024])
@pytest.mark.parametrize("counts", [[1], [3], [7, 0, 4], [0, 6, 3, 1]])
def test_chunks_divide_each_file_and_no_chunk_is_empty_or_too_large(counts, at_once, monkeypatch):
    monkeypatch.setattr(image_source, "IMAGES_AT_ONCE", at_once)
    found = source(counts)
    sizes = np.diff(found.ends, prepend=0)
    assert len(found) == sum(counts) == sizes.sum() and sizes.min() > 0 and sizes.max() <= at_once
    chunks = [number for part in found.parts for number in part.episodes]
    assert chunks == list(range(len(found.ends)))
    assert [sum(sizes[list(part.episodes)]) for part in found.parts] == [count for count in counts if count]


def test_classes_are_ordered_by_number_and_then_by_name_and_each_label_points_at_its_name():
    names = ["10", "dog", "9", "cat", "9", "010"]
    labels, classes = numbered(names)
    assert classes == ["9", "010", "10", "cat", "dog"] and [classes[label] for label in labels] == names


@pytest.mark.parametrize(
    ("counts", "labels", "words"),
    [
        ([0, 0], None, ["no images"]),
        ([2], (np.zeros(3, np.int64), ["a"]), ["3 labels", "2 images"]),
        ([2], (np.zeros(2, np.int64), ["Cat", "dog", " cat "]), ["'Cat'", "' cat '", "rename"]),
        ([2], (np.zeros(2, np.int64), ["caf\udce9"]), ["UTF-8", "rename"]),
    ],
)
def test_images_without_one_clear_label_each_are_refused(counts, labels, words):
    with pytest.raises(DataError) as caught:
        source(counts, labels)
    assert all(word in str(caught.value) for word in ["set", *words])
