"""What the commands about runs say at their end, and what they refuse."""

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from dp_prior.cli.runs import _farewell
from dp_prior.clock import Progress
from dp_prior.config.schema import json_schema
from dp_prior.run.files.config import TrainConfig
from dp_prior.run.files.configurations import find_configuration
from dp_prior.run.run import Outcome
from tests.cli.invoked import command
from tests.messages import told
from tests.tiny import train, write

ROLLOUT = {"type": "rollout", "env": {"type": "toy", "n_envs": 2, "max_steps": 4}, "n_episodes": 2, "videos": 0}


@pytest.mark.parametrize(("evaluate", "label"), [([{"type": "loss"}], "best checkpoint"), ([], "newest checkpoint")])
def test_farewell_names_scores_places_and_what_to_do_next(tmp_path, evaluate, label):
    config = write(tmp_path, train__steps=2, evaluate=evaluate, test=[{**ROLLOUT, "name": "test"}])
    best = tmp_path / "run" / "checkpoints" / "step_00000002"
    said = train(config).output
    assert told(said, "best validation/ema/loss", "at step 2") == bool(evaluate)
    for part in (
        "finished: 16 samples in 2 steps",
        "test/score",
        f"run{' ' * 38}{tmp_path / 'run'}",
        f"{label:<41}{best}",
        f"dp-prior evaluate {best}",
        f'load_policy("{best}")',
        f"dp-prior serve {best}",
        f"dp-prior export {best} {tmp_path / 'run'}_policy",
    ):
        assert part in said


def test_a_check_names_the_command_that_trains_with_what_was_given(tmp_path):
    config = write(tmp_path, train__steps=2, evaluate=[])
    said = train(config, "--check", "--set", "train.steps=3", "--import", "colorsys").output.partition("next\n")[2]
    line = ["dp-prior", "train", "--config_file", str(config), "--set=train.steps=3", "--import=colorsys"]
    assert shlex.split(said) == line


@pytest.mark.slow
def test_commands_of_the_farewell_can_be_pasted_where_a_path_has_spaces_and_quotes(tmp_path):
    directory = tmp_path / """Ada's "first" run"""
    config = write(tmp_path, train__steps=2, evaluate=[], tracker__data_path=str(directory))
    evaluate, load = (line.strip() for line in train(config).output.partition("next\n")[2].splitlines()[:2])
    assert shlex.split(evaluate) == ["dp-prior", "evaluate", str(directory / "checkpoints/step_00000002")]
    shown = subprocess.run(load, shell=True, capture_output=True, text=True)
    assert shown.returncode == 0 and "x_shape=(4, 2)" in shown.stdout, shown.stderr


def test_commands_of_the_farewell_import_the_parts_that_the_run_was_given(tmp_path):
    config = write(tmp_path, train__steps=2, evaluate=[])
    said = train(config, "--import", "colorsys", "--import", "bisect").output.partition("next\n")[2]
    evaluate, load = map(shlex.split, said.splitlines()[:2])
    assert evaluate[3:] == ["--import=colorsys", "--import=bisect"]
    assert load[-1].startswith("import colorsys; import bisect; from dp_prior import load_policy; ")


@pytest.mark.parametrize("line", ["report", "push --repo me/x --wait 0"])
def test_a_checkpoint_is_no_run_and_gets_no_files(line, tmp_path):
    train(write(tmp_path, train__steps=2))
    name, *options = line.split()
    checkpoint = tmp_path / "run" / "checkpoints" / "step_00000002"
    before = sorted(checkpoint.iterdir())
    done = command(name, checkpoint, *options)
    assert done.exit_code == 64 and told(done.output, checkpoint, tmp_path / "run")
    assert sorted(checkpoint.iterdir()) == before


def test_a_farewell_warns_of_a_loss_that_diverged_and_of_what_failed(tmp_path):
    config = TrainConfig.from_json_path(write(tmp_path))
    outcome = Outcome("finished", Progress(9, 9), None, tmp_path, ["logger csv: no space"], diverged_at=12_345)
    assert told(_farewell(outcome, config, ()), "warning", "step 12,345", "events.jsonl")
    assert told(_farewell(outcome, config, ()), "warning", "logger csv: no space")


@pytest.mark.parametrize("metric", ["validation/ema/loss", "rollout/score"])
def test_the_newest_checkpoint_is_named_beside_an_older_one_that_a_loss_selected(tmp_path, metric):
    config = write(tmp_path, train__steps=2, evaluate=[])
    assert train(config).exit_code == 0
    newest = tmp_path / "run" / "checkpoints" / "step_00000002"
    mode, evaluators = "max" if metric == "rollout/score" else "min", [{"type": "loss"}, ROLLOUT]
    monitor = {"metric": metric, "mode": mode}
    record = TrainConfig.from_json_path(write(tmp_path, evaluate=evaluators, train__monitor=monitor))
    for best, is_older in ((newest.with_name("step_00000001"), True), (newest, False)):
        outcome = Outcome("finished", Progress(16, 2), best, tmp_path / "run", [])
        line = f"newest checkpoint{' ' * 24}{newest}"
        assert (line in _farewell(outcome, record, ())) == (is_older and metric != "rollout/score")


def test_a_page_of_several_runs_needs_a_place(tmp_path):
    done = command("report", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 2 and told(done.output, "--html")


def test_each_configuration_that_is_listed_is_one_that_train_takes_by_its_name():
    lines = command("configs").output.splitlines()
    found = {name: Path(place) for name, place in (line.split(maxsplit=1) for line in lines)}
    assert found and all(path.is_file() and find_configuration(Path(name)) == path for name, path in found.items())


def test_the_schema_is_printed_whole():
    assert json.loads(command("schema").output) == json_schema(TrainConfig)


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("compare a.csv --most 3 --measure success", ("--most, --measure", "policies")),
        ("compare a.csv --config_file c.json --device cuda", ("--config_file, --device", "policies")),
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


def test_a_translation_names_its_file_as_a_shell_reads_it_and_makes_its_folder(tmp_path):
    out = tmp_path / "new/a b.json"
    (tmp_path / "theirs.json").write_text(json.dumps({"policy": {"type": "diffusion"}}))
    done = command("translate", tmp_path / "theirs.json", "--from", "lerobot", "--out", out)
    assert done.exit_code == 0 and f"--config_file {shlex.quote(str(out))} --check" in done.output, done.output
    assert json.loads(out.read_text())
    assert told(
        command("translate", tmp_path / "theirs.json", "--from", "lerobot", "--out", out).output, "a b.json exists"
    )


def test_a_check_refuses_to_resume_or_to_begin_as_the_run_would(tmp_path):
    config = write(tmp_path)
    must = train(config, "--check", "--resume", "must")
    assert must.exit_code == 64 and told(must.output, "--resume must", "no checkpoint"), must.output
    assert "--resume=never" in train(config, "--check", "--resume", "never").output
    train(config)
    never = train(config, "--check", "--resume", "never")
    assert never.exit_code == 64 and told(never.output, "--resume never", "checkpoints", "overwritten"), never.output
    assert train(config, "--check", "--resume", "must").exit_code == 0
