"""A message is asked for its parts, whole and in any order; prose is refused, and no test asks in another way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import assert_none
from tests.messages import naming, prose, told

PRINTED = {"output", "stdout", "stderr", "out", "err", "said", "printed", "line", "lines", "caplog"}
"""Names under which tests keep what a person reads."""

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


def quoted(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every `match=` that is no call of `naming`, and of every sentence that is compared with
    `str(error)` or with printed output."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword("match", value) if not _is_call(value, "naming"):
                yield value.lineno, f"match={ast.unparse(value)}"
            case ast.Compare(left, _, others) if _is_quoted([left, *others]):
                yield node.lineno, ast.unparse(node)
            case ast.Call(ast.Attribute(read, "startswith" | "endswith" | "count"), given) if _is_quoted(
                [read, *given]
            ):
                yield node.lineno, ast.unparse(node)


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def _is_quoted(compared: list[ast.expr]) -> bool:
    """Whether one side is a sentence and another what a person reads."""
    return any(map(_is_sentence, compared)) and any(map(_is_read, compared))


def _is_sentence(node: ast.expr) -> bool:
    match node:
        case ast.Constant(str(text)):
            return bool(prose(text))
        case ast.JoinedStr(parts):
            return bool(prose("".join(part.value if isinstance(part, ast.Constant) else '""' for part in parts)))
        case ast.List(items) | ast.Tuple(items):
            return any(map(_is_sentence, items))
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
    ]
    sound = [
        "with raises(A, match=naming('lr', 1)):",
        "    assert 'train.lr' in str(b.value) and 'is done' in done.output and told(done.output, 'a', 'lr')",
        "assert page == 'this is prose' and lines == ['a', f'{b} c'] and line.count('a') == 1",
    ]
    assert sorted(line for line, _ in quoted("\n".join(lines + sound))) == [1, 2, 3, 4, 5, 5, 6, 6]


def test_no_test_quotes_the_sentence_of_an_error_or_of_printed_output():
    faults = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        found = quoted(path.read_text(encoding="utf-8"))
        faults += [f"{path}:{line}: {text}: ask for its parts, by naming(...) or told(...)" for line, text in found]
    assert_none(faults)
