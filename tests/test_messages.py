"""A message is asked for its parts, whole and in any order; prose is refused, and no test asks in another way."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults import assert_none
from tests.messages import naming, prose, told

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
    """Line and text of every `match=` that is no call of `naming`, and of every sentence sought in `str(error)`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword("match", value) if not _is_call(value, "naming"):
                yield value.lineno, f"match={ast.unparse(value)}"
            case ast.Compare(ast.Constant(str(text)), [ast.In()], [sought]) if _is_call(sought, "str") and prose(text):
                yield node.lineno, ast.unparse(node)


def _is_call(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def test_what_quotes_a_sentence_is_found():
    lines = ["with raises(A, match='a sentence'):", "    assert 'this is prose' in str(b.value) and '1' in str(b)"]
    sound = ["with raises(A, match=naming('lr', 1)):", "    assert 'train.lr' in str(b.value)"]
    assert [line for line, _ in quoted("\n".join(lines + sound))] == [1, 2]


def test_no_test_quotes_the_sentence_of_an_error():
    faults = []
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if "match=" in source or "in str(" in source:
            faults += [f"{path}:{line}: {text}: ask for its parts, by naming(...)" for line, text in quoted(source)]
    assert_none(faults)
