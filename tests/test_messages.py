"""A message is asked for its parts, whole and in any order; prose is refused."""

import re

import pytest

from tests.messages import naming, prose

MESSAGE = "train.lr is 100 (in a.json); expected 0.1 to 12.\nLower it with --set train.lr=0.5, or -3 for 'a new one'."


def test_every_part_is_found_wherever_it_stands():
    assert re.search(naming("--set train.lr=0.5", 100, "'a new one'", "a.json", -3, 12, 0.1), MESSAGE)


@pytest.mark.parametrize("part", [10, 1, 2, 0, 5, 3, "rain.lr", "train", "lr", "json", "set", "expecte", "a.json)?"])
def test_a_piece_of_a_longer_word_or_number_is_not_found(part):
    assert not re.search(naming(100, part), MESSAGE)


def test_prose_is_refused():
    assert prose("'a' is wrong: the fractions must sum to 1") == "the fractions must sum to"
    assert not any(map(prose, ["must sum", "'go to the left' is 1", "model.safetensors", 'pip install "dp_prior[x]"']))
    assert not prose("No space left on device") and prose("no space left on device")
    with pytest.raises(ValueError, match=naming("['must be above 0']")):
        naming("train.lr", "must be above 0")


@pytest.mark.parametrize("parts", [(), ("",), ("a", "")])
def test_nothing_is_refused(parts):
    with pytest.raises(ValueError, match=naming(parts)):
        naming(*parts)
