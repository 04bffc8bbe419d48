"""Commands are imported when they are called or listed; earlier spellings go on working and are not listed."""

import os
import re
import shlex
import subprocess
import sys

import click
import pytest

from dp_prior_foreign.settings_as_options import as_overrides
from tests.cli.invoked import all_commands, command
from tests.extension.installed import lay_out
from tests.faults import assert_none
from tests.messages import told


def test_only_the_module_of_the_called_command_is_imported():
    program = """
import sys
from dp_prior.cli import main
main(["configs"], standalone_mode=False)
print(*sorted(name for name in sys.modules if name.startswith(("dp_prior_", "dp_prior.training"))))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stderr


def test_the_list_of_commands_imports_neither_records_nor_logging_nor_the_readers_of_metadata():
    program = """
import sys
from dp_prior.cli import main
main(["--help"], standalone_mode=False)
print(*sorted({"pydantic", "numpy", "torch", "logging", "importlib.metadata", "dp_prior.config"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "", done.stdout[-300:] + done.stderr


def test_a_command_of_another_distribution_is_listed_in_its_section(tmp_path):
    source = """
import click
from dp_prior.cli.command import Command

@click.command(cls=Command, section="Robot")
def dance():
    "Let the robot dance."
"""
    lay_out(tmp_path, "dancing", source, {"commands.dance": "dancing:dance"})
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "dp_prior", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    robot = done.stdout.partition("\nRobot:")[2].partition("\n\n")[0]
    assert "dance" in robot and "Let the robot dance." in robot and "serve" in robot, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["eval", "push", "average", "likelihood", "schema", "watch"])
def test_earlier_spellings_work_and_are_not_listed(name):
    assert all_commands()[name].hidden and f"  {name} " not in command("--help").output
    assert command(name, "--help").exit_code == 0


def test_the_help_has_whole_summaries_and_the_help_of_each_command_an_example_that_it_takes():
    pages = {words: command(*words.split()).output for words in ("--help", "checkpoints --help")}
    cut = re.compile(r"\w\.\.\.$", re.MULTILINE)
    faults = [f"{words}: a summary is cut" for words, page in pages.items() if cut.search(page)]
    listed = {name: listed for name, listed in all_commands().items() if not listed.hidden}
    listed |= {f"checkpoints {name}": listed for name, listed in listed["checkpoints"].commands.items()}
    for name, called in listed.items():
        example = command(*name.split(), "--help").output.partition("Example:\n")[2].strip()
        program, *words = shlex.split(example.partition(" > ")[0]) or [""]
        depth = len(name.split())
        if [program, *words[:depth]] != ["dp-prior", *name.split()] or max(map(len, example.splitlines())) > 76:
            faults.append(f"{name}: {example!r} is no line of this command of at most 76 letters")
            continue
        if name == "checkpoints":
            continue  # the example of one of its commands, which has its own turn
        options = {option for parameter in called.params for option in parameter.opts}
        read = as_overrides(words[depth:], options) if "--set" in options else words[depth:]
        try:
            left = called.make_parser(click.Context(called, **called.context_settings)).parse_args(read)[1]
        except click.UsageError as error:
            faults.append(f"{name}: {error.format_message()}")
        else:
            faults += [f"{name}: {left} are left over"] * bool(left)
    assert_none(faults)


def test_a_command_that_does_not_exist_is_a_matter_of_usage():
    done = command("tarin")
    assert done.exit_code == 2 and told(done.output, "'tarin'", "'train'")
    assert told(command("insepct").output, "'insepct'", "'inspect'")
