"""The pages of this folder as a site: `python -m sphinx -W --keep-going docs build/site`.

Pages are the Markdown that GitHub shows. The lists of `index.md` are the navigation, so a page that no list links to
fails the build, and so does a link or an anchor that leads nowhere. The site asks no other host for anything.
"""

import re

from sphinx.application import Sphinx

project = "dp_prior"
extensions = ["myst_parser"]
myst_heading_anchors = 6  # the anchors of GitHub
smartquotes = False  # quotes and dashes of commands stay as they are written

html_theme = "furo"
html_title = project
html_show_copyright = html_copy_source = html_use_index = False


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Show titles in place of names of pages, offer Markdown of other folders as files, and add the navigation.

    The navigation is a hidden table of contents for each heading of `index.md`, of the links that begin its list items.
    """
    text = re.sub(r"\[(\w+\.md)\]\((\1[#\w-]*)\)", r"[](\2)", source[0])
    text = re.sub(r"\[([^]]+)\]\((\.\./[^)#]+\.md)\)", r"{download}`\1 <\2>`", text)
    for section in text.split("\n## ")[1:] if page == app.config.root_doc else []:
        caption, _, body = section.partition("\n")
        entries = [f"{label} <{name}>" for label, name in re.findall(r"^- \[(.+?)\]\((\w+)\.md\)", body, re.MULTILINE)]
        if entries:
            text += "\n".join(["\n```{toctree}", ":hidden:", f":caption: {caption}", "", *entries, "```\n"])
    source[0] = text


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", adapt)
    # Browsers refuse to fetch() from file://. The index is a script and loads; only the excerpts of pages are fetched.
    app.add_js_file(None, body='DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = location.protocol !== "file:";')
    return {"parallel_read_safe": True}
