"""A finding names its place; several are told by their severity."""

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import dp_prior_studio
from dp_prior.data.formats.npz import NpzStoreConfig
from dp_prior_studio.inspection.finding import (
    CODES,
    MOST_NAMED,
    SEVERITIES,
    Finding,
    faulty_episodes,
    ranked,
    refused,
)
from dp_prior_studio.inspection.survey import survey
from tests.cases import every
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz


@every(
    shown=[
        (Finding("note", "text", code="jumps"), "text"),
        (Finding("note", "text", 3, code="jumps"), "text (episode 3)"),
        (Finding("note", "text", 3, 0, code="jumps"), "text (episode 3, frame 0)"),
    ]
)
def test_a_finding_is_shown_with_its_place(shown):
    assert str(shown[0]) == shown[1]


def test_the_most_severe_come_first_and_equal_ones_stay_in_order():
    found = [Finding(severity, text, code="jumps") for text in "ab" for severity in reversed(SEVERITIES)]
    assert [(one.severity, one.text) for one in ranked(found)] == [(one, text) for one in SEVERITIES for text in "ab"]


@pytest.mark.parametrize("damaged", [[], [7]])
@pytest.mark.parametrize(
    ("count", "faulty", "left_out"), [(5, [1, 3], [1, 3]), (4, [1, 3], []), (3, [2], [2]), (2, [1], [])]
)
def test_half_of_all_episodes_are_not_left_out_and_damaged_ones_always_and_once(count, faulty, left_out, damaged):
    seen = SimpleNamespace(lengths=np.ones(count), damaged=damaged)
    findings = [
        Finding("warning", "text", leave_out=faulty, code="jumps"),
        Finding("error", "text", leave_out=damaged, code="jumps"),
    ]
    assert faulty_episodes(seen, findings) == [*left_out, *damaged]


@pytest.mark.parametrize(("named", "left_out"), [([], []), ([1, 3], [1, 3]), ([1, 2], [1, 2]), ([0, 1, 2], [])])
def test_faulty_episodes_are_left_out_unless_half_of_all_are(tmp_path, named, left_out):
    seen = survey(NpzStoreConfig(path=write_npz(tmp_path / "data.npz", clean(5))).create())
    assert faulty_episodes(seen, [Finding("warning", "text", leave_out=named, code="jumps")]) == left_out


def test_the_first_problems_of_what_training_refuses_are_errors():
    problems = [f"problem {number}" for number in range(2 * MOST_NAMED)]
    found = refused("front", problems)
    assert [str(one) for one in found] == [f"front: {problem}" for problem in problems[:MOST_NAMED]]
    assert {one.severity for one in found} == {"error"}


def test_the_table_has_the_code_of_every_finding_and_no_other():
    codes = set()
    for path in Path(dp_prior_studio.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("Finding", "_camera_findings"):
                arguments = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
                last = arguments[-1]
                codes |= {last.value} if isinstance(last, ast.Constant) else set()
    assert codes == {*CODES}


def test_a_finding_as_json_has_its_code_and_place():
    finding = Finding("warning", "text", 3, 7, [np.int64(3)], code="jumps")
    expected = {"code": "jumps", "severity": "warning", "text": "text", "episode": 3, "frame": 7, "leave_out": [3]}
    assert finding.to_json() == expected
