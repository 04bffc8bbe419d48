"""Runs of the suite draw one pixel and empty charts, unless a test asks for what users see."""

import pytest
from PIL import Image

from tests import forks
from tests.tiny import train, write


def drawn_by(run) -> tuple[bool, bool]:
    """Whether the curve of a run has more than a pixel, and whether a chart of its report has a mark."""
    with Image.open(run / "media" / "curve.png") as curve:
        is_curve = curve.size != (1, 1)
    report = (run / "report.html").read_text()
    assert "<svg" in report
    return is_curve, report.count("<svg") > report.count("<svg></svg>")


@pytest.fixture
def config(tmp_path):
    """A run with a report."""
    return write(tmp_path, train__steps=4, tracker__report=True)


def test_a_run_of_this_process_draws_nothing(config, tmp_path):
    assert train(config).exit_code == 0
    assert drawn_by(tmp_path / "run") == (False, False)


def test_a_forked_run_draws_nothing(config, tmp_path):
    done = forks.call([forks.ROOT / "train_policy.py", "--config_file", config])
    assert done.returncode == 0, done.stderr
    assert drawn_by(tmp_path / "run") == (False, False)


def test_a_run_is_drawn_as_users_see_it_where_a_test_looks_at_it(config, tmp_path, drawn):
    assert train(config).exit_code == 0
    assert drawn_by(tmp_path / "run") == (True, True)
