"""Shuffled instructions: every row is told what another one is to do."""

import numpy as np
import pytest

from dp_prior.evaluation.shuffle import refuse_shuffling, shuffled
from dp_prior.tensors.batch import Spec
from tests.cases import every
from tests.messages import naming

SPEC = Spec(x_shape=(4, 2), cond_shapes={"a": (1, 3), "told": (1, 8)}, kinds={"told": "text"})


@every(seed=range(5))
def test_every_row_gets_another_text_of_the_block_and_the_same_one_each_time(seed):
    texts = np.array(["a", "a", "b", "c", "a", "b"])
    obs = {"told": texts, "a": np.arange(6)}
    found = shuffled(obs, ["told"], seed)
    assert (found["told"] != texts).all() and set(found["told"]) <= set(texts)
    assert found["a"] is obs["a"] and (texts == ["a", "a", "b", "c", "a", "b"]).all()
    np.testing.assert_array_equal(shuffled(obs, ["told"], seed)["told"], found["told"])
    np.testing.assert_array_equal(shuffled(obs, [], seed)["told"], texts)


def test_texts_spread_over_the_others():
    texts = np.repeat(np.array(["a", "b", "c", "d"]), 200)
    found = shuffled({"told": texts}, ["told"], 0)["told"]
    shares = [np.mean(found[texts == "a"] == other) for other in "bcd"]
    assert min(shares) > 0.2


def test_nothing_to_exchange_and_no_text_are_named():
    with pytest.raises(ValueError, match=naming("3 episodes", "'told', 'x'", "env.n_envs")):
        shuffled({"told": np.array(["x"] * 3)}, ["told"], 0)
    refuse_shuffling(SPEC, ["told"])
    with pytest.raises(ValueError, match=naming("shuffle", "['a', 'b']", "['told']")):
        refuse_shuffling(SPEC, ["told", "a", "b"])
