"""A page shows every part that it has, escaped, and pages of several sets are one after another."""

import dataclasses
import re

import pytest

from dp_prior_studio.pages.page import Markup, Page, template
from tests.messages import naming
from tests.plugins.dp_prior_studio.pages.test_report import Outline

FULL = Page(
    title="a < b",
    state="running",
    description="<i>words</i>",
    headline=[("score", "0.5", "0.4 to 0.6")],
    facts={"samples": "8", "place": "</td>"},
    films=[{"text": "a film", "source": None, "file": "media/f.mp4"}],
    summaries=[("Findings", ("what",), [("a fault",)])],
    strips=[("a strip", "data:image/png;base64,AA==")],
    sections=[("Curves", [("loss", Markup("<svg><title>chart</title></svg>"))])],
    tables=[("Table", ("column",), [("cell",)])],
    details=[("Details", ("setting",), [("value",)])],
    commands=["dp-prior evaluate 'a b'"],
    gaps=["<missing>"],
)


def text_of(page):
    return " ".join(text.strip() for text in Outline(page.render()).texts if text.strip())


def test_every_part_is_shown_as_it_was_written():
    text = text_of(FULL)
    for part in ("a < b", "running", "<i>words</i>", "0.5", "0.4 to 0.6", "</td>", "a film", "a fault", "a strip"):
        assert part in text
    for part in ("Curves", "chart", "Table", "cell", "Details", "value", "dp-prior evaluate 'a b'", "<missing>"):
        assert part in text


def test_parts_are_folded_but_films_scores_and_those_that_are_opened():
    html = dataclasses.replace(FULL, opened=["Curves"]).render()
    for title in ("Findings", "Pictures", "Table", "Details", "Use"):
        assert f"<details><summary><h2>{title}</h2></summary>" in html
    first_screen = re.sub(r"<details.*?</details>", "", html, flags=re.DOTALL)
    assert all(part in first_screen for part in ("0.4 to 0.6", "a film", "<h2>Curves</h2>", "chart", "&lt;missing&gt;"))
    assert not any(part in first_screen for part in ("a fault", "cell", "a strip"))
    assert "<details><summary><h2>Curves</h2></summary>" in FULL.render()
    assert "details::details-content" in html, "a page on paper has all parts"


def test_one_episode_is_open_at_a_time():
    curve = Markup('<svg class="curve"><path/></svg>')
    html = Page(title="t", episodes=[("episode 3", [("joint <1>", curve)]), ("episode 9", [("joint", curve)])]).render()
    Outline(html)
    assert re.findall(r'<details class="one" name="episode"( open)?><summary>(.*?)</summary>', html) == [
        (" open", "episode 3"),
        ("", "episode 9"),
    ]
    assert "joint &lt;1&gt;" in html and html.count('<svg class="curve">') == 2


def test_tables_are_stacked_on_a_phone_with_the_name_of_each_column():
    html = Page(title="t", tables=[("T", ("a <b>", "c"), [("1", "2")])]).render()
    assert '<td data-label="a &lt;b&gt;">1</td><td data-label="c">2</td>' in html
    phone = re.search(r"@media \(max-width: 40rem\) {(.*?)\n}", html, re.DOTALL)[1]
    assert ".stacked thead { display: none }" in phone and "content: attr(data-label)" in phone


def test_empty_parts_are_left_out():
    text = text_of(Page(title="t"))
    assert not any(part in text for part in ("Curves", "Findings", "None"))
    assert len(text) < len(text_of(FULL))


def test_joined_pages_hold_the_parts_of_both_in_order_whichever_are_joined_first():
    pages = [dataclasses.replace(FULL, title=name, gaps=[name], facts={name: "1"}) for name in "abc"]
    one, two, three = pages
    assert one.joined(two).joined(three) == one.joined(two.joined(three))
    joined = one.joined(two)
    assert joined.title == "a" and joined.gaps == ["a", "b"] and list(joined.facts) == ["a", "b"]
    assert one.gaps == ["a"], "the parts are left as they were"


def test_a_page_is_one_file_that_replaces_the_one_before(tmp_path):
    output = tmp_path / "new" / "page.html"
    for page in (Page(title="before"), FULL):
        assert page.write(output) == output
    assert output.read_text() == FULL.render() and [path.name for path in output.parent.iterdir()] == ["page.html"]


def test_names_of_files_that_are_no_text_are_written(tmp_path):
    Page(title="a\udcff").write(tmp_path / "page.html")
    assert "a?" in (tmp_path / "page.html").read_text()


def test_a_template_that_names_what_it_is_not_given_fails(tmp_path):
    (tmp_path / "t.html").write_text("{{ known }} {{ unknown }}")
    with pytest.raises(Exception, match=naming("'unknown'")):
        template(tmp_path / "t.html").render(known="<b>")
    (tmp_path / "u.html").write_text("{{ known }}")
    assert template(tmp_path / "u.html").render(known="<b>") == "&lt;b&gt;"


def test_numbers_of_a_table_stay_whole_and_long_texts_wrap():
    page = Page(title="t", tables=[("T", ("a", "b"), [("-0.7866 (-1 to 0.12)", "a text of several words that wraps")])])
    html = page.render()
    assert '<td data-label="a">-0.7866 (-1 to 0.12)</td>' in html
    assert '<td class="long" data-label="b">a text of several words' in html
    assert "td, th { white-space: nowrap; overflow-wrap: normal }" in html
    assert "td.long { white-space: normal; min-width" in html


def rules(html, media=None):
    """The declarations of the style sheet by selector, of a medium or of all media."""
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    blocks = dict(re.findall(r"@media (\w+) {((?:[^{}]*{[^{}]*})*[^{}]*)}\s*$", style))
    found = {}
    for selectors, text in re.findall(r"([^{}]+){([^{}]*)}", blocks[media] if media else style):
        for selector in selectors.split(", "):
            declared = (line.partition(":")[::2] for line in text.split(";") if ":" in line)
            found.setdefault(selector.strip(), {}).update({name.strip(): value.strip() for name, value in declared})
    return found


def test_a_name_without_spaces_makes_no_page_wider_than_a_phone():
    every = rules(FULL.render())
    assert every["body"]["overflow-wrap"] == "anywhere" and every["td"]["overflow-wrap"] == "normal"


def test_paper_does_not_scroll_so_nothing_is_cut_there():
    html = FULL.render()
    scrolling = {name for name, told in rules(html).items() if told.get("overflow-x") == "auto"}
    printed = rules(html, "print")
    wrapped = {name for name in scrolling if printed[name].get("white-space") == "pre-wrap"}
    assert scrolling >= {".scroll", "pre", "figure:has(> svg.wide)"} and wrapped == {"pre"}
    assert {printed[name]["overflow"] for name in scrolling - wrapped} == {"visible"}
    assert printed["figure svg.wide"]["min-width"] == "0", "it is wider than A4"
    assert printed["h2"]["break-after"] == "avoid", "a heading without its table ends no sheet"


def test_a_page_replaces_a_page_and_nothing_else(tmp_path):
    page = FULL.write(tmp_path / "new/page.html")
    assert dataclasses.replace(FULL, title="other").write(page).read_text() != FULL.render()
    (tmp_path / "config.json").write_text("{}")
    for other in (tmp_path / "config.json", tmp_path):
        with pytest.raises(FileExistsError, match=naming(str(other), "no page", "another file")):
            FULL.write(other)
    assert (tmp_path / "config.json").read_text() == "{}"
