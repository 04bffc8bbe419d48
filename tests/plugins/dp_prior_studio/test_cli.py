"""What the commands that show data and runs refuse before anything is replaced."""

import json

import numpy as np
import pytest

from tests.cli.invoked import command
from tests.cli.refused import assert_refused
from tests.messages import told
from tests.plugins.dp_prior_studio.inspection.recordings import clean, write_npz


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("inspect good.npz --html ./good.npz", ("good.npz", "no page", "another file")),
        ("inspect good.npz --html four.npz", ("four.npz", "no page", "another file")),
        ("inspect good.npz --html .", ("no page", "another file")),
        ("inspect good.npz --write-config good.npz/new.json", ("good.npz", "another file")),
        ("inspect good.npz --set seed=3", ("--set seed=3", "configuration", "good.npz")),
    ],
)
def test_what_a_command_cannot_use_is_refused_in_a_line_and_nothing_is_replaced(line, refusal, tmp_path, monkeypatch):
    assert_refused(line, refusal, tmp_path, monkeypatch)


def test_a_page_of_several_runs_needs_a_place(tmp_path):
    done = command("report", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 2 and told(done.output, "--html")


def test_findings_as_json_have_codes_and_nothing_else_is_on_stdout(tmp_path):
    episodes = clean(5)
    path = write_npz(tmp_path / "data.npz", episodes)
    done = command("inspect", path, "--json", "--write-config", tmp_path / "mine.json", "--html", tmp_path / "a.html")
    (data_set,) = json.loads(done.stdout)["data_sets"]
    assert done.exit_code == 0 and data_set["episodes"] == 5
    assert all(f"wrote {tmp_path / name}" in done.stderr for name in ("mine.json", "a.html"))
    assert data_set["data"]["action"] == {"key": "action"} and data_set["leave_out"] == []
    episodes[0]["state"][3] = np.nan
    done = command("inspect", write_npz(tmp_path / "bad.npz", episodes), "--json")
    (data_set,) = json.loads(done.stdout)["data_sets"]
    faults = {finding["code"]: finding for finding in data_set["findings"]}
    assert done.exit_code == 65 and faults["not-finite"]["severity"] == "error"
    assert faults["not-finite"]["frame"] == 3 and faults["not-finite"]["leave_out"] == data_set["leave_out"] == [0]
