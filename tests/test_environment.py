"""`scripts/environment.sh` completes a .venv that it can use, names one that it cannot use, and then works offline."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import assert_none

ROOT = Path(__file__).parent.parent
FAKE = """#!/usr/bin/env bash
here=$(dirname "$0")
echo "$*" >> "$here/calls"
case "$*" in
    *version_info*) [ ! -e "$here/is_old" ] ;;
    *"import pip"* | "-m pip "*) [ -e "$here/has_pip" ] ;;
    "-m ensurepip") [ ! -e "$here/is_bare" ] && touch "$here/has_pip" ;;
    -V) echo Python 3.9.2 ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    """A checkout in an inconvenient place, with a .venv whose Python only notes what it is asked for."""
    place = tmp_path / "a place, größer"
    (place / ".venv/bin").mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "constraints.txt"):
        (place / name).touch()
    python = place / ".venv/bin/python"
    python.write_text(FAKE)
    python.chmod(0o755)
    return place


def source(project, further="true"):
    """Source the script as ./demo does, then run a further command."""
    command = ["bash", "-c", f'set -euo pipefail; source "$0" plots,video; echo "$VIRTUAL_ENV"; {further}']
    environment = os.environ | {"PYTHON": sys.executable}
    given = {"cwd": project, "env": environment, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([*command, str(ROOT / "scripts/environment.sh")], **given)


@pytest.mark.parametrize("stamp", [None, "of other requirements"])
def test_an_environment_behind_a_link_is_used_with_the_code_of_the_clone_and_left_as_it_is(project, stamp, tmp_path):
    elsewhere = tmp_path / "an environment elsewhere"
    (project / ".venv").rename(elsewhere)
    (project / ".venv").symlink_to(elsewhere)
    if stamp:
        (elsewhere / "ready-for-plots-video").write_text(stamp)
    before = sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*"))
    done = source(project, 'echo "$PYTHONPATH"')
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{project}/.venv\n{project}:{project}/plugins")
    assert str(elsewhere) in done.stderr and "rm '" in done.stderr
    calls = (elsewhere / "bin/calls").read_text()
    assert "pip" not in calls and "venv" not in calls
    assert sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*")) == sorted([*before, Path("bin/calls")])
    for fault in ("is_old", None):
        (elsewhere / "bin/is_old").touch() if fault else elsewhere.rename(tmp_path / "gone")
        done = source(project)
        assert done.returncode == 1 and str(elsewhere) in done.stderr and "rm '" in done.stderr
        assert (project / ".venv").is_symlink() and elsewhere.exists() == (fault is not None)


@pytest.mark.parametrize("has_pip", [True, False])
def test_an_environment_is_completed_once(project, has_pip):
    if has_pip:
        (project / ".venv/bin/has_pip").touch()
    done = source(project)
    calls = (project / ".venv/bin/calls").read_text().splitlines()
    assert (done.returncode, done.stdout) == (0, f"{project}/.venv\n"), done.stderr
    assert ("-m ensurepip" in calls) != has_pip
    assert calls[-1].endswith("install -c constraints.txt -e .[plots,video]")
    for step in ("torch", "dp_prior", "minutes", "GB"):
        assert step in done.stderr, "pip's own lines follow, of which there are none for what is installed"
    (project / ".venv/bin/calls").unlink()
    assert source(project).returncode == 0
    assert (project / ".venv/bin/calls").read_text() == "-c \n", "nothing is installed again"


@pytest.mark.parametrize(
    ("flag", "message"),
    [("is_old", ".venv has Python 3.9.2, expected Python 3.11 or later. Remove it: rm -r"), ("is_bare", "no pip")],
)
def test_an_environment_that_cannot_be_used_is_named_and_left_alone(project, flag, message):
    (project / ".venv/bin" / flag).touch()
    done = source(project)
    assert done.returncode == 1 and message in done.stderr
    assert (project / ".venv/bin/python").exists() and not list((project / ".venv").glob("ready-for-*"))


NEWER_THAN_BASH_3_2 = re.compile(
    r"declare -[Ag]|local -n|mapfile|readarray|coproc|\|&|&>>|wait -n|\[\[ -v|\[-\d+\]|globstar|printf[^|]*%\(|"
    r"\$\{\w+(,,?|\^\^?|@\w)\}|\$(EPOCHSECONDS|EPOCHREALTIME|SRANDOM)|\{\d+\.\.\d+\.\.\d+\}|;;?&"
)
"""What the bash 3.2 of macOS lacks."""


def test_scripts_keep_to_what_the_bash_of_macos_has():
    faults = []
    scripts = [ROOT / "demo", ROOT / "runtests", *sorted((ROOT / "scripts").glob("*.sh"))]
    for script in scripts:
        lines = script.read_text(encoding="utf-8").splitlines()
        code = [(number, line) for number, line in enumerate(lines, 1) if not line.lstrip().startswith("#")]
        faults += [f"{script.name}:{number}: {line}" for number, line in code if NEWER_THAN_BASH_3_2.search(line)]
        checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
        faults += [checked.stderr] * bool(checked.returncode)
        expansions = re.findall(r"(?<!\+)\"\$\{(\w+)\[@\]\}\"", "\n".join(line for _, line in code))
        faults += [f"{script.name}: {name}[@] is unbound under set -u while it is empty" for name in expansions]
    assert len(scripts) > 4
    assert_none(faults)


@pytest.mark.parametrize(
    "line", ["declare -A sizes", "echo ${name,,}", "make |& tee log", "mapfile -t lines", "a=${b[-1]}"]
)
def test_what_bash_3_2_lacks_is_found(line):
    assert NEWER_THAN_BASH_3_2.search(line)
