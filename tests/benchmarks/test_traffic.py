"""The bytes of a step are counted on a loopback of the run's own, and are those that docs/processes.md states."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.traffic import SETTINGS, Traffic, measure, sent_bytes, table

PAGE = (Path(__file__).parents[2] / "docs/processes.md").read_text(encoding="utf-8")
COUNTERS = """Inter-|   Receive    |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
    lo: 100 2 3 4 5 6 7 8 900 10 11 12 13 14 15 16
"""


def test_the_bytes_are_those_that_the_loopback_has_sent():
    assert sent_bytes(COUNTERS) == 900


def test_ranks_of_a_ring_send_two_gradients_less_two_parts():
    weights = 1_000
    for ranks in (2, 4, 32):
        each = 2 * (ranks - 1) / ranks * 4 * weights
        assert Traffic(ranks * each, weights, ranks).share == pytest.approx(1)


def test_the_table_has_a_line_for_each_setting():
    rows = {name: Traffic(9.44e6, 1_180_002) for name in SETTINGS}
    assert table(rows).count("| 9.44 | 1.00 |") == len(SETTINGS)


def test_the_page_has_each_setting_that_is_measured():
    stated = dict(re.findall(r"^\| ([^|]+) \| \d+\.\d\d \| (\d\.\d\d) \|$", PAGE, re.MULTILINE))
    assert stated.keys() == SETTINGS.keys()
    assert [float(stated[name]) for name in SETTINGS] == pytest.approx([1, 1, 1.5, 2.5, 1, 1.5, 2], abs=0.04)


@pytest.mark.slow
def test_a_step_sends_what_the_page_states():
    kind = [] if os.getuid() == 0 else ["--map-root-user"]
    probe = ["unshare", "--net", *kind, "ip", "link", "set", "lo", "up"]
    if shutil.which("unshare") is None or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("NOT CHECKED: no network namespace can be made here")
    assert measure((), (4, 12)).share == pytest.approx(1, abs=0.05)
