"""Docstrings and comments say the noun: at most one "it", "that", "those", "what", "one" alone in a sentence."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.frame import nodes_of

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "dp_prior", ROOT / "dp_prior_client", ROOT / "plugins")
MOST = 1

_ALONE = (  # ends a clause, or is followed by a word that is no noun
    r"(?=\s*(?:[.,:;!?)]|$)|\s+(?:of|that|which|who|whose|in|with|at|on|from|for|by|to|as|than|is|are|was|were|has|have"
    r"|does|do|can|will|may|must|and|or|but|without|before|after)\b)"
)
BARE = re.compile(
    rf"\bit\b|\b(?:what|whatever|whoever)\b|\b(?:those|these|ones?|another){_ALONE}"
    r"|\bthat(?=\s*(?:[.,:;!?)]|$)|\s+of\b)",
    re.IGNORECASE,
)
"""A pronoun without its noun. `that` is a pronoun only where no clause can follow."""
_CODE = re.compile(r"`[^`]*`|\"[^\"]*\"")
_BLOCK = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |[\w*]+(?:, [\w*]+)*:\s))")  # paragraphs, items, arguments
_TEXT_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|'  # in which a # begins no comment
    r"'''(?:\\.|[^\\])*?'''|"
    r'"(?:\\.|[^"\\\n])*"|'
    r"'(?:\\.|[^'\\\n])*'|"
    r"#[^\n]*",
    re.DOTALL,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: of the module, classes, functions, fields and constants."""
    for node in nodes:
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            match child:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield child.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every comment; consecutive lines of comments are one text."""
    blocks: list[tuple[int, list[str]]] = []
    line, last = 1, 0
    for token in _TEXT_OR_COMMENT.finditer(source):
        line, last = line + source.count("\n", last, token.start()), token.start()
        if token[0].startswith("#"):
            text, before = token[0].lstrip("# "), source[source.rfind("\n", 0, last) + 1 : last]
            if blocks and not before.strip() and line == blocks[-1][0] + len(blocks[-1][1]):
                blocks[-1][1].append(text)
            else:
                blocks.append((line, [text]))
    return ((line, "\n".join(texts)) for line, texts in blocks)


def sentences(text: str) -> Iterator[str]:
    """The sentences of a docstring or comment; every argument and every item of a list begins a new sentence."""
    for block in _BLOCK.split(text):
        yield from (" ".join(sentence.split()) for sentence in _SENTENCE.split(block.strip()))


def bare(sentence: str) -> list[str]:
    """The pronouns of a sentence that stand without their noun; code and quotations do not count."""
    return [found[0].lower() for found in BARE.finditer(_CODE.sub("`", sentence))]


def test_pronouns_without_their_noun_are_found():
    assert bare("What it still owes, each checkpoint as what it failed to be") == ["what", "it", "what", "it"]
    assert bare("those of its own type, or those of another one that it takes the place of")[:2] == ["those", "those"]
    assert bare("The value is that of the highest layer, or takes the place of that.") == ["that", "that"]
    assert bare("The tensors that fit those shapes, one row each, say that another rank has died.") == []
    assert bare('`it` and "what it does" are code.') == []


def test_every_docstring_and_comment_is_read():
    source = 'A = 1\n"Of A."\n# Of\n# B.\nB = 2  # of two\n\ndef f(): "Of f."\n\nclass C:\n    c: int\n    "Of c."\n'
    assert sorted(docstrings(ast.walk(ast.parse(source)))) == [(2, "Of A."), (7, "Of f."), (11, "Of c.")]
    assert list(comments(source)) == [(3, "Of\nB."), (5, "of two")]
    text = "Do it. Then stop.\n\nArgs:\n    one: its\n        size.\n    two, three: it."
    assert list(sentences(text)) == ["Do it.", "Then stop.", "Args:", "one: its size.", "two, three: it."]


def test_sentences_name_what_they_speak_of():
    faults, paths = [], sorted(path for package in PACKAGES for path in package.rglob("*.py"))
    assert {path.relative_to(ROOT).parts[0] for path in paths} == {"dp_prior", "dp_prior_client", "plugins"}
    for path in paths:
        source = path.read_text(encoding="utf-8")
        for line, text in [*docstrings(nodes_of(path)), *comments(source)]:
            for sentence in sentences(text):
                if len(found := bare(sentence)) > MOST:
                    faults.append(f"{path.relative_to(ROOT)}:{line}: {', '.join(found)}: {sentence}")
    assert not faults, "name the nouns:\n" + "\n".join(faults)
