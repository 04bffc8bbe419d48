"""A message is asked for its parts, whole and in any order; prose is refused, and no test asks in another way."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import assert_none
from tests.messages import naming, prose, told, told_each

PRINTED = {
    *("output", "stdout", "stderr", "out", "err", "said", "printed", "line", "lines", "caplog", "answer", "body"),
    *("message", "messages", "problem", "problems", "problem_of", "problems_of", "error", "errors", "refused"),
    *("refusal", "warning", "warnings", "gap", "gaps", "remark", "remarks", "reason", "reasons", "finding", "findings"),
    *("text", "texts", "words", "parts", "page", "headline", "facts", "summary", "summaries", "unused"),
    *("check_changes", "task_faults"),
}
"""Names under which tests keep what a person reads."""

COLUMNS = PRINTED - {"line", "text", "error"}
"""Names of what is expected of it in a table; the other ones may also be what a test gives."""

READING = {"startswith", "endswith", "count", "index", "find", "partition", "rpartition", "split"}
READING |= {"removeprefix", "removesuffix", "replace", "search", "match", "fullmatch", "findall"}
"""Methods that look for a text in another one."""

MESSAGE = "train.lr is 100 (in a.json); expected 0.1 to 12.\nLower it with --set train.lr=0.5, or -3 for 'a new one'."


def test_every_part_is_found_wherever_it_stands():
    assert re.search(naming("--set train.lr=0.5", 100, "'a new one'", "a.json", -3, 12, 0.1), MESSAGE)


@pytest.mark.parametrize("part", [10, 1, 2, 0, 5, 3, "rain.lr", "train", "lr", "json", "set", "expecte", "a.json)?"])
def test_a_piece_of_a_longer_word_or_number_is_not_found(part):
    assert not re.search(naming(100, part), MESSAGE)


def test_parts_are_told_by_one_message_of_the_output_with_its_indented_lines():
    output = f"run/a.json\n{MESSAGE.splitlines()[0]}\n  Lower it with --set train.lr=0.5\n\n7 steps\n"
    assert told(output, "train.lr", 100, "--set train.lr=0.5") and told(output, 7, "steps")
    assert not told(output, "train.lr", 7) and not told(output, "run/a.json", 100) and not told("", 7)
    with pytest.raises(ValueError, match=naming("['lower it with']")):
        told(output, "lower it with")


def test_messages_are_as_many_as_expected_and_each_names_its_parts_in_its_turn():
    messages = ["train.lr is 100", "data.seed is 3,\n  in b.json"]
    assert told_each(messages, ("train.lr", 100), ("data.seed", 3, "b.json"))
    assert told_each(iter(messages), 100, "b.json") and told_each([])
    assert not told_each(messages, 100) and not told_each(messages, 100, 3, 3) and not told_each([], 3)
    assert not told_each(messages, ("data.seed", 3), ("train.lr", 100)) and not told_each(messages, (100, 3), 3)
    with pytest.raises(ValueError, match=naming("['is a number']")):
        told_each(messages, "is a number", 3)


def test_prose_is_refused():
    assert prose("'a' is wrong: the fractions must sum to 1") == "the fractions must sum to"
    assert not any(map(prose, ["must sum", "'go to the left' is 1", "model.safetensors", 'pip install "dp_prior[x]"']))
    assert not prose("No space left on device") and prose("no space left on device")
    with pytest.raises(ValueError, match=naming("['must be above 0']")):
        naming("train.lr", "must be above 0")


@pytest.mark.parametrize("parts", [(), ("",), ("a", "")])
def test_nothing_is_refused(parts):
    with pytest.raises(ValueError, match=naming(parts)):
        naming(*parts)


@functools.lru_cache(maxsize=1)
def parts_of(source: str) -> list[ast.AST]:
    return [*ast.walk(ast.parse(source))]


def quoted(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every `match=` that is no call of `naming`, and of every sentence that is looked for in what a
    person reads, or stands in a table in the column of that name."""
    for node in parts_of(source):
        if not isinstance(node, (ast.keyword, ast.Compare, ast.Call, ast.For, ast.comprehension)):
            continue  # five times as fast as no match
        match node:
            case ast.keyword("match", value) if not _is_call(value, "naming"):
                yield value.lineno, f"match={ast.unparse(value)}"
            case ast.Compare(left, _, others) if _is_quoted([left, *others]):
                yield node.lineno, ast.unparse(node)
            case ast.Call(ast.Attribute(read, method), given) if method in READING and _is_quoted([read, *given]):
                yield node.lineno, ast.unparse(node)
            case ast.Call(ast.Attribute(_, "parametrize"), [names, table, *_]):
                yield from _in_columns(names, table)
            case ast.For(names, table) | ast.comprehension(names, table):
                yield from _in_columns(names, table)


def _in_columns(names: ast.expr, table: ast.expr) -> Iterator[tuple[int, str]]:
    """The sentences in those columns of a literal table whose names are of what a person reads."""
    columns = [getattr(name, "id", getattr(name, "value", None)) for name in _items(names)]
    if len(columns) == 1 and isinstance(columns[0], str):
        columns = columns[0].replace(",", " ").split()
    for row in _items(table):
        for name, cell in zip(columns, _items(row) if len(columns) > 1 else [row], strict=False):
            if name in COLUMNS and _is_sentence(cell):
                yield cell.lineno, ast.unparse(cell)


def _items(node: ast.expr) -> list[ast.expr]:
    match node:
        case ast.List(items) | ast.Tuple(items) | ast.Set(items) | ast.Call(_, items):
            return items
    return [node]


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _is_quoted(compared: list[ast.expr]) -> bool:
    """Whether one side is a sentence and another what a person reads."""
    return any(map(_is_sentence, compared)) and any(map(_is_read, compared))


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Constant(str(text)):
            return bool(prose(text))
        case ast.JoinedStr(parts):
            return bool(prose("".join(part.value if isinstance(part, ast.Constant) else '""' for part in parts)))
        case ast.List(items) | ast.Tuple(items) | ast.Set(items) | ast.Dict(_, items):
            return any(map(_is_sentence, items))
        case ast.BinOp(left, _, right):
            return _is_sentence(left) or _is_sentence(right)
    return False


def _is_read(node: ast.expr) -> bool:
    names = {getattr(part, "attr", getattr(part, "id", None)) for part in ast.walk(node)}
    return _is_call(node, "str") or not names.isdisjoint(PRINTED)


def test_what_quotes_a_sentence_is_found():
    lines = [
        "with raises(A, match='a sentence'):",
        "    assert 'this is prose' in str(b.value) and '1' in str(b)",
        "assert f'{a} is not empty' in done.output",
        "assert lines == ['1 of 2 runs are done']",
        "assert 'is not so' not in lines[0].lower() or capsys.readouterr().err == 'it is so'",
        "assert any(line.startswith('warning: it is so') for line in found) and caplog.text.count('it is so') == 1",
        "assert b.value.problems == ['one', f'{a}: it is so'] + more or page.facts == {'a': 'it is so'}",
        "assert re.search('it is so.*', texts[0]) or {'it is so'} <= set(found.gaps)",
        "@pytest.mark.parametrize('a, message', [(1, 'it is so'), pytest.param(2, ['it is so'], id='it is so')])",
        "def test(a, message): pass",
        "for text, words in ((1, 'it is so'), (2, 'is not')): pass",
        "assert all(words in found for words in ('this', 'it is so'))",
    ]
    sound = [
        "with raises(A, match=naming('lr', 1)):",
        "    assert 'train.lr' in str(b.value) and 'is done' in done.output and told(done.output, 'a', 'lr')",
        "assert name == 'this is prose' and lines == ['a', f'{b} c'] and line.count('a') == 1",
        "for text, parts in (('this is prose', ('is', 1)), *more): assert told_each(b.value.problems, parts)",
        "assert all('most recent call first' in text for text in texts)",
    ]
    found = sorted(line for line, _ in quoted("\n".join(lines + sound)))
    assert found == [1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 11, 12]


def unasserted(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every question to a message whose answer is dropped; inside `raises` the error is the answer."""
    if "import told" not in source and ", told" not in source:
        return
    nodes = parts_of(source)
    imports = [node for node in nodes if getattr(node, "module", "") == "tests.messages"]
    asking = {"told", "told_each"} & {name.name for node in imports for name in node.names}
    withs = [node for node in nodes if isinstance(node, ast.With) and "raises" in ast.unparse(node.items[0])]
    raising = {statement for node in withs for statement in node.body}
    statements = [node for node in nodes if isinstance(node, ast.Expr) and node not in raising]
    for statement in statements:
        if any(_is_call(statement.value, name) for name in asking):
            yield statement.lineno, ast.unparse(statement)


def test_an_answer_that_is_dropped_is_found():
    lines = ["from tests.messages import told", "told(a, 1)", "assert told(a, 1)", "with raises(A): told(a, 'b c')"]
    assert list(unasserted("\n".join(lines))) == [(2, "told(a, 1)")]
    assert not list(unasserted("def told(a): pass\ntold(1)"))


def test_no_test_quotes_the_sentence_of_an_error_or_of_printed_output():
    faults = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        faults += [
            f"{path}:{line}: {text}: ask for its parts, by naming(...), told(...) or told_each(...)"
            for line, text in quoted(source)
        ]
        faults += [f"{path}:{line}: {text}: assert it" for line, text in unasserted(source)]
    assert_none(faults)
