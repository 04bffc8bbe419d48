"""The commands: what they print, what they leave behind, and how they exit."""

import errno
import os
import re
import subprocess
import sys

import pytest

from dp_prior.checkpoints.format import read_checkpoint
from dp_prior.evaluation.measurement import Measurement
from dp_prior.evaluation.rollout_evaluator import RolloutEvaluator
from dp_prior.job.ranks import Ranks
from dp_prior.places.reference import resolve
from tests.cli.invoked import command
from tests.messages import told
from tests.run.test_check import MEASURED
from tests.tiny import read_rows, train, write, write_data


def test_overrides_have_the_types_of_the_schema_and_travel_with_the_checkpoint(tmp_path):
    config = write(tmp_path, train__steps=2)
    overrides = ["train.lr.peak=3e-4", "description=7", "train.log_every.steps=1", "evaluate.0.name=held_out"]
    overrides += ["train.monitor.metric=held_out/ema/loss", "task.sampler.eta=0.5"]
    done = train(config, *[word for override in overrides for word in ("--set", override)])
    assert done.exit_code == 0, done.output
    resolved = read_checkpoint(resolve(tmp_path / "run")).documents["config.json"]
    assert resolved["train"]["lr"] == {"type": "cosine", "peak": 3e-4, "warmup_steps": 4, "final_fraction": 0.0}
    assert resolved["description"] == "7"
    assert resolved["task"]["sampler"]["eta"] == 0.5
    assert [row["step"] for row in read_rows(tmp_path / "run")] == [1, 2]
    assert "held_out/ema/loss" in read_rows(tmp_path / "run")[-1]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    place = tmp_path_factory.mktemp("measured")
    done = train(write(place, train__steps=6, evaluate=MEASURED, checkpoints__keep_best=2))
    assert done.exit_code == 0, done.output
    return place / "run"


def test_evaluate_reproduces_the_stored_numbers_exactly(measured):
    for reference in (measured, f"{measured}@latest", measured / "checkpoints" / "step_00000003"):
        again = command("evaluate", reference)
        assert again.exit_code == 0
        lines = again.output.splitlines()
        assert len(lines) == 10 + 10 + 10
        assert all("  equal to" in line for line in lines), again.output


def test_evaluate_compares_the_test_with_the_result_of_the_run_where_it_is_of_these_weights(tmp_path):
    test = [{"type": "loss", "name": "again", "split": "train"}]
    assert train(write(tmp_path, train__steps=6, test=test)).exit_code == 0
    best = [line for line in command("evaluate", tmp_path / "run").output.splitlines() if line.startswith("again/")]
    assert best and all("  equal to" in line for line in best)
    (tmp_path / "run" / "result.json").unlink()
    alone = [line for line in command("evaluate", tmp_path / "run").output.splitlines() if line.startswith("again/")]
    assert len(alone) == len(best) and not any("stored" in line for line in alone)


def test_evaluate_of_something_else_says_that_it_differs_and_eval_is_short_for_it(measured):
    other = command("eval", measured, "--set", "evaluate.0.seed=5")
    assert other.exit_code == 0
    (line,) = (line for line in other.output.splitlines() if line.startswith("validation/ema/loss "))
    now, before, difference = map(float, re.findall(r"(?<= )[-+\d.e]+\b", line))
    assert "differs" in line and difference == pytest.approx(now - before, rel=0.1)
    assert "differs" not in "".join(line for line in other.output.splitlines() if line.startswith("rollout/"))


def test_evaluate_takes_data_that_are_too_few_for_a_training_step(measured, tmp_path):
    other = command("evaluate", measured, "--set", f"data.episodes.path={write_data(tmp_path / 'few.npz', n=2)}",
                    "--set", "data.batch_size=512", "--set", "train.accumulation=2")  # fmt: skip
    assert other.exit_code == 0 and "validation/ema/loss" in other.output, other.output


def test_evaluate_leaves_the_run_as_it_was(measured):
    before = {path: path.stat().st_mtime_ns for path in measured.rglob("*")}
    command("evaluate", measured)
    assert {path: path.stat().st_mtime_ns for path in measured.rglob("*")} == before


def test_evaluate_leaves_reports_where_they_are_wanted_and_replaces_none(measured, tmp_path):
    kept = command("evaluate", measured, "--out", tmp_path / "kept")
    assert kept.exit_code == 0, kept.output
    names = {path.name.rsplit("_", 1)[0] for path in (tmp_path / "kept").glob("*.json")}
    assert names == {"action_error", "rollout"}
    again = command("evaluate", measured, "--out", tmp_path / "kept")
    assert again.exit_code == 64 and told(again.output, tmp_path / "kept", "another folder")


def test_evaluators_wait_for_slow_ranks_as_in_training(measured, monkeypatch):
    """A collective alone has a limit, which a rank that has more episodes to run may exceed."""
    given = []
    monkeypatch.setattr(
        RolloutEvaluator, "run", lambda self, models, ranks, now: given.append(ranks) or Measurement({})
    )
    assert command("evaluate", measured).exit_code == 0
    assert [type(ranks) for ranks in given] == [Ranks]


def test_evaluate_of_nothing_is_refused(tmp_path):
    nothing = command("evaluate", tmp_path / "none")
    assert nothing.exit_code == 64
    assert told(nothing.output, tmp_path / "none")


def test_a_place_that_the_system_refuses_is_named_in_one_line(measured, tmp_path):
    refused = tmp_path / ("x" * 300)
    report = ("report", measured, "--html", refused / "page.html")
    sample = ("sample", measured, "--n", 2, "--out", refused)
    for arguments in (("export", measured, refused), ("evaluate", measured, "--out", refused), report, sample):
        done = command(*arguments)
        assert done.exit_code == 74, done.output
        last = done.output.splitlines()[-1]
        assert told(last, "error", os.strerror(errno.ENAMETOOLONG)) and "xxx" in last


def test_evaluate_of_an_export_is_refused_and_of_a_whole_one_is_not(measured, tmp_path):
    command("export", measured, tmp_path / "model")
    refused = command("evaluate", tmp_path / "model")
    assert refused.exit_code == 64 and told(refused.output, tmp_path / "model", "`dp-prior export --whole`")
    command("export", measured, tmp_path / "whole", "--whole")
    assert command("evaluate", tmp_path / "whole").exit_code == 0


def test_help_names_the_commands():
    said = command("--help").output
    for name in ("train", "evaluate", "make-demonstrations"):
        assert name in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_waiting_threads_of_a_command_spin_briefly_unless_asked_otherwise(given, spins):
    program = "import dp_prior.cli, sys; assert 'torch' not in sys.modules; import torch"
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"OMP_DISPLAY_ENV": "verbose", **given}
    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in said.stderr:
        pytest.skip("NOT CHECKED: torch does not use GNU OpenMP here")
    assert f"GOMP_SPINCOUNT = '{spins}'" in said.stderr
