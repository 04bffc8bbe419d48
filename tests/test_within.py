"""A suite with a time limit says how much of it was not reached, and fails for what failed alone."""

import pytest

from tests.messages import told
from tests.nested import nested

TESTS = "def test_one(): pass\ndef test_two(): pass\ndef test_three(): assert {sound}\n"


@pytest.mark.parametrize(
    ("within", "sound", "code", "said"),
    [
        (0, False, 0, ("3 not", "(no failure)")),
        pytest.param(60, False, 1, ("1 failed, 2 passed",), marks=pytest.mark.slow),
    ],
)
def test_no_test_begins_after_its_time_and_this_is_no_failure(tmp_path, within, sound, code, said):
    done = nested(TESTS.format(sound=sound), tmp_path, "-p", "tests.within", "--within", within)
    assert done.returncode == code and told(done.stdout.splitlines()[-1], *said), done.stdout + done.stderr
