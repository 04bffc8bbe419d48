"""`scripts/environment.sh` completes a .venv that it can use, names one that it cannot use, and then works offline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def source(project):
    """Source the script as ./demo does."""
    command = ["bash", "-c", 'set -euo pipefail; source "$0" plots,video; echo "$VIRTUAL_ENV"']
    environment = os.environ | {"PYTHON": sys.executable}
    given = {"cwd": project, "env": environment, "capture_output": True, "text": True, "timeout": 60}
    return subprocess.run([*command, str(ROOT / "scripts/environment.sh")], **given)


@pytest.mark.parametrize("has_pip", [True, False])
def test_an_environment_is_completed_once(project, has_pip):
    if has_pip:
        (project / ".venv/bin/has_pip").touch()
    done = source(project)
    calls = (project / ".venv/bin/calls").read_text().splitlines()
    assert (done.returncode, done.stdout) == (0, f"{project}/.venv\n"), done.stderr
    assert ("-m ensurepip" in calls) != has_pip
    assert calls[-1].endswith("install --quiet -c constraints.txt -e .[plots,video]")
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
