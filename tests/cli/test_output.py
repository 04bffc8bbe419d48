"""What commands print reaches terminals, logs and closed pipes without harm."""

import ast
import io
import json
import logging
import os
import pty
import subprocess
import sys
import warnings
from pathlib import Path

import click
import pytest

from dp_prior.checkpoints.clock import Progress
from dp_prior.cli.command import Command, exit_codes
from dp_prior.cli.output import echo, quiet, say
from dp_prior.config import ConfigError
from dp_prior.tracking.console import ConsoleConfig, show
from tests import forks
from tests.extras import needs
from tests.test_floors import FILES, path_of
from tests.tiny import write


def test_run_whose_output_nobody_takes_ends_as_any_other(tmp_path):
    config = write(tmp_path, train__steps=2, evaluate=[], tracker__log=[{"type": "console"}])
    command = ["train_policy.py", "--config_file", config]
    assert forks.Fork(command, Path("/dev/full"), tmp_path / "errors.txt").wait(200) == 0
    assert json.loads((tmp_path / "run" / "exit.json").read_text())["reason"] == "finished"


def test_warnings_are_told_once_wherever_standard_error_leads_now():
    program = (
        "import io, logging, sys; from dp_prior.cli.output import quiet; quiet(); sys.stderr = io.StringIO()\n"
        "logging.getLogger('library').addHandler(logging.StreamHandler())\n"
        "for name in ('library.part', 'dp_prior.part'): logging.getLogger(name).warning('from %s', name)\n"
        "print(sys.stderr.getvalue().splitlines())"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert output.stdout == "['from library.part', 'from dp_prior.part']\n"


@pytest.mark.promise("K14")
def test_control_characters_of_strangers_reach_no_terminal(capsys, tmp_path):
    name = "state\x1b]0;PWNED\x07"
    with pytest.raises(SystemExit), exit_codes():
        raise ConfigError(name, [f"{name} is unknown"])
    echo(name)
    say(name)
    show(name)
    ConsoleConfig(style="plain").create(None, None).log_error(name, Progress())
    quiet()
    logging.getLogger("dp_prior.x").warning("odd key %s", name)
    for style in ("live", "plain"):
        stream = io.StringIO()
        logger = ConsoleConfig(style=style).create(stream, 10)
        logger.log({"train/loss": 1.0, f"{name}/loss": 1.0}, Progress())
        logger.close()
        assert "\x1b]0;" not in stream.getvalue() and "\\x1b]0;PWNED" in stream.getvalue()
    said = "".join(capsys.readouterr())
    assert "\x1b" not in said and said.count("state\\x1b]0;PWNED\\x07") >= 6


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_letters_that_the_output_cannot_encode_end_no_command(encoding, monkeypatch):
    @click.command(cls=Command)
    def says():
        echo("\u6a5f")
        show("\u6a5f")
        ConsoleConfig().create(None, None).log_error("\u6a5f", Progress(8, 1))

    output = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", output)
    says.main([], standalone_mode=False)
    output.flush()
    by_click = "\u6a5f".encode() if encoding == "ascii" else b"\\u6a5f"  # which takes ASCII for an error of the system
    assert output.buffer.getvalue().splitlines() == [by_click, b"\\u6a5f", b"step 1  error: \\u6a5f"]


TABLE = """  warning       train.lr.warmup_steps is 200, but the run has 94 steps
  also to       hub
step 94  result.json: runs/a/result.json

next
  dp-prior train mine.json --set=train.samples=24000 --set=data.batch_size=4"""


@pytest.mark.parametrize("printing", ["say", "echo"])
def test_lines_for_a_terminal_break_between_words_and_commands_to_copy_stay(printing, monkeypatch, tmp_path):
    program = "import sys; from dp_prior.cli.output import echo, say; " + printing
    program += "(sys.argv[1]); echo(sys.argv[1], err=True)"
    monkeypatch.setenv("COLUMNS", "40")
    for is_terminal in (True, False):
        words = [sys.executable, "-c", program, TABLE]
        outputs = in_terminal(words) if is_terminal else by_pipes(words)
        for output in outputs:
            lines = output.splitlines()
            assert "".join(output.split()) == "".join(TABLE.split()) and lines[-1] == TABLE.splitlines()[-1]
            assert (output == TABLE) is not is_terminal
            if is_terminal:
                assert max(map(len, lines[:-1])) <= 40
                assert lines[1].startswith(f"{' ' * 16}200")


def test_what_other_programs_read_stays_whole_at_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    program = "import sys; from dp_prior.cli.output import echo; text = sys.argv[1]"
    program += "; echo(text, whole=True); echo(text, whole=True, err=True)"
    text = json.dumps({"text": "words " * 20}, indent=2)
    assert in_terminal([sys.executable, "-c", program, text]) == [text, text]


def by_pipes(words):
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout.removesuffix("\n"), done.stderr.removesuffix("\n")


def in_terminal(words):
    """What a command writes to its standard output and its standard error, each a terminal."""
    outputs = []
    for name in ("stdout", "stderr"):
        controller, terminal = pty.openpty()
        other = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, name: terminal}
        subprocess.run(words, check=True, **other)
        outputs.append(os.read(controller, 1 << 16).decode().replace("\r\n", "\n").removesuffix("\n"))
        os.close(controller)
        os.close(terminal)
    return outputs


def test_a_font_without_the_letters_of_a_name_is_not_told():
    needs("matplotlib", "plots")
    from matplotlib.figure import Figure

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        quiet()
        figure = Figure()
        figure.suptitle("\u6a5f")
        figure.savefig(io.BytesIO(), format="svg")
    assert not told


def test_commands_print_in_one_place():
    """What is printed elsewhere would reach a terminal with the control characters of names."""
    found = set()
    for file in FILES:
        path = path_of(file)
        source = path.read_text(encoding="utf-8")
        for node in (
            ast.walk(ast.parse(source)) if any(f"{name}(" in source for name in ("print", "echo", "write")) else ()
        ):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                *("print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"),
            ):
                found.add(f"{file}: {ast.unparse(node.func)}")
    assert found == {
        "cli/output.py: click.echo",
        "cli/__init__.py: sys.stderr.write",  # of a Python that cannot import the rest
        "cli/output.py: sys.stderr.write",
        "tracking/console.py: sys.stdout.write",
        "places/__main__.py: sys.stdout.write",  # JSON, for the process that started it
    }
