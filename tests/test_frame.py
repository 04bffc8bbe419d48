"""The frame of the package only shrinks; lower a ceiling with the change that makes room (`python -m tests.frame`)."""

import re
from pathlib import Path

import pytest

from tests import frame

MAIN_JOB = (226, 18_003)
"""Most modules and code lines that the main job loads."""

TRAINER = (200, 16_000)
"""Most of these that are of dp_prior itself."""

READING = (161, 12_353)
"""Most modules and code lines that reading its configuration loads."""

EMPTY_NAMES = 0.3
"""Largest share of names of variables and arguments that say nothing, in per cent."""

NESTED = 0.8
"""Most comprehensions with another one or several loops inside, in 1,000 code lines."""

CORE_LINES, TOP_NAMES, COMMANDS = 32_500, 18, 20
"""Most code lines and names in dp_prior itself, and commands that the help lists."""


def counted(modules):
    return len(modules), frame.lines_of(modules.values())


def assert_below(modules, ceiling):
    counts = counted(modules)
    assert counts[0] <= ceiling[0] and counts[1] <= ceiling[1], (
        f"{counts[0]} modules and {counts[1]} lines are loaded, at most {ceiling[0]} and {ceiling[1]} were; import "
        f"what is new where it is used, or raise the ceiling and say why"
    )


def test_reading_a_configuration_loads_no_more_than_it_did(tmp_path):
    modules = frame.loaded_by_reading(tmp_path)
    assert_below(modules, READING)
    assert "dp_prior.networks.backbones.unet1d" in modules and "dp_prior.networks.backbones.dit" not in modules


@pytest.mark.slow
def test_the_main_job_loads_no_more_than_it_did(tmp_path):
    for library in ("gym_pusht", "av", "matplotlib"):
        pytest.importorskip(library)
    modules = frame.loaded_by_main_job(tmp_path)
    assert_below(modules, MAIN_JOB)
    assert_below({name: path for name, path in modules.items() if path.is_relative_to(frame.PACKAGE)}, TRAINER)
    assert {*core()} <= {*modules.values()}, "the core is what every run loads"
    assert not [name for name in modules if name.startswith("dp_prior_foreign.translation")]


def test_no_more_names_say_nothing():
    assert frame.share_of_empty_names() <= EMPTY_NAMES, "name the thing: a noun of the field"


def test_statements_are_no_denser():
    lines = frame.lines_of(frame.files())
    assert 1000 * frame.nested_comprehensions() / lines <= NESTED, "write one loop after another"


def test_the_trainer_stays_small_and_shows_few_names():
    paths = [path for path in frame.files() if path.is_relative_to(frame.PACKAGE)]
    assert frame.lines_of(paths) <= CORE_LINES, "what is not the trainer goes into a package under plugins/"
    assert len(frame.names_at_the_top()) <= TOP_NAMES
    assert frame.commands() <= COMMANDS


def core() -> list[Path]:
    """The files that docs/core.md lists, in the order of reading."""
    page = (frame.ROOT / "docs/core.md").read_text(encoding="utf-8")
    return [frame.PACKAGE / name for name in re.findall(r"^\| `([\w/]+\.py)` \| \S", page, re.MULTILINE)]


def test_the_core_is_read_in_an_hour():
    assert 50 <= len(core()) == len({*core()}) <= 60
    assert all(path.is_file() for path in core())
    assert frame.lines_of(core()) <= 6530


def test_code_lines_are_those_that_do_something(tmp_path):
    path = tmp_path / "some.py"
    statements = ["A = (", "    1,  # comment", ")", "def f():", '    """Of f."""']
    path.write_text("\n".join(['"""Text', 'of two lines."""', "", "# comment", *statements, "", ""]))
    assert frame.code_lines(path) == 4
    assert frame.lines_of([path, path]) == 8
