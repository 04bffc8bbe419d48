"""What the commands about runs refuse, and the command that a check names."""

import shlex

import pytest

from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import train, write


def test_a_check_names_the_command_that_trains_with_what_was_given(tmp_path):
    config = write(tmp_path, train__steps=2, evaluate=[])
    said = train(config, "--check", "--set", "train.steps=3", "--import", "colorsys").output.partition("next\n")[2]
    line = ["dp-prior", "train", "--config_file", str(config), "--set=train.steps=3", "--import=colorsys"]
    assert shlex.split(said) == line


@pytest.mark.parametrize("line", ["report", "push --repo me/x --wait 0"])
def test_a_checkpoint_is_no_run_and_gets_no_files(line, tmp_path):
    train(write(tmp_path, train__steps=2))
    name, *options = line.split()
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000002"
    before = sorted(checkpoint.iterdir())
    done = command(name, checkpoint, *options)
    assert done.exit_code == 64 and told(done.output, checkpoint, tmp_path / "run")
    assert sorted(checkpoint.iterdir()) == before


def test_a_page_of_several_runs_needs_a_place(tmp_path):
    done = command("report", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 2 and told(done.output, "--html")


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


def test_a_check_refuses_to_resume_or_to_begin_as_the_run_would(tmp_path):
    config = write(tmp_path)
    must = train(config, "--check", "--resume", "must")
    assert must.exit_code == 64 and told(must.output, "--resume must", "no checkpoint"), must.output
    assert "--resume=never" in train(config, "--check", "--resume", "never").output
    train(config)
    never = train(config, "--check", "--resume", "never")
    assert never.exit_code == 64 and told(never.output, "--resume never", "checkpoints", "overwritten"), never.output
    assert train(config, "--check", "--resume", "must").exit_code == 0
