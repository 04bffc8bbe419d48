"""Instructions that training did not have are told once each, with the nearest that it had."""

import logging

import numpy as np
import pytest

from dp_prior_client.onboard.instruction_watch import MOST_REPORTED, InstructionWatch
from dp_prior_client.onboard.obs_spec import ObsSpec, Reads
from tests.messages import told

TEXT = Reads((8,), "float32", kind="text", texts=("close the drawer", "open the drawer"))
READS = ObsSpec({"task": TEXT, "other": TEXT._replace(texts=()), "state": Reads((2,), "float32")})


@pytest.fixture
def lines():
    return []


def test_an_unknown_instruction_is_told_once_with_the_nearest(lines):
    watch = InstructionWatch(READS, lines.append)
    for value in ("open the drawer", ["close the drawer"] * 2, np.array(["open the drawer"]), np.zeros(8), None):
        watch.check({"task": value, "other": "anything", "state": np.zeros(2)})
    assert not lines
    for value in ("open the door", ["open the door"], np.array(["Close the drawer", "open the door"])):
        watch.check({"task": value})
    assert len(lines) == 2
    assert told(lines[0], "'open the door'", "'task'", 2, "'open the drawer'")
    assert told(lines[1], "'Close the drawer'", "'close the drawer'")


def test_a_robot_that_always_says_something_new_is_not_told_for_ever(lines):
    watch = InstructionWatch(READS, lines.append)
    for number in range(3 * MOST_REPORTED):
        watch.check({"task": f"go to {number}" + "x" * 5000})
    assert len(lines) == MOST_REPORTED
    assert max(map(len, lines)) < 500


def test_metadata_carry_the_instructions():
    found = ObsSpec.from_metadata(READS.metadata())
    assert found.observations["task"].texts == TEXT.texts
    assert found.observations["other"].texts == ()


def test_lines_go_to_the_log_by_default(caplog):
    InstructionWatch(READS).check({"task": "dance"})
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
