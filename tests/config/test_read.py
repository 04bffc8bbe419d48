"""Text is plain JSON with every key once, or it is refused with its place."""

import json
import os
from pathlib import Path

import pytest

from dp_prior.config import ConfigError
from dp_prior.config.read import files_of
from tests.config.records import MINIMAL, Run, problems, read
from tests.messages import naming, told


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
        ("", ("line 1, column 1", "JSON", "Expecting value")),
        ('{"task": }', ("line 1, column 10", "JSON", "Expecting value")),
        ("{} {}", ("line 1, column 4", "JSON", "Extra data")),
        ('{"a":' * 100_000, ("nested", "deeply")),
        ('{"a": ' + "[" * 900 + "]" * 900 + "}", ("nested", "deeply")),
        ('{"description": "\\ud800"}', ("text", "Unicode")),
    ],
)
def test_text_that_is_not_plain_json_is_refused(text, expected):
    assert told(problems(text)[0], *expected)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for path, reason in [(tmp_path / "none.json", "file"), (tmp_path, "folder"), ("a\0b", "null")]:
        with pytest.raises(ConfigError, match=naming(path, reason)):
            Run.from_json_path(path)
    (tmp_path / "latin.json").write_bytes(b'{"description": "\xe9"}')
    with pytest.raises(ConfigError, match=naming("latin.json", "'utf-8'")):
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
