"""Which names some disks refuse or take for one, against a brute force over pairs and models of such disks."""

import itertools
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dp_prior.files.file_names import alike, folded, is_portable
from tests.examples import examples

LETTERS = ["a", "A", "b", "é", "e\u0301", "É", "E\u0301", "ß", "ẞ", "K", "\u212a", "Å", "\u212b", ".", " ", "/", "_"]
TEXTS = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=5).map("".join)


def windows(name: str) -> str:
    """The file that Windows opens: capitals alike, each character by itself, without dots and spaces at the end."""
    return name.rstrip(". ").upper() or name


def macos(name: str) -> str:
    """The file that APFS opens: case folded, accents composed or not."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def test_each_pair_that_a_disk_takes_for_one_is_alike():
    names = ["".join(letters) for length in (1, 2) for letters in itertools.product(LETTERS, repeat=length)]
    names = [name for name in names if "/" not in name and name.strip(". ")]
    for first, second in itertools.combinations(names, 2):
        if windows(first) == windows(second) or macos(first) == macos(second):
            assert alike([first, second]) == (first, second), (first, second)
    plain = ["".join(letters) for letters in itertools.product("abc_1", repeat=3)]
    assert alike(plain) is None and alike(plain * 2) is None


@given(TEXTS)
@example("..")
@example("../a")
@example("a./b ")
def test_folding_again_changes_nothing_and_keeps_the_parts_of_a_path(path):
    assert folded(folded(path)) == folded(path) and folded(path).count("/") == path.count("/")
    assert (folded(path) in ("..", "../a")) == (path in ("..", "../a"))


@examples(400)
@given(st.lists(TEXTS, max_size=6))
def test_the_pair_is_that_of_a_search_over_all_pairs(names):
    pairs = [pair for pair in itertools.combinations(names, 2) if pair[0] != pair[1]]
    shared = [pair for pair in pairs if folded(pair[0]) == folded(pair[1])]
    pair = alike(names)
    assert (pair is None) == (not shared)
    assert pair is None or pair in shared


@pytest.mark.parametrize("name", ["con", "CON", "Nul.json", "aux .txt", "COM1", "lpt9.x", "com¹", "conin$", "prn.a.b"])
def test_names_of_devices_are_not_portable_but_longer_words_are(name):
    assert not is_portable(name)
    assert is_portable(f"{name.replace(' ', '')}_".replace(".", "_")) and is_portable(f"a{name}")


@pytest.mark.parametrize("character", '<>:"/\\|?*\n\0\x7f\ud800')
def test_characters_that_windows_refuses_are_not_portable(character):
    assert not any(map(is_portable, (character, f"a{character}b", f"{character}a", f"a{character}")))


def test_endings_and_accents_in_two_characters_are_not_portable():
    assert not any(map(is_portable, ("", ".", "..", "a.", "a ", "a. ", "e\u0301")))
    assert all(map(is_portable, ("a", ".a", "a.b", "a b", "é", "Rollout-2", "名前", "console", "com10", "null")))
