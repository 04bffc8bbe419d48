"""Arguments that are read, and refused, before a command begins."""

import json
import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from dp_prior.cli import main
from dp_prior.cli.options import PATH, FiniteRange
from tests.cases import every
from tests.cli.invoked import command
from tests.messages import told

TOLD_WITHOUT_TORCH = """
import contextlib, io, json, runpy, sys
codes_and_errors = []
for line in sys.argv[1:]:
    sys.argv = ["dp_prior", *line.split()]
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            runpy.run_module("dp_prior", run_name="__main__")
        except SystemExit as end:
            codes_and_errors.append((end.code, errors.getvalue()))
print(json.dumps(codes_and_errors))
"""


def test_a_configuration_that_cannot_be_read_waits_for_no_torch(tmp_path):
    """One process for all commands: what imports torch fails in each of them anew."""
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is loaded')")
    (tmp_path / "torn.json").write_text('{"seed": 0,')
    lines = [
        "train --config_file {}",
        "train {}",
        "inspect {}",
        "sweep {}",
        "cache pusht_image {}",
        "embed --model hashed --out out --key text --config_file {}",
        "compare a b --out out --config_file {}",
        "improve run --out out --config_file {}",
    ]
    files = {"absent.json": "no such", "torn.json": "not JSON"}
    cases = [(line.format(name), name, said) for line in lines for name, said in files.items()]
    words = [sys.executable, "-c", TOLD_WITHOUT_TORCH, *(line for line, _, _ in cases)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()])}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for (line, name, said), (code, errors) in zip(cases, json.loads(done.stdout), strict=True):
        assert code == 64 and told(errors, "error", name, said), (line, code, errors)


@every(line=["train {} --allow-change a --set=x=1", "sweep {} --print", "embed {} --key a --model hashed --out out"])
def test_a_configuration_is_an_argument_or_stands_behind_its_option(line):
    outputs = [command(*line.format(words).split()).output for words in ("digits", "--config_file digits")]
    assert outputs[0] == outputs[1] != ""
    for words in ("", "digits --config_file digits"):
        done = command(*line.format(words).split())
        assert done.exit_code == 2 and told(done.output, "CONFIG"), done.output


def test_a_line_with_a_configuration_that_cannot_be_read_is_completed(tmp_path):
    words = f"dp-prior sweep {tmp_path / 'mine.json'} --se"
    environment = {"COMP_WORDS": words, "COMP_CWORD": "3", "_DP_PRIOR_COMPLETE": "bash_complete"}
    done = CliRunner().invoke(main, env=environment, prog_name="dp-prior")
    assert done.exit_code == 0 and "--seeds" in done.output and "mine.json" not in done.output


@every(
    line=[
        "checkpoints ls s3://bucket/run",
        "report s3://bucket/run",
        "convert s3://bucket/run out --to zarr",
        "make-demonstrations --episodes 1 --out s3://bucket/run",
        "embed --model hashed --texts s3://bucket/run --out out",
        "sweep s3://bucket/run",
    ]
)
def test_a_url_in_the_place_of_a_path_is_told_as_it_was_given_and_makes_no_folder(line):
    with CliRunner().isolated_filesystem() as place:
        done = CliRunner().invoke(main, line.split())
        assert done.exit_code == 2 and told(done.output, "s3://bucket/run", "URL"), done.output
        assert os.listdir(place) == []


def test_the_home_directory_is_found_where_no_shell_replaces_its_sign(tmp_path, monkeypatch):
    """A shell leaves `--html=~/page.html` as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert PATH.convert("~/page.html", None, None) == tmp_path / "page.html"
    (tmp_path / "mine.json").write_text('{"seed": 0,')
    done = command("train", "--config_file=~/mine.json")
    assert done.exit_code == 64 and told(done.output, str(tmp_path / "mine.json"), "not JSON"), done.output


@every(text=["nan", "inf", "-inf", "-1", "x"])
def test_a_number_in_a_range_is_finite(text):
    with pytest.raises(click.BadParameter):
        FiniteRange(min=0).convert(text, None, None)
    assert FiniteRange(min=0).convert("1e3", None, None) == 1000.0


@pytest.mark.parametrize(("type", "words"), [(FiniteRange(), "[finite]"), (FiniteRange(min=0), "[x>=0]")])
def test_the_help_names_the_limits_there_are(type, words):
    record = click.Option(["--size"], type=type).get_help_record(click.Context(click.Command("x")))
    assert record[1].strip() == words
