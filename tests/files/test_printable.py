"""Control characters are shown, not sent."""

import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dp_prior.files.printable import as_unicode, duration, facts_table, is_secret_name, printable, redact
from tests.cases import every


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


CANARY = "Zq9canary8Xw7Vt"


@every(
    text=[
        f"hf_{CANARY}",
        f"invalid key wandb_v1_{CANARY}",
        f"https://user:{CANARY}@example.org/x",
        f"Post https://{CANARY}@host/graphql: refused",
        f"Authorization: Bearer {CANARY}",
        f"'Authorization': 'Basic {CANARY}'",
        f"GET /resolve?token={CANARY}&x=1",
        f"{{'api_key': '{CANARY}'}}",
        f'{{"api-key":"{CANARY}"}}',
        f"WANDB_API_KEY={CANARY}",
        f"password: {CANARY}, user: me",
        f"AWS_SECRET_ACCESS_KEY={CANARY}",
        f"eyJhbGciOi{CANARY}.eyJ{CANARY}.{CANARY}",
    ]
)
def test_a_secret_is_hidden(text):
    assert CANARY not in redact(text) and "[hidden]" in redact(text)
    assert redact(redact(text)) == redact(text)


def test_an_old_key_of_40_hex_digits_is_hidden_and_a_hash_is_not():
    assert redact("key 0123456789abcdef0123456789abcdef01234567!") == "key [hidden]!"
    assert redact("a" * 64) == "a" * 64


@pytest.mark.parametrize(
    "text",
    [
        "OSError: [Errno 28] No space left on device: '/runs/a/metrics.csv'",
        "ConnectionError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /api/x",
        "the tokenizer has 512 tokens of width 64",
        "loss of step 3 is nan; look at keyboard.json",
    ],
)
def test_other_text_stays_as_it_is(text):
    assert redact(text) == text


def test_names_of_secrets_are_known():
    assert all(is_secret_name(name) for name in ("api_key", "HF_TOKEN", "apikey", "secret", "Password"))
    assert not any(is_secret_name(name) for name in ("space_id", "tokenizer", "keys", "tracking_uri", "n_tokens_max"))


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8) | st.sampled_from(["<b>", "&amp;", "'\">"])


class Cells(HTMLParser):
    """Text by the element around it."""

    def __init__(self, page):
        super().__init__()
        self.open, self.found = [], []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert not attrs
        self.open.append(tag)
        if tag in ("strong", "th", "td"):
            self.found.append([tag, ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.found[-1][1] += data


@given(TEXTS, st.dictionaries(TEXTS, TEXTS | st.integers(), max_size=4))
def test_a_reader_finds_the_title_and_every_fact_and_no_other_element(title, facts):
    expected = [["strong", title]]
    for name, value in facts.items():
        expected += [["th", name], ["td", str(value)]]
    assert Cells(facts_table(title, facts)).found == expected


def test_durations_have_two_units_at_most_and_grow_with_the_time():
    assert [duration(s) for s in (0.1, 89, 90, 3599, 12_000, 183_600)] == [
        "1 s", "89 s", "2 min", "1 h 0 min", "3 h 20 min", "2 d 3 h"
    ]  # fmt: skip
