"""What the commands of experiments refuse."""

import pytest

from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import write


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("compare a.csv --most 3 --measure success", ("--most, --measure", "policies")),
        ("compare a.csv --config_file pusht_state --device cuda", ("--config_file, --device", "policies")),
        ("compare a b --out c --range 0 5", ("--range", "OUTCOMES.csv")),
        ("compare a.csv --range 3 2", ("--range 3 2", "empty", "lowest")),
        ("compare a.csv --range -1e308 1e308", ("--range -1e+308 1e+308", "wider")),
        ("trial a b --out c --range -1e308 1e308", ("--range -1e+308 1e+308", "wider")),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(line, refusal):
    done = command(*line.split())
    assert done.exit_code == 2 and told(done.output, *refusal), done.output


def test_a_sweep_that_only_prints_makes_no_page(tmp_path):
    done = command("sweep", write(tmp_path), "--vary", "seed=1,2", "--print", "--html", tmp_path / "p.html")
    assert done.exit_code in (2, 64) and not (tmp_path / "p.html").exists()


def test_a_sweep_whose_page_would_replace_another_file_trains_nothing(tmp_path):
    (tmp_path / "notes.html").write_text("mine")
    done = command("sweep", write(tmp_path), "--html", tmp_path / "notes.html")
    assert done.exit_code == 64 and told(done.output, "notes.html", "no page", "another file"), done.output
    assert (tmp_path / "notes.html").read_text() == "mine" and not list(tmp_path.glob("run*"))


@pytest.mark.parametrize("name", ["verdict.json", "verdict.html"])
def test_a_table_whose_verdict_would_replace_another_file_is_not_compared(tmp_path, name):
    (tmp_path / "trials.csv").write_text("start,policy,score\n1,one,1\n1,two,0\n")
    (tmp_path / name).write_text("mine")
    done = command("compare", tmp_path / "trials.csv", "--out", tmp_path)
    assert done.exit_code == 64 and told(done.output, tmp_path / name, "exists"), done.output
    assert {path.name for path in tmp_path.iterdir()} == {"trials.csv", name}
    assert (tmp_path / name).read_text() == "mine"
