"""Names of cached observations: of one file each on every disk, and their own where that is possible."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.files.file_names import alike, is_portable
from dp_prior_streams.cache_names import LONGEST, file_names
from tests.examples import examples

KEYS = [
    "a",
    "A",
    "State",
    "state",
    "STATE",
    "con",
    "Con",
    "é",
    "É",
    "x" * 80,
    "x" * 81,
    "名" * 40,
    "a-",
    "-1",
    "e\u0301",
]


def assert_lawful(keys):
    names = file_names(keys)
    assert names.keys() == {*keys} and names == file_names(reversed(keys))
    assert alike(names.values()) is None and len({*names.values()}) == len(names)
    assert all(map(is_portable, names.values()))
    assert all(len(name.encode()) <= LONGEST for name in names.values())


def test_each_choice_of_names_keeps_the_laws():
    digests = [*file_names(["a", "A"]).values()]
    for keys in itertools.combinations([*KEYS, *digests], 3):
        assert_lawful([*keys])


@examples(200)
@given(st.lists(st.text(max_size=100), max_size=8))
@example(["A", "a", "a-ca978112ca1b"])
def test_any_names_keep_the_laws(keys):
    assert_lawful(keys)


def test_plain_names_that_stay_apart_are_their_own():
    keys = ["state", "action", "gripper-2", "task_index", "名前", "x" * LONGEST]
    assert file_names(keys) == dict(zip(keys, keys, strict=True))
    assert file_names(["State", "state", "goal"])["goal"] == "goal"
