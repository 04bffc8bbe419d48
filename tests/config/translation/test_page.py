"""The page has every row of every table."""

from dp_prior.config.translation.libraries import LIBRARIES
from dp_prior.config.translation.omissions import OMISSIONS
from dp_prior.config.translation.page import page


def test_the_page_has_a_section_for_each_library_and_a_line_for_each_setting():
    text = page(LIBRARIES, OMISSIONS)
    sections = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert sections[:-1] == [library.name for library in LIBRARIES] and "Left out" in sections[-1]
    missing = [row.theirs for library in LIBRARIES for row in library.rows if f"| `{row.theirs}` | " not in text]
    assert len(LIBRARIES) == 7 and not missing
