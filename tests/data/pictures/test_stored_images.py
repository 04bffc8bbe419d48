"""Test images from a source of their own, numbered as those that are trained on; and classes that nobody trains on."""

import numpy as np
import pytest
import torch

from dp_prior.config import ConfigError
from dp_prior.data.errors import DataError
from tests.data.pictures.sets import CLASSES, everything, images, opened, write_folder, write_npz, write_parquet
from tests.messages import naming

pytest.importorskip("PIL", reason="needs the extra image")


def test_the_test_part_may_have_a_source_of_its_own(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra lerobot")
    (pixels, labels), (tested, names) = images(), images(seed=1)
    record = write_npz(tmp_path / "a.npz", pixels, labels)
    other = write_parquet(tmp_path / "test", tested, names, classes=CLASSES[::-1])  # classes of other numbers
    plain, data = opened(tmp_path, record), opened(tmp_path, record, test_source=other, crop=[4, 2], channels=3)
    found = everything(data, "test")
    assert np.array_equal(found.x.numpy(), tested[:, 1:5, 1:3])
    assert [CLASSES[i] for i in found.cond["label"]] == names and data.spec.classes == plain.spec.classes
    assert torch.equal(everything(data).x, everything(plain).x[:, 1:5, 1:3]), "the split of the others stays"
    assert data.report()["images"] == 24 and data.report()["parts"] == {**plain.report()["parts"], "test": 12}
    assert len(data.cache_directories()) == 2 and data.cache_directories() > plain.cache_directories()
    fingerprints = {plain.fingerprint}
    for seed, classes in ((1, names), (2, names), (1, names[::-1])):
        here = write_npz(tmp_path / f"{seed}{classes[0]}.npz", images(seed=seed)[0], classes)
        fingerprints.add(opened(tmp_path, record, test_source=here).fingerprint)
    assert len(fingerprints) == 4


@pytest.mark.parametrize(
    ("size", "names", "message"),
    [
        (
            (4, 4),
            CLASSES,
            ("4 x 4", "6 x 4", "data.size"),
        ),
        ((6, 4), ("cat", "dog"), ("'eel'",)),
        ((6, 4), (*CLASSES, "yak"), ("'yak'",)),
    ],
)
def test_a_test_source_of_other_images_is_refused(size, names, message, tmp_path):
    pixels, labels = images()
    record = write_npz(tmp_path / "a.npz", pixels, labels)
    other = write_npz(tmp_path / "b.npz", images(size=size)[0], [names[i % len(names)] for i in range(12)])
    with pytest.raises(DataError, match=naming("a.npz", "b.npz", *message)):
        opened(tmp_path, record, test_source=other)


def test_a_test_source_that_is_trained_on_or_split_as_well_is_refused(tmp_path):
    record = write_npz(tmp_path / "a.npz", *images())
    with pytest.raises(DataError, match=naming("data.test_source", "data.source")):
        opened(tmp_path, record, test_source=record)
    with pytest.raises(ConfigError, match=naming("test_source", "split.test", 0.1, 0)):
        opened(tmp_path, record, test_source=record, split={"train": 0.8, "val": 0.1, "test": 0.1})


def test_a_test_source_inside_the_source_is_refused(tmp_path):
    """Files of training and of test in one folder, as of data sets on the Hub, would all be trained on."""
    pytest.importorskip("pyarrow", reason="needs the extra lerobot")
    record = write_parquet(tmp_path / "hub", *images())
    last = sorted((tmp_path / "hub").iterdir())[-1]
    with pytest.raises(DataError, match=naming("1 file", last, "data.source", "data.test_source")):
        opened(tmp_path, record, test_source={**record, "path": str(last)})
    record = write_folder(tmp_path / "all", *images(), labels_from="prefix")
    write_folder(tmp_path / "all" / "test", *images(seed=1), labels_from="prefix")
    with pytest.raises(DataError, match=naming("12 files", tmp_path / "all/test/cat_000.png", "data.source")):
        opened(tmp_path, record, test_source={**record, "path": str(tmp_path / "all" / "test")})
    pixels, labels = images()
    both = {"type": "npz", "path": str(tmp_path / "both.npz"), "labels": "labels"}
    np.savez(tmp_path / "both.npz", train=pixels, test=images(seed=1)[0], labels=labels)
    data = opened(tmp_path, {**both, "images": "train"}, test_source={**both, "images": "test"})
    assert len(data.test) == 12, "one file may hold an array of each"


def test_class_without_a_trained_image_is_refused(tmp_path):
    pixels, labels = images()
    record = write_npz(tmp_path / "a.npz", pixels, [*labels[:-1], "yak"])
    for seed in range(50):
        try:
            opened(tmp_path, record, split={"train": 0.5, "val": 0.5, "seed": seed})
        except DataError as error:
            if "'yak'" in str(error):
                assert "of 1" in str(error)
                return
    raise AssertionError("some split leaves the only yak to validation")
