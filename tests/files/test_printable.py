"""Control characters are shown, not sent."""

import unicodedata

import pytest

from dp_prior.files.printable import as_unicode, printable


@pytest.mark.promise("K14")
def test_control_characters_are_shown_and_nothing_else_changes():
    for sound in ("", "a b\tc\nd", "Größe 5 µm → 3, 日本, 🤖", "\\x1b"):
        assert printable(sound) == sound
    assert printable("\x1b]0;PWNED\x07") == r"\x1b]0;PWNED\x07"
    assert printable("a\rb\x00\x7f\x9b") == r"a\rb\x00\x7f\x9b"
    assert printable("\u202eevil\u2028\udcff") == r"\u202eevil\u2028\udcff"
    every = "".join(map(chr, range(0x3000)))
    assert printable(every).isascii() is False and printable(printable(every)) == printable(every)
    left = {char for char in printable(every) if unicodedata.category(char) in ("Cc", "Zl", "Zp", "Cs")}
    assert left == {"\t", "\n"}


def test_bytes_that_are_no_text_are_shown_and_nothing_else_changes():
    for sound in ("", "/a b/Größe 日本 🤖", "\\udcff", "\x1b"):
        assert as_unicode(sound) == sound
    assert as_unicode("a\udcff/ü") == r"a\udcff/ü"
