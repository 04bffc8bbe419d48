"""What a notebook shows is HTML that says exactly what was given."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from dp_prior.config.rich_text import facts_table

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
