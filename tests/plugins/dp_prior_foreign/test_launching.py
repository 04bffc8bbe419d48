"""The command that a stop or a check under a launcher names."""

import shlex
import sys

import pytest

from dp_prior_foreign.launching import launching
from tests.job.test_launcher import ROOT, scripts, started  # noqa: F401

PROGRAM = "import os\nfrom dp_prior_foreign.launching import launching\nprint(launching(os.environ), flush=True)\n"


@pytest.mark.parametrize("options", [[], ["-u", "-W", "ignore"]])
def test_the_command_of_a_known_launcher_is_told_to_its_workers(options, scripts):  # noqa: F811
    (scripts / "words.py").write_text(PROGRAM)
    for name in ("accelerate", "other.py"):
        words = ["launch", "ACCELERATE_MIXED_PRECISION=no", sys.executable, str(scripts / "words.py"), "a b"]
        command = [sys.executable, *options, scripts / name, *words, "--check", "--resume", "never", "--resume=must"]
        with started(*command, PYTHONPATH=f"{ROOT}:{ROOT / 'plugins'}") as launcher:
            expected = shlex.join(["accelerate", *words]) if name == "accelerate" else None
            assert launcher.stdout.readline() == f"{expected}\n"


def test_a_process_without_a_launcher_has_no_such_command():
    assert launching({}) is None
