"""A suite with a time limit says how much of it was not reached, and fails for what failed alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import told

TESTS = "def test_one(): pass\ndef test_two(): pass\ndef test_three(): assert {sound}\n"


@pytest.mark.parametrize(
    ("within", "sound", "code", "said"),
    [
        (0, False, 0, ("3 not", "(no failure)")),
        pytest.param(60, False, 1, ("1 failed, 2 passed",), marks=pytest.mark.slow),
    ],
)
def test_no_test_begins_after_its_time_and_this_is_no_failure(tmp_path, within, sound, code, said):
    (tmp_path / "test_some.py").write_text(TESTS.format(sound=sound))
    command = [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "tests.within", "--within", str(within)]
    root, alone = Path(__file__).parent.parent, os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=root, env=alone, timeout=120)
    assert done.returncode == code and told(done.stdout.splitlines()[-1], *said), done.stdout + done.stderr
