"""Files that extend each other: merged as promised, and every fault names the file that it comes from."""

import copy
import json
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from dp_prior.config import Config, ConfigError
from dp_prior.config.layering import Layers
from tests.messages import naming, told, told_each


class Small(Config):
    type: Literal["small"] = "small"
    width: int = 1
    depth: int = 1


class Large(Config):
    type: Literal["large"] = "large"
    widths: tuple[int, ...] = (1, 2)


class Run(Config):
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
    run = Run.from_json_path(top, ["net.depth=9"])
    assert run == Run(seed=2, net=Small(width=7, depth=9), nets=[Small(width=2), Small(width=3)], limit=None)
    assert "extends" not in json.loads(run.to_json()), "what is stored is the whole"
    large = write("large.json", {"extends": "top.json", "net": {"type": "large"}})
    assert Run.from_json_path(large).net == Large(), "another type replaces the whole part"


def test_faults_name_the_file_of_the_value(write):
    write("base.json", {"seed": 13, "net": {"type": "small", "width": "x"}, "nets": [{"width": 0}, {"wdth": 1}]})
    top = write("top.json", {"extends": "base.json", "net": {"depht": 1}, "limit": "y"})
    base = top.parent / "base.json"
    with pytest.raises(ConfigError) as caught:
        Run.from_json_path(top, ["nets.0.width=1.5"])
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
        Run.from_json_path(top, ["limit=1"])


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
        Run.from_json_path(paths[0])
    assert told(str(caught.value).replace(f"{paths[0].parent}", "PLACE"), *parts)


def test_text_without_a_path_extends_nothing():
    with pytest.raises(ConfigError, match=naming("config", "extends")):
        Run.from_json('{"extends": "base.json", "seed": 1}')
