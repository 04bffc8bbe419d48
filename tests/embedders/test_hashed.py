"""The hashed bag of words: the same on every machine, near for texts with common words, far for others."""

import numpy as np
import pytest

from dp_prior.embedders.hashed import HashedConfig
from tests.messages import naming


def test_embeddings_are_those_of_all_versions():
    """The function is what stored embeddings mean, so it never changes."""
    found = HashedConfig(dimension=8).create().texts(["push the T"])[0]
    features = ["push", "the", "t", "<pu#", "pus#", "ush#", "sh>#", "<th#", "the#", "he>#", "<t>#"]
    expected = np.zeros(8)
    import hashlib

    for feature in features:
        number = int.from_bytes(hashlib.sha256(feature.encode()).digest()[:8], "little")
        expected[number // 2 % 8] += (-1, 1)[number % 2]
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), rtol=1e-6)
    assert found.dtype == np.float32


def test_case_punctuation_and_order_do_not_count_and_words_do():
    embed = HashedConfig(dimension=256).create().texts
    same = embed(["push left", "Push,  LEFT!", "left push"])
    np.testing.assert_array_equal(same, same[:1].repeat(3, 0))
    text, near, far = embed(["push the block to the left", "push the block to the right", "open a drawer"])
    assert text @ text == pytest.approx(1) and 0.5 < text @ near < 0.95 and text @ far < 0.3
    np.testing.assert_array_equal(embed(["a b", "c"])[1], embed(["c"])[0])


def test_the_dimension_is_that_of_the_record():
    assert HashedConfig(dimension=16).create().texts(["a"]).shape == (1, 16)
    assert HashedConfig().identity != HashedConfig(dimension=16).identity and HashedConfig().resolve() == HashedConfig()


def test_what_it_cannot_embed_is_an_error():
    model = HashedConfig().create()
    with pytest.raises(ValueError, match=naming("'?!'", "letter")):
        model.texts(["?!"])
    with pytest.raises(ValueError, match=naming("hashed", "CLIP")):
        model.frames(np.zeros((1, 8, 8, 3), np.uint8))
