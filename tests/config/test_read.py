"""Text is plain JSON with every key once, or it is refused with its place."""

import copy
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from dp_prior.config import Config, ConfigError
from dp_prior.config.read import Layers, files_of, parse_json
from tests.config.records import MINIMAL, Run, problems, read
from tests.messages import naming, told, told_each


def test_a_file_with_a_byte_order_mark_and_a_schema_line_reads(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"$schema": "train_config.schema.json", **MINIMAL}), encoding="utf-8-sig")
    assert Run.from_json_path(path) == read(MINIMAL)
    assert Run.from_json_path(str(path), ["use_ema=false"]).use_ema is False


@pytest.mark.promise("I3")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"task": {"horizon": 1}, "task": {"horizon": 2}}', ("'task'", "twice", "keep one")),
        ('{"learning_rate": NaN}', ("NaN", "JSON", "finite", "null")),
        ('{"learning_rate": -Infinity}', ("-Infinity", "JSON")),
        ('{"learning_rate": 1e999}', ("'1e999'", "too large")),
        ('{"learning_rate": ' + "1" * 5000 + "}", ("integer", "digits")),
        ("[1]", ("list", "object {...}")),
        ("", ("line 1, column 1", "JSON", "empty")),
        ('{"task": 1, # mine', ("line 1, column 13", "JSON", "no comments")),
        ('{"task": [1,]}', ("JSON",)),
        ('{"task": }', ("line 1, column 10", "JSON", "Expecting value")),
        ("{} {}", ("line 1, column 4", "JSON", "Extra data")),
        ('{"a":' * 100_000, ("nested", "deeply")),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", ("nested", "deeply")),
        ('{"description": "\\ud800"}', ("text", "Unicode")),
    ],
)
def test_text_that_is_not_plain_json_is_refused(text, expected):
    assert told(problems(text)[0], *expected)


@pytest.mark.parametrize("digits", ["1e6", "1.5E+3", "-2e0", "120e-1", "9007199254740992e0"])
def test_an_exponent_writes_a_whole_number_where_it_is_one(digits):
    value = parse_json(digits, "here")
    assert type(value) is int and value == Fraction(digits)


@pytest.mark.parametrize("digits", ["1.0", "1.5e0", "1e-3", "1e300", "9007199254740994e0"])
def test_other_numbers_with_a_point_or_an_exponent_stay_floats(digits):
    value = parse_json(digits, "here")
    assert type(value) is float and value == float(digits)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path, reason in [(tmp_path / "none.json", "file"), (tmp_path, "folder"), ("a\0b", "null")]:
        with pytest.raises(ConfigError, match=naming(path, reason)):
            Run.from_json_path(path)
    (tmp_path / "latin.json").write_bytes(b'{"description": "\xe9"}')
    with pytest.raises(ConfigError, match=naming("latin.json", "UTF-8", "byte 17")):
        Run.from_json_path(tmp_path / "latin.json")


@pytest.mark.promise("I3")
def test_what_is_endless_or_waits_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    with open(tmp_path / "large.json", "wb") as file:
        file.truncate(3 << 30)
    large = (tmp_path / "large.json", f"{3 << 30} bytes")
    for path, found in (("/dev/zero", "named pipe"), (tmp_path / "pipe.json", "named pipe"), large):
        with pytest.raises(ConfigError, match=naming(path, found)):
            files_of(Path(path))
        (tmp_path / "a.json").write_text(json.dumps({"extends": str(path)}))
        with pytest.raises(ConfigError, match=naming(path, tmp_path / "a.json", found)):
            files_of(tmp_path / "a.json")


def test_yaml_is_told_how_it_becomes_json(tmp_path):
    for name, is_told in (("a.yaml", True), ("a.yml", True), ("a.json", False)):
        (tmp_path / name).write_text("train:\n  steps: 3\n")
        with pytest.raises(ConfigError, match=naming(name, "line 1", "column 1", "JSON")) as found:
            files_of(tmp_path / name)
        assert ("dp-prior translate" in str(found.value) and "yaml.safe_load" in str(found.value)) is is_told


class Small(Config):
    type: Literal["small"] = "small"
    width: int = 1
    depth: int = 1


class Large(Config):
    type: Literal["large"] = "large"
    widths: tuple[int, ...] = (1, 2)


class LayeredRun(Config):
    seed: int
    net: Annotated[Small | Large, Field(discriminator="type")] = Small()
    nets: list[Small] = []
    limit: int | None = 3

    def faults(self):
        if self.seed == 13:
            yield "13 is unlucky"


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


JSON = st.recursive(
    st.none() | st.integers(0, 3) | st.lists(st.integers(0, 2), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from(["type", "a", "b"]), inner, max_size=3),
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "c"]), JSON, max_size=3)


def merged(below, given):
    """The rule, told another way."""
    if (
        not isinstance(below, dict)
        or not isinstance(given, dict)
        or ("type" in given and given["type"] != below.get("type"))
    ):
        return given
    return {key: merged(below.get(key), given[key]) if key in given else below[key] for key in {**below, **given}}


@given(st.lists(OBJECTS, min_size=1, max_size=4))
def test_objects_are_merged_and_all_else_is_replaced(objects):
    layers, expected = Layers(copy.deepcopy(objects[0]), "0"), objects[0]
    for number, each in enumerate(objects[1:], 1):
        layers.lay(copy.deepcopy(each), str(number))
        expected = {
            key: merged(expected.get(key), each[key]) if key in each else expected[key] for key in {**expected, **each}
        }
    assert layers.data == expected


@given(st.lists(OBJECTS, min_size=1, max_size=4))
def test_every_value_comes_from_the_highest_layer_that_gives_it(objects):
    layers = Layers(copy.deepcopy(objects[0]), "0")
    for number, each in enumerate(objects[1:], 1):
        layers.lay(copy.deepcopy(each), str(number))

    def leaves(value, path=()):
        if isinstance(value, dict) and value:
            for key, inner in value.items():
                yield from leaves(inner, (*path, key))
        elif path:
            yield path, value

    for path, value in leaves(layers.data):
        remark = layers.remark(path)
        source = layers.top if not remark else remark.removeprefix(" (in ").removesuffix(")")
        assert " and " not in source
        found = objects[int(source)]
        for key in path:
            found = found[key]
        assert found == value or (found == {} and value == {})


def test_a_chain_of_files_is_one_record_with_overrides_on_top(write):
    write("base/base.json", {"$schema": "x", "seed": 1, "net": {"type": "small", "width": 5, "depth": 5}, "nets": [{}]})
    write("middle.json", {"extends": "base/base.json", "net": {"width": 7}, "nets": [{"width": 2}, {"width": 3}]})
    top = write("top.json", {"extends": "middle.json", "seed": 2, "limit": None})
    run = LayeredRun.from_json_path(top, ["net.depth=9"])
    assert run == LayeredRun(seed=2, net=Small(width=7, depth=9), nets=[Small(width=2), Small(width=3)], limit=None)
    assert "extends" not in json.loads(run.to_json()), "what is stored is the whole"
    large = write("large.json", {"extends": "top.json", "net": {"type": "large"}})
    assert LayeredRun.from_json_path(large).net == Large(), "another type replaces the whole part"


def test_faults_name_the_file_of_the_value(write):
    write("base.json", {"seed": 13, "net": {"type": "small", "width": "x"}, "nets": [{"width": 0}, {"wdth": 1}]})
    top = write("top.json", {"extends": "base.json", "net": {"depht": 1}, "limit": "y"})
    base = top.parent / "base.json"
    with pytest.raises(ConfigError) as caught:
        LayeredRun.from_json_path(top, ["nets.0.width=1.5"])
    assert caught.value.source == str(top)
    assert told_each(
        caught.value.problems,
        ("net.width", "integer", "'x'", f"(in {base})"),
        ("net.depht", "unknown key", "'depth'"),
        ("nets.0.width", "integer", 1.5),
        ("nets.1.wdth", "unknown key", "'width'", f"(in {base})"),
        ("limit", "integer", "'y'"),
    )
    assert ["(in " in problem for problem in caught.value.problems] == [True, False, False, True, False]
    with pytest.raises(ConfigError, match=naming("net.type", "'smal'", base)):
        write("base.json", {"seed": 1, "net": {"type": "smal"}})
        LayeredRun.from_json_path(top, ["limit=1"])


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        ({"a.json": {"extends": "gone.json"}}, ("gone.json", "PLACE/a.json extends")),
        ({"a.json": {"extends": 3}}, ("a.json: 1 problem", "extends", "path", 3)),
        ({"a.json": {"extends": ""}}, ("extends", "path", "''")),
        ({"a.json": {"extends": "a.json"}}, ("circle", "PLACE/a.json extends PLACE/a.json")),
        (
            {"a.json": {"extends": "b.json"}, "b.json": {"extends": "c/../a.json"}, "c/x": "{}"},
            ("a.json: 1 problem", "circle", "PLACE/a.json extends PLACE/b.json extends PLACE/c/../a.json"),
        ),
        ({"a.json": {"extends": "b.json"}, "b.json": "[]"}, ("b.json: 1 problem", "list", "object")),
        ({"a.json": {"extends": "b.json"}, "b.json": "{"}, ("b.json: 1 problem", "line 1, column 2", "JSON")),
    ],
    ids=["missing", "no text", "empty", "itself", "circle", "no object", "no JSON"],
)
def test_a_file_that_cannot_be_extended_is_named(write, files, parts):
    paths = [write(name, content) for name, content in files.items()]
    with pytest.raises(ConfigError) as caught:
        LayeredRun.from_json_path(paths[0])
    assert told(str(caught.value).replace(f"{paths[0].parent}", "PLACE"), *parts)


def test_text_without_a_path_extends_nothing():
    with pytest.raises(ConfigError, match=naming("config", "extends")):
        LayeredRun.from_json('{"extends": "base.json", "seed": 1}')
