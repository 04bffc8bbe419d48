"""The pages stay short: their words are counted as `python -m tests.prose` prints them, and may only become fewer."""

import re

from tests.prose import GENERATED, ROOT, counts, pages, words

MOST = 30_000
"""Words of prose in all pages. A new page displaces words of others."""

CHANGES = 2_000
"""Words of the changelog, tables included."""

LONGEST = 2_300
"""Words of prose in a page."""


def test_pages_have_at_most_so_many_words_of_prose():
    by_page = counts()
    longest = sorted(by_page, key=by_page.get)[-5:]
    total = sum(by_page.values())
    assert total <= MOST, f"{total:,} words, at most {MOST:,}; the longest are {', '.join(reversed(longest))}"
    assert by_page[longest[-1]] <= LONGEST, f"{longest[-1]} has {by_page[longest[-1]]:,} words, at most {LONGEST:,}"


def test_the_changelog_says_what_users_of_a_release_must_know():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    count = len(text.split())
    assert count <= CHANGES, f"{count:,} words, at most {CHANGES:,}: say what a user must do, or leave it to the commit"
    releases = re.findall(r"^## \[(\d+)\.(\d+)\.(\d+)\] - (?:unreleased|\d{4}-\d\d-\d\d)$", text, re.MULTILINE)
    assert len(releases) == text.count("\n## ") and len(releases) >= 2
    numbers = [tuple(map(int, release)) for release in releases]
    assert numbers == sorted(numbers, reverse=True), "the newest release comes first"


def test_prose_is_what_is_read_as_sentences():
    page = """# A heading

Two words ![a picture of something](media/picture.png) here.

    indented code

| a | table |
|---|---|

<!-- a comment
over lines -->

- an item:
  ```bash
  fenced code
  ```
"""
    assert words(page) == len(["#", "A", "heading", "Two", "words", "here.", "-", "an", "item:"])


def test_every_page_is_counted_or_written_by_a_command():
    on_disk = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert on_disk == {page for page in pages() if page.startswith("docs/")} | GENERATED
    for page in GENERATED:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert "python -m" in text or "generated" in text.lower(), page
