"""The digits of scikit-learn."""

import hashlib

import numpy as np
import pytest

from dp_prior.data.pictures.digits import DigitsConfig


def test_the_digits_with_their_labels():
    datasets = pytest.importorskip("sklearn.datasets", reason="NOT CHECKED: the extra dp_prior[image] is not installed")
    found, expected = DigitsConfig().create(labelled=True, uniform=True), datasets.load_digits()
    assert len(found) == 1797 and found.classes == tuple("0123456789")
    assert np.array_equal(found.labels, expected.target)
    pixels = np.concatenate(list(found.read(found.parts[0], 0)))
    assert pixels.shape == (1797, 8, 8, 3) and np.array_equal(np.round(pixels[..., 1] / 255 * 16), expected.images)
    assert np.array_equal(next(found.read(found.parts[0], 1024)), pixels[1024:])
    assert DigitsConfig().create(labelled=False, uniform=True).labels is None
    assert found.describe()["pixels"] == hashlib.sha256(pixels[..., 0].tobytes()).hexdigest()
    assert not (found.files() or DigitsConfig().places())
